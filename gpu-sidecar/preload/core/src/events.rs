//! Pool of this library's own events.

use std::sync::{Mutex, PoisonError};

use crate::driver::{self, Handle, SUCCESS};
use crate::{capture, link};

/// `CU_EVENT_BLOCKING_SYNC`, with timing: a thread that waits for the event sleeps.
const BLOCKING_SYNC: u32 = 1;
/// Largest number of events kept for reuse.
const KEPT_MAX: usize = 4096;

/// Free events, each with its context.
static FREE: Mutex<Vec<(Handle, Handle)>> = Mutex::new(Vec::new());

/// Returns an event of the context, which must be current for the calling thread. Returns `None` if the driver creates none.
pub(crate) fn take(context: Handle) -> Option<Handle> {
    {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = free.iter().rposition(|&(of, _)| of == context) {
            return Some(free.swap_remove(place).1);
        }
    }
    let mut event = 0;
    // SAFETY: `event` is valid for writes.
    let code = capture::relaxed(|| unsafe { driver::cuEventCreate(&raw mut event, BLOCKING_SYNC) });
    (code == SUCCESS).then_some(event)
}

/// Returns an event to the pool, or destroys it if the pool is full.
pub(crate) fn recycle(context: Handle, event: Handle) {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.len() < KEPT_MAX {
        free.push((context, event));
        return;
    }
    drop(free);
    // SAFETY: an event of this library's own, used nowhere else.
    let _any = unsafe { driver::cuEventDestroy_v2(event) };
}

/// Forgets the pooled events of a destroyed context, which were destroyed with it.
pub(crate) fn forget(context: Handle) {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.retain(|&(of, _)| of != context);
}

/// Records the event in the stream. Returns `false`, and reports the error, if the driver refuses.
pub(crate) fn record(event: Handle, stream: Handle) -> bool {
    // SAFETY: an event of this library's own, and a stream that the program is using.
    let code = unsafe { driver::cuEventRecord(event, stream) };
    if code != SUCCESS {
        link::report_fatal(code);
    }
    code == SUCCESS
}

/// Returns the time between two completed events in nanoseconds; `None` if the driver cannot measure it.
pub(crate) fn elapsed_ns(from: Handle, to: Handle) -> Option<u64> {
    let mut milliseconds = 0_f32;
    // SAFETY: `milliseconds` is valid for writes, and both events are this library's own.
    let code = unsafe { driver::cuEventElapsedTime(&raw mut milliseconds, from, to) };
    let nanoseconds = f64::from(milliseconds) * 1e6;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion saturates, and the value is not negative"
    )]
    (code == SUCCESS && nanoseconds >= 0.0).then(|| nanoseconds.round() as u64)
}
