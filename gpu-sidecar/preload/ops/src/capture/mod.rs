//! Stream capture. Launches on a capturing stream do not run, so they are neither gated nor measured. While any thread captures,
//! calls of this library must not invalidate the capture.

use preload_state::streams::DefaultStream;

use crate::capture_mode;
use crate::cuda::{Handle, SUCCESS};
use crate::outcome::{Call, Outcome};
use crate::platform::{Platform, System};
use crate::streams;

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

/// Ends the capture in a stream.
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
) -> Outcome {
    if capture_mode::any(host) {
        let _guard = host.process().captures.transition();
        return Outcome::Done(call());
    }
    streams::other_work(host, stream, default);
    Outcome::Done(call())
}

#[cfg(test)]
mod tests;
