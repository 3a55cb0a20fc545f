//! The context of a call.

use std::ffi::c_int;

use crate::cuda::{Code, Handle, INVALID_CONTEXT};
use crate::platform::{Driver, Platform};
use crate::streams;

/// Returns the calling thread's context.
pub(super) fn current<P: Driver>(host: P) -> Result<Handle, Code> {
    match host.current_context()? {
        0 => Err(INVALID_CONTEXT),
        context => Ok(context),
    }
}

/// Runs `f` with `context` current, and restores the previous context.
pub(super) fn within<P: Driver, T>(
    host: P,
    context: Handle,
    f: impl FnOnce() -> T,
) -> Result<T, Code> {
    let before = host.current_context()?;
    if before == context {
        return Ok(f());
    }
    // The driver refuses destroyed contexts.
    host.set_current_context(context)?;
    let result = f();
    let _restored = host.set_current_context(before);
    Ok(result)
}

/// Returns the device of any context.
pub(super) fn device_of<P: Driver>(host: P, context: Handle) -> Result<c_int, Code> {
    within(host, context, || host.current_device())?
}

/// Waits for all work of a context. After an error it is unknown what still runs.
pub(super) fn synchronize<P: Platform>(host: P, context: Handle) -> Result<(), Code> {
    let waited = within(host, context, || host.synchronize()).flatten();
    match waited {
        Ok(()) => streams::context_synchronized(host, context),
        Err(code) => host.report_fatal(code),
    }
    waited
}
