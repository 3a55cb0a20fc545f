"""Named checks of one program. Each prints a line; what a kernel computes is not checked, since softgpu does not compute it."""

import sys


class Checks:
    """Runs checks in order of definition, and prints `ok NAME` or `failed NAME: WHY`."""

    def __init__(self):
        self.failed = 0

    def __call__(self, check):
        try:
            check()
        except Exception as error:  # A check may fail in any way; the next one runs all the same.
            self.failed += 1
            print(f"failed {check.__name__}: {type(error).__name__}: {error}")
        else:
            print(f"ok {check.__name__}")
        return check

    def end(self):
        """Ends the program: exit code 1 if a check has failed."""
        sys.stdout.flush()
        sys.exit(1 if self.failed else 0)


def equal(got, expected):
    assert got == expected, f"{got!r}, expected {expected!r}"
