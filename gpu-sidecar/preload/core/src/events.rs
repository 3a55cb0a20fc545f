//! Events of this library's own: made once, used again.

use std::sync::{Mutex, PoisonError};

use crate::driver::{self, Handle, SUCCESS};
use crate::{capture, link};

/// Times are taken, and who waits sleeps.
const BLOCKING_SYNC: u32 = 1;
/// So many events are kept for further use.
const KEPT: usize = 4096;

/// Events with the context in which they were made.
static FREE: Mutex<Vec<(Handle, Handle)>> = Mutex::new(Vec::new());

/// An event of the context, which is the calling thread's current one.
pub(crate) fn take(context: Handle) -> Option<Handle> {
    {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = free.iter().rposition(|&(of, _)| of == context) {
            return Some(free.swap_remove(place).1);
        }
    }
    let mut event = 0;
    // SAFETY: a place to write to.
    let code = capture::relaxed(|| unsafe { driver::cuEventCreate(&raw mut event, BLOCKING_SYNC) });
    (code == SUCCESS).then_some(event)
}

/// The event is no longer needed.
pub(crate) fn give(context: Handle, event: Handle) {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.len() < KEPT {
        free.push((context, event));
        return;
    }
    drop(free);
    // SAFETY: an event of this library's own, which nobody else knows.
    let _any = unsafe { driver::cuEventDestroy_v2(event) };
}

/// The context is gone, and its events with it.
pub(crate) fn forget(context: Handle) {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.retain(|&(of, _)| of != context);
}

/// Records the event in the stream; `false`: the driver did not.
pub(crate) fn record(event: Handle, stream: Handle) -> bool {
    // SAFETY: an event of this library's own, and a stream that the program uses at this moment.
    let code = unsafe { driver::cuEventRecord(event, stream) };
    if code != SUCCESS {
        link::fatal(code);
    }
    code == SUCCESS
}

/// The time between two events that are done, in nanoseconds.
pub(crate) fn elapsed_ns(from: Handle, to: Handle) -> Option<u64> {
    let mut milliseconds = 0_f32;
    // SAFETY: a place to write to, and two events of this library's own.
    let code = unsafe { driver::cuEventElapsedTime(&raw mut milliseconds, from, to) };
    let nanoseconds = f64::from(milliseconds) * 1e6;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion keeps to the type's bounds, and a time between events in order is not negative"
    )]
    (code == SUCCESS && nanoseconds >= 0.0).then(|| nanoseconds.round() as u64)
}
