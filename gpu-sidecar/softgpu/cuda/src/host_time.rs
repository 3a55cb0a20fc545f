//! Time that calls of the driver take on the host, as far as the part of the device states it.
//!
//! A call returns at once, and its thread's commands are stamped later by what its calls take; a thread that is more than
//! [`AHEAD_MAX`] ahead of the clock waits for it. So the timeline has the exact times, and a short call costs no sleep.

use std::cell::Cell;

use device::{Span, Time};
use softgpu_wire::clock;

use crate::driver::Driver;

/// Largest time by which a thread's stamps are ahead of the clock after a call.
const AHEAD_MAX: Span = Span::from_millis(1);

thread_local! {
    /// End of the thread's last call which takes time.
    static END: Cell<Time> = const { Cell::new(Time::ZERO) };
}

/// Returns the time for a command of the calling thread.
pub(crate) fn now() -> Time {
    clock::now().max(END.get())
}

/// Lets the calling thread's call take this time, in µs before scaling, for each of `count` handles.
pub(crate) fn spend(driver: &Driver, micros: u64, count: usize) {
    let factor = u64::from(driver.config.time).saturating_mul(count as u64);
    let span = Span(micros.saturating_mul(1_000).saturating_mul(factor));
    if span == Span::ZERO {
        return;
    }
    let end = now().after(span);
    END.set(end);
    let ahead = end.since(clock::now());
    if ahead > AHEAD_MAX {
        clock::pause(ahead);
    }
}
