//! Everything that launches kernels: it passes the gate.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::{Code, Handle};
use crate::functions::Kind;
use crate::gate;
use crate::hook::hooks;
use crate::streams::Default;

fn kernel(real: &dyn Fn() -> Code, stream: Handle, default: Default, function: Handle) -> Code {
    gate::launch(real, stream, default, function, Kind::Kernel)
}

fn graph(real: &dyn Fn() -> Code, stream: Handle, default: Default, graph: Handle) -> Code {
    gate::launch(real, stream, default, graph, Kind::Graph)
}

/// Where a `CUlaunchConfig` has its stream: behind six dimensions and the bytes of shared memory.
fn stream_of_config(config: *const c_void) -> Handle {
    const OFFSET: usize = 32;
    if config.is_null() {
        // The driver says what is wrong with it.
        return 0;
    }
    // SAFETY: the program's own configuration, which has this shape since CUDA 11.8.
    let place = unsafe { config.byte_add(OFFSET) };
    // SAFETY: as above.
    unsafe { place.cast::<Handle>().read_unaligned() }
}

/// One launch on several devices at once (removed in CUDA 13): the first one's stream, of several that pass together.
fn several(real: &dyn Fn() -> Code, list: *const c_void, count: c_uint) -> Code {
    #[repr(C)]
    struct Parameters {
        function: Handle,
        dimensions: [c_uint; 7],
        stream: Handle,
        arguments: *const c_void,
    }
    if list.is_null() || count == 0 {
        return real();
    }
    // SAFETY: the program's own list, with one entry at least.
    let first = unsafe { list.cast::<Parameters>().read_unaligned() };
    let _unused = (first.dimensions, first.arguments);
    kernel(real, first.stream, Default::Legacy, first.function)
}

hooks! { HOOKS:
    fn cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, _arguments, _extra| kernel(real, stream, Default::Legacy, function);
    fn cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, _arguments, _extra| kernel(real, stream, Default::PerThread, function);
    fn cuLaunchKernelEx(config: *const c_void, function: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, config, function, _arguments, _extra| kernel(real, stream_of_config(config), Default::Legacy, function);
    fn cuLaunchKernelEx_ptsz(config: *const c_void, function: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, config, function, _arguments, _extra| kernel(real, stream_of_config(config), Default::PerThread, function);
    fn cuLaunchCooperativeKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, _arguments| kernel(real, stream, Default::Legacy, function);
    fn cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, _arguments| kernel(real, stream, Default::PerThread, function);
    fn cuLaunchCooperativeKernelMultiDevice(list: *const c_void, count: c_uint, flags: c_uint) =
        |real, list, count, _flags| several(real, list, count);
    fn cuLaunch(function: Handle) = |real, function| kernel(real, 0, Default::Legacy, function);
    fn cuLaunchGrid(function: Handle, width: c_int, height: c_int) = |real, function, _width, _height| kernel(real, 0, Default::Legacy, function);
    fn cuLaunchGridAsync(function: Handle, width: c_int, height: c_int, stream: Handle) =
        |real, function, _width, _height, stream| kernel(real, stream, Default::Legacy, function);
    fn cuGraphLaunch(exec: Handle, stream: Handle) = |real, exec, stream| graph(real, stream, Default::Legacy, exec);
    fn cuGraphLaunch_ptsz(exec: Handle, stream: Handle) = |real, exec, stream| graph(real, stream, Default::PerThread, exec);
}
