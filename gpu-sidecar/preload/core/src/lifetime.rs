//! Wrappers for initialisation of the driver and for destruction of contexts and streams.

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

fn destroy_context(real: &dyn Fn() -> Code, context: Handle) -> Code {
    let code = real();
    if code == SUCCESS && link::is_active() {
        streams::context_destroyed(context);
        memory::context_destroyed(context);
    }
    code
}

/// Releases or resets the primary context. It is destroyed with its last reference, or at once by a reset.
fn release_primary(real: &dyn Fn() -> Code, device: c_int) -> Code {
    if !link::is_active() {
        return real();
    }
    let primary = primary(device);
    let code = real();
    if code == SUCCESS
        && let Some(context) = primary
        && !is_primary_active(device)
    {
        streams::context_destroyed(context);
        memory::context_destroyed(context);
    }
    code
}

/// Returns the handle of the primary context; `None` if it is not active.
fn primary(device: c_int) -> Option<Handle> {
    if !is_primary_active(device) {
        return None;
    }
    let mut context = 0;
    // SAFETY: `context` is valid for writes; the reference is released below.
    let code = unsafe { driver::cuDevicePrimaryCtxRetain(&raw mut context, device) };
    if code != SUCCESS {
        return None;
    }
    // SAFETY: releases the reference retained above.
    let _back = unsafe { driver::cuDevicePrimaryCtxRelease_v2(device) };
    Some(context)
}

fn is_primary_active(device: c_int) -> bool {
    let (mut flags, mut active): (c_uint, c_int) = (0, 0);
    // SAFETY: both pointers are valid for writes.
    let code =
        unsafe { driver::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    code == SUCCESS && active != 0
}

fn destroy_stream(real: &dyn Fn() -> Code, stream: Handle) -> Code {
    if link::is_active() {
        streams::stream_destroyed(stream);
    }
    real()
}

hooks! { HOOKS:
    fn cuInit(flags: c_uint) = |real, _flags| init(real);
    fn cuCtxDestroy(context: Handle) = destroy_context;
    fn cuCtxDestroy_v2(context: Handle) = destroy_context;
    fn cuDevicePrimaryCtxRelease(device: c_int) = release_primary;
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) = release_primary;
    fn cuDevicePrimaryCtxReset(device: c_int) = release_primary;
    fn cuDevicePrimaryCtxReset_v2(device: c_int) = release_primary;
    fn cuStreamDestroy(stream: Handle) = destroy_stream;
    fn cuStreamDestroy_v2(stream: Handle) = destroy_stream;
}
