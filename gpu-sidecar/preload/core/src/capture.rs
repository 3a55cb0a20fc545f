//! Streams that capture. What is launched on them does not run, so it is neither gated nor measured; and while any thread
//! captures, calls of this library must not disturb it.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::{self, Code, Handle, SUCCESS};
use crate::hook::hooks;
use crate::memory;
use crate::streams::{self, Default};

/// Captures under way. One that is given up by destroying its stream is counted until the end: then launches only ask the
/// driver once more than they need.
static UNDER_WAY: AtomicU32 = AtomicU32::new(0);

/// Between asking whether a stream captures and recording an event in it, nobody may begin to capture in it.
static TRANSITION: Mutex<()> = Mutex::new(());

/// The mode in which nothing that another thread does is forbidden.
const RELAXED: c_int = 2;

/// Some stream of the process captures.
#[inline]
pub(crate) fn any() -> bool {
    UNDER_WAY.load(Ordering::Relaxed) != 0
}

/// The stream captures.
pub(crate) fn is_capturing(stream: Handle) -> bool {
    let mut status = 0;
    // SAFETY: a place to write to; the driver checks the handle.
    let code = unsafe { driver::cuStreamIsCapturing(stream, &raw mut status) };
    // One whose capture has failed answers an error.
    code != SUCCESS || status != 0
}

/// Does something of this library's own while threads of the program may capture: what would end their capture is allowed
/// in relaxed mode.
pub(crate) fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    if !any() {
        return work();
    }
    let mut mode = RELAXED;
    // SAFETY: a place to read from and write to.
    let changed = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) } == SUCCESS;
    let result = work();
    if changed {
        // SAFETY: as above; the mode that was there before.
        let _back = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    }
    result
}

/// While this is held no stream begins to capture.
pub(crate) fn transition() -> MutexGuard<'static, ()> {
    TRANSITION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread, which is this library's own, never disturbs a capture.
pub(crate) fn never_disturb() {
    let mut mode = RELAXED;
    // SAFETY: a place to read from and write to.
    let _any = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
}

fn begin(real: &dyn Fn() -> Code, stream: Handle, default: Default) -> Code {
    // What runs in the stream until now is measured up to here: afterwards no event can be recorded in it.
    streams::mark(stream, default);
    memory::capture_begins();
    let _alone = transition();
    UNDER_WAY.fetch_add(1, Ordering::SeqCst);
    let code = real();
    if code != SUCCESS {
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    }
    code
}

fn end(real: &dyn Fn() -> Code) -> Code {
    let code = real();
    let _before = UNDER_WAY.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
        count.checked_sub(1)
    });
    code
}

/// A stream that waits for an event of a capture captures from then on.
fn wait_event(real: &dyn Fn() -> Code, stream: Handle, default: Default) -> Code {
    if any() {
        let _alone = transition();
        return real();
    }
    streams::other_work(stream, default);
    real()
}

hooks! { HOOKS:
    fn cuStreamBeginCapture(stream: Handle) = |real, stream| begin(real, stream, Default::Legacy);
    fn cuStreamBeginCapture_ptsz(stream: Handle) = |real, stream| begin(real, stream, Default::PerThread);
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) = |real, stream, _mode| begin(real, stream, Default::Legacy);
    fn cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_uint) = |real, stream, _mode| begin(real, stream, Default::PerThread);
    fn cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, dependencies: Handle, data: Handle, count: usize, mode: c_uint) =
        |real, stream, _graph, _dependencies, _data, _count, _mode| begin(real, stream, Default::Legacy);
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Handle, graph: Handle, dependencies: Handle, data: Handle, count: usize, mode: c_uint) =
        |real, stream, _graph, _dependencies, _data, _count, _mode| begin(real, stream, Default::PerThread);
    fn cuStreamEndCapture(stream: Handle, graph: Handle) = |real, _stream, _graph| end(real);
    fn cuStreamEndCapture_ptsz(stream: Handle, graph: Handle) = |real, _stream, _graph| end(real);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) = |real, stream, _event, _flags| wait_event(real, stream, Default::Legacy);
    fn cuStreamWaitEvent_ptsz(stream: Handle, event: Handle, flags: c_uint) = |real, stream, _event, _flags| wait_event(real, stream, Default::PerThread);
}
