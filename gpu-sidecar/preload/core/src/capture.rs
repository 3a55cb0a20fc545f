//! Stream capture. Launches on a capturing stream do not run, so they are neither gated nor measured. While any thread captures,
//! calls of this library must not invalidate the capture.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::{self, Code, Handle, SUCCESS};
use crate::hook::hooks;
use crate::memory;
use crate::streams::{self, DefaultStream};

/// Number of captures in progress. A capture abandoned by destroying its stream stays counted until the process ends; launches
/// then make one needless query of the driver.
static IN_PROGRESS: AtomicU32 = AtomicU32::new(0);

/// Held between a query of a stream's capture status and recording an event in it, so that no capture begins in between.
static TRANSITION: Mutex<()> = Mutex::new(());

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: potentially unsafe calls of other threads are allowed.
const RELAXED: c_int = 2;

/// Returns whether some stream of the process captures.
#[inline]
pub(crate) fn any() -> bool {
    IN_PROGRESS.load(Ordering::Relaxed) != 0
}

/// Returns whether the stream captures.
pub(crate) fn is_capturing(stream: Handle) -> bool {
    let mut status = 0;
    // SAFETY: `status` is valid for writes; the driver validates the handle.
    let code = unsafe { driver::cuStreamIsCapturing(stream, &raw mut status) };
    // A stream with an invalidated capture returns an error.
    code != SUCCESS || status != 0
}

/// Runs `work` in relaxed capture mode, so that driver calls in it do not invalidate a capture of the program.
pub(crate) fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    if !any() {
        return work();
    }
    let mut mode = RELAXED;
    // SAFETY: `mode` is valid for reads and writes.
    let changed = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) } == SUCCESS;
    let result = work();
    if changed {
        // SAFETY: as above; restores the previous mode.
        let _back = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    }
    result
}

/// Prevents streams from beginning to capture while the guard is held.
pub(crate) fn transition() -> MutexGuard<'static, ()> {
    TRANSITION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets relaxed capture mode for the calling thread, which is one of this library's own.
pub(crate) fn set_relaxed() {
    let mut mode = RELAXED;
    // SAFETY: `mode` is valid for reads and writes.
    let _any = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
}

fn begin(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    // Work in the stream is measured up to here, because no event can be recorded during the capture.
    streams::mark(stream, default);
    memory::before_capture();
    let _guard = transition();
    IN_PROGRESS.fetch_add(1, Ordering::SeqCst);
    let code = real();
    if code != SUCCESS {
        IN_PROGRESS.fetch_sub(1, Ordering::SeqCst);
    }
    code
}

fn end(real: &dyn Fn() -> Code) -> Code {
    let code = real();
    let _before = IN_PROGRESS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
        count.checked_sub(1)
    });
    code
}

/// Wraps `cuStreamWaitEvent`. A stream that waits for an event of a capture joins the capture.
fn wait_event(real: &dyn Fn() -> Code, stream: Handle, default: DefaultStream) -> Code {
    if any() {
        let _guard = transition();
        return real();
    }
    streams::other_work(stream, default);
    real()
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
