//! Wrappers for initialisation of the driver and for destruction of contexts and streams.

use std::ffi::{c_int, c_uint};

use preload_ops::lifetime;

use crate::driver::{Code, Handle, SUCCESS};
use crate::hook::hooks;
use crate::host::Host;
use crate::{link, memory};

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
    lifetime::destroy_context(Host, real, context, memory::context_destroyed).or_call(real)
}

fn detach_context(real: &dyn Fn() -> Code, context: Handle) -> Code {
    lifetime::detach_context(Host, real, context, memory::context_destroyed).or_call(real)
}

fn release_primary(real: &dyn Fn() -> Code, device: c_int) -> Code {
    lifetime::release_primary(Host, real, device, memory::context_destroyed).or_call(real)
}

fn destroy_stream(real: &dyn Fn() -> Code, stream: Handle) -> Code {
    lifetime::destroy_stream(Host, stream).or_call(real)
}

hooks! { HOOKS:
    fn cuInit(flags: c_uint) = |real, _flags| init(real);
    fn cuCtxDestroy(context: Handle) = destroy_context;
    fn cuCtxDestroy_v2(context: Handle) = destroy_context;
    fn cuCtxDetach(context: Handle) = detach_context;
    fn cuDevicePrimaryCtxRelease(device: c_int) = release_primary;
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) = release_primary;
    fn cuDevicePrimaryCtxReset(device: c_int) = release_primary;
    fn cuDevicePrimaryCtxReset_v2(device: c_int) = release_primary;
    fn cuStreamDestroy(stream: Handle) = destroy_stream;
    fn cuStreamDestroy_v2(stream: Handle) = destroy_stream;
}
