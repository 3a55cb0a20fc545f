//! CLOCK_MONOTONIC, the clock of all timestamps, which all processes of a machine share.

use device::{Span, Time};
use rustix::thread::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of CLOCK_MONOTONIC, in nanoseconds.
#[must_use]
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Time(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// Converts a span to the kernel's `timespec`.
#[must_use]
pub fn timespec(span: Span) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(span.0 % 1_000_000_000).unwrap_or_default(),
    }
}

/// Blocks the calling thread for `span`. For polling a condition that raises no event, in a thread with no other work.
#[expect(clippy::disallowed_methods, reason = "no runtime's worker")]
pub fn pause(span: Span) {
    std::thread::sleep(std::time::Duration::from_nanos(span.0));
}
