//! Exported functions for events.

use crate::event::{self, Event};
use crate::ipc::{self, IpcHandle};
use crate::pointer::Out;
use crate::stream::{DefaultStream, Stream};
use crate::table::Handle;

use super::functions;

functions! { TABLE:
    fn cuEventCreate(out: Out<Handle<Event>>, flags: u32) = event::create_handle(out, flags);
    fn cuEventDestroy(handle: Handle<Event>) = event::destroy(handle);
    fn cuEventDestroy_v2(handle: Handle<Event>) = event::destroy(handle);
    fn cuEventQuery(handle: Handle<Event>) = event::query(handle);
    fn cuEventSynchronize(handle: Handle<Event>) = event::synchronise(handle);
    fn cuEventElapsedTime(out: Out<f32>, start: Handle<Event>, end: Handle<Event>) = event::elapsed(out, start, end);
    fn cuEventElapsedTime_v2(out: Out<f32>, start: Handle<Event>, end: Handle<Event>) = event::elapsed(out, start, end);
    fn cuIpcGetEventHandle(out: Out<IpcHandle>, handle: Handle<Event>) = ipc::get_event(out, handle);
    fn cuIpcOpenEventHandle(out: Out<Handle<Event>>, handle: IpcHandle) = ipc::open_event(out, handle);
    fn cuEventRecord(handle: Handle<Event>, stream: Handle<Stream>) = event::record(handle, stream, 0, DefaultStream::Legacy);
    fn cuEventRecord_ptsz(handle: Handle<Event>, stream: Handle<Stream>) = event::record(handle, stream, 0, DefaultStream::PerThread);
    fn cuEventRecordWithFlags(handle: Handle<Event>, stream: Handle<Stream>, flags: u32) = event::record(handle, stream, flags, DefaultStream::Legacy);
    fn cuEventRecordWithFlags_ptsz(handle: Handle<Event>, stream: Handle<Stream>, flags: u32) = event::record(handle, stream, flags, DefaultStream::PerThread);
}
