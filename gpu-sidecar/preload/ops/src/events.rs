//! This library's own events.

use crate::capture_mode;
use crate::cuda::{EVENT_BLOCKING_SYNC, Handle};
use crate::platform::{Driver, Platform};

/// Returns an event of the context, which must be current for the calling thread. Returns `None` if the driver creates none.
pub(crate) fn take<P: Platform>(host: P, context: Handle) -> Option<Handle> {
    let pooled = host.process().events.take(context);
    pooled.or_else(|| capture_mode::relaxed(host, || host.create_event(EVENT_BLOCKING_SYNC)).ok())
}

/// Returns an event to the pool, or destroys it if the pool is full.
pub(crate) fn recycle<P: Platform>(host: P, context: Handle, event: Handle) {
    if !host.process().events.put(context, event) {
        host.destroy_event(event);
    }
}

/// Records the event in the stream. Returns `false`, and reports the error, if the driver refuses.
pub(crate) fn record<P: Platform>(host: P, event: Handle, stream: Handle) -> bool {
    let recorded = host.record_event(event, stream);
    if let Err(code) = recorded {
        host.report_fatal(code);
    }
    recorded.is_ok()
}

/// Returns the time between two completed events in nanoseconds; `None` if the driver cannot measure it.
pub(crate) fn elapsed_ns<P: Driver>(host: P, from: Handle, to: Handle) -> Option<u64> {
    let milliseconds = host.elapsed_ms(from, to).ok()?;
    let nanoseconds = f64::from(milliseconds) * 1e6;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the conversion saturates, and the value is not negative"
    )]
    (nanoseconds >= 0.0).then(|| nanoseconds.round() as u64)
}
