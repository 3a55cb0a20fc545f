//! Exported functions for streams.

use std::ffi::c_void;

use crate::context::Context;
use crate::event::Event;
use crate::pointer::Out;
use crate::stream::{self, DefaultStream, Stream};
use crate::table::Handle;
use crate::work::{Callback, HostFunction};

use super::functions;

functions! { TABLE:
    fn cuStreamCreate(out: Out<Handle<Stream>>, flags: u32) = stream::create_plain(out, flags);
    fn cuStreamCreateWithPriority(out: Out<Handle<Stream>>, flags: u32, priority: i32) = stream::create_with_priority(out, flags, priority);
    fn cuStreamDestroy(handle: Handle<Stream>) = stream::destroy(handle);
    fn cuStreamDestroy_v2(handle: Handle<Stream>) = stream::destroy(handle);
    fn cuStreamSynchronize(handle: Handle<Stream>) = stream::synchronise(handle, DefaultStream::Legacy);
    fn cuStreamSynchronize_ptsz(handle: Handle<Stream>) = stream::synchronise(handle, DefaultStream::PerThread);
    fn cuStreamQuery(handle: Handle<Stream>) = stream::query(handle, DefaultStream::Legacy);
    fn cuStreamQuery_ptsz(handle: Handle<Stream>) = stream::query(handle, DefaultStream::PerThread);
    fn cuStreamWaitEvent(handle: Handle<Stream>, event: Handle<Event>, flags: u32) = stream::wait_event(handle, event, flags, DefaultStream::Legacy);
    fn cuStreamWaitEvent_ptsz(handle: Handle<Stream>, event: Handle<Event>, flags: u32) = stream::wait_event(handle, event, flags, DefaultStream::PerThread);
    fn cuLaunchHostFunc(handle: Handle<Stream>, function: Option<HostFunction>, data: *mut c_void) = stream::launch_host(handle, function, data, DefaultStream::Legacy);
    fn cuLaunchHostFunc_ptsz(handle: Handle<Stream>, function: Option<HostFunction>, data: *mut c_void) = stream::launch_host(handle, function, data, DefaultStream::PerThread);
    fn cuStreamAddCallback(handle: Handle<Stream>, function: Option<Callback>, data: *mut c_void, flags: u32) = stream::add_callback(handle, function, data, flags, DefaultStream::Legacy);
    fn cuStreamAddCallback_ptsz(handle: Handle<Stream>, function: Option<Callback>, data: *mut c_void, flags: u32) = stream::add_callback(handle, function, data, flags, DefaultStream::PerThread);
    fn cuStreamGetFlags(handle: Handle<Stream>, out: Out<u32>) = stream::get_flags(handle, out, DefaultStream::Legacy);
    fn cuStreamGetFlags_ptsz(handle: Handle<Stream>, out: Out<u32>) = stream::get_flags(handle, out, DefaultStream::PerThread);
    fn cuStreamGetPriority(handle: Handle<Stream>, out: Out<i32>) = stream::get_priority(handle, out, DefaultStream::Legacy);
    fn cuStreamGetPriority_ptsz(handle: Handle<Stream>, out: Out<i32>) = stream::get_priority(handle, out, DefaultStream::PerThread);
    fn cuStreamGetId(handle: Handle<Stream>, out: Out<u64>) = stream::get_id(handle, out, DefaultStream::Legacy);
    fn cuStreamGetId_ptsz(handle: Handle<Stream>, out: Out<u64>) = stream::get_id(handle, out, DefaultStream::PerThread);
    fn cuStreamGetCtx(handle: Handle<Stream>, out: Out<Handle<Context>>) = stream::get_context(handle, out, DefaultStream::Legacy);
    fn cuStreamGetCtx_ptsz(handle: Handle<Stream>, out: Out<Handle<Context>>) = stream::get_context(handle, out, DefaultStream::PerThread);
    fn cuStreamGetCtx_v2(handle: Handle<Stream>, out: Out<Handle<Context>>, green: Out<u64>) = stream::get_context_v2(handle, out, green, DefaultStream::Legacy);
    fn cuStreamGetCtx_v2_ptsz(handle: Handle<Stream>, out: Out<Handle<Context>>, green: Out<u64>) = stream::get_context_v2(handle, out, green, DefaultStream::PerThread);
    fn cuStreamGetDevice(handle: Handle<Stream>, out: Out<i32>) = stream::get_device(handle, out, DefaultStream::Legacy);
    fn cuStreamGetDevice_ptsz(handle: Handle<Stream>, out: Out<i32>) = stream::get_device(handle, out, DefaultStream::PerThread);
}
