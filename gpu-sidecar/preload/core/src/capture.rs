//! Wrappers of the functions that begin and end stream captures.

use std::ffi::c_uint;

use preload_ops::capture;
use preload_state::streams::DefaultStream;

use crate::driver::{Code, Handle};
use crate::hook::hooks;
use crate::host::Host;
use crate::memory;

fn begin(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    capture::begin(Host, real, stream, default, memory::before_capture).or_call(real)
}

fn end(real: &dyn Fn() -> Code) -> Code {
    capture::end(Host, real).or_call(real)
}

fn wait_event(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    capture::wait_event(Host, real, stream, default).or_call(real)
}

hooks! { HOOKS:
    fn cuStreamBeginCapture(stream: Handle) = |real, stream| begin(real, stream, DefaultStream::Legacy);
    fn cuStreamBeginCapture_ptsz(stream: Handle) = |real, stream| begin(real, stream, DefaultStream::PerThread);
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) = |real, stream, _mode| begin(real, stream, DefaultStream::Legacy);
    fn cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_uint) = |real, stream, _mode| begin(real, stream, DefaultStream::PerThread);
    fn cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, dependencies: Handle, data: Handle, count: usize, mode: c_uint) =
        |real, stream, _graph, _dependencies, _data, _count, _mode| begin(real, stream, DefaultStream::Legacy);
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Handle, graph: Handle, dependencies: Handle, data: Handle, count: usize, mode: c_uint) =
        |real, stream, _graph, _dependencies, _data, _count, _mode| begin(real, stream, DefaultStream::PerThread);
    fn cuStreamEndCapture(stream: Handle, graph: Handle) = |real, _stream, _graph| end(real);
    fn cuStreamEndCapture_ptsz(stream: Handle, graph: Handle) = |real, _stream, _graph| end(real);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) = |real, stream, _event, _flags| wait_event(real, stream, DefaultStream::Legacy);
    fn cuStreamWaitEvent_ptsz(stream: Handle, event: Handle, flags: c_uint) = |real, stream, _event, _flags| wait_event(real, stream, DefaultStream::PerThread);
}
