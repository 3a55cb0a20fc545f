//! The clock of all stamps: CLOCK_MONOTONIC, which all processes of a machine share.

use device::{Span, Time};
use rustix::thread::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// What the clock says.
#[must_use]
pub fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Time(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// A span as the kernel takes it.
#[must_use]
pub fn timespec(span: Span) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(span.0 % 1_000_000_000).unwrap_or_default(),
    }
}

/// Lets time pass, in a thread that has nothing else to do until something that tells nobody is there.
#[expect(clippy::disallowed_methods, reason = "no runtime's worker")]
pub fn pause(span: Span) {
    std::thread::sleep(std::time::Duration::from_nanos(span.0));
}
