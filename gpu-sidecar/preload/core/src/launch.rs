//! Wrappers of all functions that launch kernels or graphs. Each passes the gate.

use std::ffi::{c_int, c_uint, c_void};

use preload_ops::launch::{self, Arguments, Kind};
use preload_state::streams::DefaultStream;

use crate::driver::{Code, Handle};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::read;

fn kernel(
    real: &dyn Fn() -> Code,
    stream: Handle,
    default: DefaultStream,
    function: Handle,
) -> Code {
    launch::launch(Host, real, stream, default, function, Kind::Kernel).or_call(real)
}

/// As [`kernel`], of which the arguments are given as a list of pointers, or in one buffer.
fn kernel_with(
    real: &dyn Fn() -> Code,
    stream: Handle,
    default: DefaultStream,
    function: Handle,
    arguments: *const c_void,
    extra: *const c_void,
) -> Code {
    let arguments = Arguments {
        list: arguments.expose_provenance(),
        extra: extra.expose_provenance(),
    };
    launch::launch_with(
        Host,
        real,
        stream,
        default,
        function,
        Kind::Kernel,
        arguments,
    )
    .or_call(real)
}

fn graph(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream, graph: Handle) -> Code {
    launch::launch(Host, real, stream, default, graph, Kind::Graph).or_call(real)
}

/// Returns the stream of a `CUlaunchConfig`, whose offset follows six dimensions and the shared memory size.
fn stream_of_config(config: *const c_void) -> Handle {
    const OFFSET: usize = 32;
    if config.is_null() {
        // The driver reports the error.
        return 0;
    }
    // The layout since CUDA 11.8, with which this function appeared.
    let place = config.wrapping_byte_add(OFFSET).cast::<Handle>();
    read(place).unwrap_or(0)
}

/// Launches on several devices at once (removed in CUDA 13). All launches pass the gate together, as one in the first one's
/// stream.
fn several(real: &dyn Fn() -> Code, list: *const c_void, count: c_uint) -> Code {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Parameters {
        function: Handle,
        dimensions: [c_uint; 7],
        stream: Handle,
        arguments: *const c_void,
    }
    if count == 0 {
        return real();
    }
    let Some(first) = read(list.cast::<Parameters>()) else {
        return real();
    };
    let _unused = (first.dimensions, first.arguments);
    kernel(real, first.stream, DefaultStream::Legacy, first.function)
}

hooks! { HOOKS:
    fn cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, arguments, extra| kernel_with(real, stream, DefaultStream::Legacy, function, arguments, extra);
    fn cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, arguments, extra| kernel_with(real, stream, DefaultStream::PerThread, function, arguments, extra);
    fn cuLaunchKernelEx(config: *const c_void, function: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, config, function, arguments, extra| kernel_with(real, stream_of_config(config), DefaultStream::Legacy, function, arguments, extra);
    fn cuLaunchKernelEx_ptsz(config: *const c_void, function: Handle, arguments: *const c_void, extra: *const c_void) =
        |real, config, function, arguments, extra| kernel_with(real, stream_of_config(config), DefaultStream::PerThread, function, arguments, extra);
    fn cuLaunchCooperativeKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, arguments| kernel_with(real, stream, DefaultStream::Legacy, function, arguments, std::ptr::null());
    fn cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, arguments: *const c_void) =
        |real, function, _gx, _gy, _gz, _bx, _by, _bz, _shared, stream, arguments| kernel_with(real, stream, DefaultStream::PerThread, function, arguments, std::ptr::null());
    fn cuLaunchCooperativeKernelMultiDevice(list: *const c_void, count: c_uint, flags: c_uint) =
        |real, list, count, _flags| several(real, list, count);
    fn cuLaunch(function: Handle) = |real, function| kernel(real, 0, DefaultStream::Legacy, function);
    fn cuLaunchGrid(function: Handle, width: c_int, height: c_int) = |real, function, _width, _height| kernel(real, 0, DefaultStream::Legacy, function);
    fn cuLaunchGridAsync(function: Handle, width: c_int, height: c_int, stream: Handle) =
        |real, function, _width, _height, stream| kernel(real, stream, DefaultStream::Legacy, function);
    fn cuGraphLaunch(exec: Handle, stream: Handle) = |real, exec, stream| graph(real, stream, DefaultStream::Legacy, exec);
    fn cuGraphLaunch_ptsz(exec: Handle, stream: Handle) = |real, exec, stream| graph(real, stream, DefaultStream::PerThread, exec);
}
