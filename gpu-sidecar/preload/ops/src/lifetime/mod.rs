//! Destruction of contexts and streams.

use std::ffi::c_int;

use crate::cuda::{Code, Handle, SUCCESS};
use crate::memory::moves;
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::{Driver, Platform};
use crate::streams;

/// Destroys a context. `forget` releases the memory of a destroyed context.
pub fn destroy_context<P: Platform>(
    host: P,
    call: Call<'_>,
    context: Handle,
    forget: impl FnOnce(Handle),
) -> Outcome {
    let code = between_moves(host, call);
    if code == SUCCESS && host.is_active() {
        streams::context_destroyed(host, context);
        forget(context);
    }
    Outcome::Done(code)
}

/// Makes a call that may destroy a context while no memory is being moved in it.
fn between_moves<P: Platform>(host: P, call: Call<'_>) -> Code {
    let _moving = host.is_active().then(|| moves(host));
    call()
}

/// Drops a use of the calling thread's context, which is destroyed with its last one.
pub fn detach_context<P: Platform>(
    host: P,
    call: Call<'_>,
    context: Handle,
    forget: impl FnOnce(Handle),
) -> Outcome {
    let code = between_moves(host, call);
    if code == SUCCESS && host.is_active() && !is_there(host, context) {
        streams::context_destroyed(host, context);
        forget(context);
    }
    Outcome::Done(code)
}

/// Returns whether a context is not destroyed: the driver refuses to make a destroyed one current.
fn is_there<P: Driver>(host: P, context: Handle) -> bool {
    let before = host.current_context().unwrap_or(0);
    let is_there = host.set_current_context(context).is_ok();
    let _back = host.set_current_context(before);
    is_there
}

/// Releases or resets the primary context. It is destroyed with its last reference, or at once by a reset.
pub fn release_primary<P: Platform>(
    host: P,
    call: Call<'_>,
    device: c_int,
    forget: impl FnOnce(Handle),
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let primary = primary(host, device);
    let code = between_moves(host, call);
    if code == SUCCESS
        && let Some(context) = primary
        && !is_primary_active(host, device)
    {
        streams::context_destroyed(host, context);
        forget(context);
    }
    Outcome::Done(code)
}

/// Returns the handle of the primary context; `None` if it is not active.
fn primary<P: Driver>(host: P, device: c_int) -> Option<Handle> {
    let is_active = is_primary_active(host, device);
    is_active.then(|| host.primary_context(device).ok())?
}

fn is_primary_active<P: Driver>(host: P, device: c_int) -> bool {
    host.is_primary_active(device) == Ok(true)
}

/// Destroys a stream, whose work is measured to its end.
pub fn destroy_stream<P: Platform>(host: P, stream: Handle) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    streams::stream_destroyed(host, stream);
    Outcome::Pass(Reason::Measured)
}

#[cfg(test)]
mod tests;
