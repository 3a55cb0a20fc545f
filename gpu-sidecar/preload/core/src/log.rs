//! Messages to the user on standard error. There are few: each names Weir, the effect, and its reason.

use std::io::Write as _;

/// Writes one line to standard error, prefixed with `weir: `. Errors are ignored.
pub(crate) fn line(text: &str) {
    let line = format!("weir: {text}\n");
    let _written = std::io::stderr().write_all(line.as_bytes());
}
