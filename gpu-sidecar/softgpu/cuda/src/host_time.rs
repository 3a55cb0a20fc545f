//! Time that calls of the driver take on the host, as far as the part of the device states it.
//!
//! The call returns when its time is over, so that what the thread submits next is stamped later, and never ahead of the clock: the server
//! orders commands of different processes by their stamps. A few calls spin, since a sleep ends late by about as long as such a call takes. Calls that
//! follow one another sleep, so that threads of many processes do not wait for each other's CPUs, as on a machine with more of them: by how much a sleep
//! was late is taken off what the next calls take.

use std::cell::Cell;

use device::{Span, Time};
use softgpu_wire::clock;

use crate::driver::Driver;

/// Time for which calls that follow one another spin before they sleep.
const SPIN_MAX: Span = Span(200_000);
/// Longest time between two calls that follow one another.
const PAUSE_MAX: Span = Span(50_000);
/// Longest time that is taken off what later calls take.
const LATE_MAX: Span = Span(2_000_000);

/// Calls of a thread that follow one another.
#[derive(Clone, Copy)]
struct Calls {
    /// When the time of the last one was over.
    end: Time,
    /// When it returned.
    returned: Time,
    /// Time for which they have spun.
    spun: Span,
}

thread_local! {
    static CALLS: Cell<Calls> = const {
        Cell::new(Calls { end: Time(0), returned: Time(0), spun: Span::ZERO })
    };
}

impl Calls {
    /// Returns when the time of a call begins that was made at `begin`, and forgets the earlier ones unless it follows them.
    fn follow(&mut self, begin: Time) -> Time {
        if begin.since(self.returned) > PAUSE_MAX {
            self.spun = Span::ZERO;
            return begin;
        }
        let late = self.returned.since(self.end);
        if late > LATE_MAX {
            return begin;
        }
        begin.before(late)
    }
}

/// Blocks until a call which began at `begin` has taken this time, in µs before scaling, for each of `count` handles.
pub(crate) fn spend(driver: &Driver, begin: Time, micros: u64, count: usize) {
    let factor = u64::from(driver.config.time).saturating_mul(count as u64);
    let span = Span(micros.saturating_mul(1_000).saturating_mul(factor));
    CALLS.with(|calls| {
        let mut own = calls.get();
        own.end = own.follow(begin).after(span);
        let left = own.end.since(clock::now());
        if left > SPIN_MAX.less(own.spun) {
            clock::pause(left);
        } else {
            own.spun = Span(own.spun.0 + left.0);
        }
        own.returned = clock::now();
        // A short sleep, or none.
        while own.returned < own.end {
            std::hint::spin_loop();
            own.returned = clock::now();
        }
        calls.set(own);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    #[test]
    fn a_late_return_is_taken_off_the_calls_that_follow_at_once() {
        let mut calls = Calls {
            end: Time(1_000 * US),
            returned: Time(1_080 * US),
            spun: SPIN_MAX,
        };
        assert_eq!(calls.follow(Time(1_090 * US)), Time(1_010 * US));
        assert_eq!(calls.spun, SPIN_MAX);
        // The thread has done something else meanwhile.
        assert_eq!(calls.follow(Time(1_131 * US)), Time(1_131 * US));
        assert_eq!(calls.spun, Span::ZERO);
    }

    #[test]
    fn a_thread_that_did_not_run_for_long_makes_up_for_no_more_than_it_may() {
        let mut calls = Calls {
            end: Time(0),
            returned: Time(3_000 * US),
            spun: SPIN_MAX,
        };
        let begin = Time(3_001 * US);
        assert_eq!(calls.follow(begin), begin);
    }
}
