//! The begin and the end of what the library keeps account of: the driver, contexts, streams.

use std::ffi::{c_int, c_uint};

use crate::driver::{self, Code, Handle, SUCCESS};
use crate::hook::hooks;
use crate::{link, memory, streams};

fn init(real: &dyn Fn() -> Code) -> Code {
    if let Err(code) = link::begin() {
        return code;
    }
    let code = real();
    if code != SUCCESS {
        return code;
    }
    link::attach().err().unwrap_or(code)
}

fn context_ends(real: &dyn Fn() -> Code, context: Handle) -> Code {
    let code = real();
    if code == SUCCESS && link::is_active() {
        streams::context_gone(context);
        memory::context_gone(context);
    }
    code
}

/// The primary context ends with its last reference, or at once when it is reset.
fn primary_ends(real: &dyn Fn() -> Code, device: c_int) -> Code {
    if !link::is_active() {
        return real();
    }
    let primary = primary(device);
    let code = real();
    if code == SUCCESS
        && let Some(context) = primary
        && !is_primary_active(device)
    {
        streams::context_gone(context);
        memory::context_gone(context);
    }
    code
}

/// The handle of the primary context, if there is one.
fn primary(device: c_int) -> Option<Handle> {
    if !is_primary_active(device) {
        return None;
    }
    let mut context = 0;
    // SAFETY: a place to write to; the reference is given back at once.
    let code = unsafe { driver::cuDevicePrimaryCtxRetain(&raw mut context, device) };
    if code != SUCCESS {
        return None;
    }
    // SAFETY: the reference that was just taken.
    let _back = unsafe { driver::cuDevicePrimaryCtxRelease_v2(device) };
    Some(context)
}

fn is_primary_active(device: c_int) -> bool {
    let (mut flags, mut active): (c_uint, c_int) = (0, 0);
    // SAFETY: two places to write to.
    let code =
        unsafe { driver::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    code == SUCCESS && active != 0
}

fn stream_ends(real: &dyn Fn() -> Code, stream: Handle) -> Code {
    if link::is_active() {
        streams::destroyed(stream);
    }
    real()
}

hooks! { HOOKS:
    fn cuInit(flags: c_uint) = |real, _flags| init(real);
    fn cuCtxDestroy(context: Handle) = context_ends;
    fn cuCtxDestroy_v2(context: Handle) = context_ends;
    fn cuDevicePrimaryCtxRelease(device: c_int) = primary_ends;
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) = primary_ends;
    fn cuDevicePrimaryCtxReset(device: c_int) = primary_ends;
    fn cuDevicePrimaryCtxReset_v2(device: c_int) = primary_ends;
    fn cuStreamDestroy(stream: Handle) = stream_ends;
    fn cuStreamDestroy_v2(stream: Handle) = stream_ends;
}
