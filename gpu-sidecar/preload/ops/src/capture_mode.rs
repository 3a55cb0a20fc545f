//! Captures in progress, and calls of this library beside them.

use crate::cuda::{CAPTURE_RELAXED, Handle};
use crate::platform::{Driver, Platform, System};

/// Returns whether some stream of the process captures.
#[inline]
pub fn any<P: System>(host: P) -> bool {
    host.process().captures.any()
}

/// Returns whether the stream captures.
pub fn is_capturing<P: Driver>(host: P, stream: Handle) -> bool {
    // A stream with an invalidated capture returns an error.
    host.is_capturing(stream) != Ok(false)
}

/// Runs `work` in relaxed capture mode while any stream captures, so that driver calls in it do not invalidate a capture of the
/// program.
pub fn relaxed<P: Platform, T>(host: P, work: impl FnOnce() -> T) -> T {
    if !any(host) {
        return work();
    }
    let before = host.exchange_capture_mode(CAPTURE_RELAXED);
    let result = work();
    if let Ok(before) = before {
        let _back = host.exchange_capture_mode(before);
    }
    result
}

/// Sets relaxed capture mode for the calling thread, which is one of this library's own.
pub fn set_relaxed<P: Driver>(host: P) {
    let _before = host.exchange_capture_mode(CAPTURE_RELAXED);
}
