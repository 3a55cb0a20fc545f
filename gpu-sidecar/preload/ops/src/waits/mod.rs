//! Host waits, and stream operations without kernel or memory. Neither is gated; both are points at which kernel time is
//! measured (M4.6).

use preload_state::streams::DefaultStream;

use crate::cuda::{Handle, SUCCESS};
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::Platform;
use crate::{capture_mode, failures, gate, streams};

/// Waits on the host for more than one stream: marks what was launched before it, and collects completed marks after it.
pub fn wait<P: Platform>(host: P, call: Call<'_>) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    capture_mode::relaxed(host, || streams::mark_all(host));
    let code = call();
    streams::reap_all(host);
    gate::after_host_wait(host);
    // Work before it has failed, and a program learns of that first where it waits.
    Outcome::Done(failures::report_before_return(host, code))
}

/// Waits on the host for one stream, or queries it.
pub fn wait_for<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    // A capturing stream cannot be waited for; the driver returns the error.
    if !capture_mode::any(host) {
        streams::mark(host, stream, default);
    }
    let code = call();
    if code == SUCCESS {
        streams::stream_synchronized(host, stream, default);
        gate::after_host_wait(host);
    }
    Outcome::Done(failures::report_before_return(host, code))
}

/// Enqueues an operation that is neither a kernel nor a use of memory.
pub fn other<P: Platform>(host: P, stream: Handle, default: DefaultStream) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if capture_mode::any(host) {
        return Outcome::Pass(Reason::Capturing);
    }
    streams::other_work(host, stream, default);
    Outcome::Pass(Reason::Measured)
}

#[cfg(test)]
mod tests;
