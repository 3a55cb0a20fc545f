//! Time that calls of the driver take on the host, as far as the part of the device states it.
//!
//! The call returns when its time is over, so that what the thread submits next is stamped later, and never ahead of the clock: the server
//! orders commands of different processes by their stamps. A longer wait sleeps; the last of it spins, since a sleep ends late by about
//! as long as such a call takes.

use device::{Span, Time};
use softgpu_wire::clock;

use crate::driver::Driver;

/// Largest time for which a call spins: a sleep ends this much before its end, and later by less.
const SPIN_MAX: Span = Span(200_000);

/// Blocks until a call which began at `begin` has taken this time, in µs before scaling, for each of `count` handles.
pub(crate) fn spend(driver: &Driver, begin: Time, micros: u64, count: usize) {
    let factor = u64::from(driver.config.time).saturating_mul(count as u64);
    let span = Span(micros.saturating_mul(1_000).saturating_mul(factor));
    let end = begin.after(span);
    loop {
        let left = end.since(clock::now());
        if left == Span::ZERO {
            return;
        }
        if left > SPIN_MAX {
            clock::pause(left.less(SPIN_MAX));
        } else {
            std::hint::spin_loop();
        }
    }
}
