//! Stream capture. Launches on a capturing stream do not run, so they are neither gated nor measured. While any thread captures,
//! calls of this library must not invalidate the capture.

use preload_state::streams::DefaultStream;

use crate::cuda::{CAPTURE_RELAXED, Code, Handle, SUCCESS};
use crate::outcome::{Call, Outcome};
use crate::platform::{Driver, Platform, System};
use crate::streams;

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

/// Begins a capture in a stream. `reserve` prepares memory for allocations during the capture.
pub fn begin<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
    reserve: impl FnOnce(),
) -> Outcome {
    // Work in the stream is measured up to here, because no event can be recorded during the capture.
    streams::mark(host, stream, default);
    reserve();
    let captures = &host.process().captures;
    let _guard = captures.transition();
    captures.begin();
    let code = call();
    if code != SUCCESS {
        captures.end();
    }
    Outcome::Done(code)
}

/// Ends a capture.
pub fn end<P: System>(host: P, call: Call<'_>) -> Outcome {
    let code = call();
    host.process().captures.end();
    Outcome::Done(code)
}

/// Lets a stream wait for an event. A stream that waits for an event of a capture joins the capture.
pub fn wait_event<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
) -> Outcome<Code> {
    if any(host) {
        let _guard = host.process().captures.transition();
        return Outcome::Done(call());
    }
    streams::other_work(host, stream, default);
    Outcome::Done(call())
}

#[cfg(test)]
mod tests;
