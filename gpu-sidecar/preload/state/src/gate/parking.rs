//! What a thread does whose launch cannot pass.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::page::Orders;

use super::state::{Gate, HUNG_AFTER, IN_FLIGHT_WAIT_MAX, RECHECK_INTERVAL, Token, bound};
use crate::silence::Silence;

/// Work in flight of the process, as a parked thread can find it out.
pub trait Work {
    /// Removes the work that has finished from the word of the gate.
    fn reap(&mut self);

    /// Returns the expected rest of the work in flight, in nanoseconds.
    fn remaining_ns(&mut self) -> u64;

    /// Returns whether no work is known to be in flight in the stream of the launch that waits.
    fn is_stream_empty(&mut self) -> bool;
}

/// Next step of a parked thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkStep {
    /// The launch is to be tried again, within the bound of the work in flight.
    Launch,
    /// The launch is to be tried again and may exceed the bound of the work in flight.
    Exceed {
        /// Whether the bound could not be kept, so that the launch counts as exceeding it.
        is_counted: bool,
    },
    /// The token after `epoch` is to be requested with `Ask`; then as [`Self::Wait`].
    Ask {
        /// Epoch at which the thread is parked.
        epoch: u64,
    },
    /// The thread waits on the word of the page's gate, while it is the low half of `epoch`, for at most [`RECHECK_INTERVAL`]. Then it
    /// calls [`Parking::waited`].
    Wait {
        /// Epoch at which the thread is parked.
        epoch: u64,
    },
    /// The thread waits for [`super::IN_FLIGHT_POLL`].
    Poll,
}

/// State of one parked thread, for one launch.
#[derive(Debug, Default)]
pub struct Parking {
    /// Time since when only the bound of the work in flight keeps the launch back, in nanoseconds.
    bound_since: Option<u64>,
    silence: Silence,
}

impl Parking {
    /// Returns what the thread does next. To be called with the present page, again after each wait, until it returns
    /// [`ParkStep::Launch`] or [`ParkStep::Exceed`].
    ///
    /// `is_served`: the orders are those of a connected agent, which accepts requests for a token.
    pub fn step(
        &mut self,
        now: u64,
        orders: &Orders,
        gate: &Gate,
        is_served: bool,
        work: &mut impl Work,
    ) -> ParkStep {
        // The epoch first: if the agent grants a token after the gate was looked at, a wait at this epoch ends at once.
        let (epoch, token) = loop {
            let epoch = orders.gate.epoch();
            match gate.token(orders) {
                Token::Taken => {}
                token => break (epoch, token),
            }
        };
        if epoch & 1 == 0 && token == Token::Returning {
            self.bound_since = None;
            return ParkStep::Poll;
        }
        if epoch & 1 == 1 || token == Token::Returned {
            self.bound_since = None;
            return if is_served && gate.request(epoch) {
                ParkStep::Ask { epoch }
            } else {
                ParkStep::Wait { epoch }
            };
        }
        if gate.may_launch(orders, true) {
            return ParkStep::Launch;
        }
        // Too much was in flight; some of it may have finished.
        work.reap();
        if gate.may_launch(orders, true) {
            return ParkStep::Launch;
        }
        // Of a launch longer than the bound so little may remain that the next one should be queued by the time it ends.
        if work.remaining_ns() < bound(orders) {
            return ParkStep::Exceed { is_counted: false };
        }
        // Streams run concurrently: while no process waits, no stream waits for the others.
        if orders.contended.load(Ordering::Relaxed) == 0 && work.is_stream_empty() {
            return ParkStep::Exceed { is_counted: false };
        }
        let since = *self.bound_since.get_or_insert(now);
        let in_flight = gate.word().in_flight();
        let wait_max = IN_FLIGHT_WAIT_MAX.saturating_add(in_flight.saturating_mul(4));
        if now.saturating_sub(since) > wait_max {
            return ParkStep::Exceed { is_counted: true };
        }
        ParkStep::Poll
    }

    /// Notes that the thread has waited at the gate for `waited` nanoseconds under `orders`. Returns whether the agent is hung: it had
    /// no heartbeat for [`HUNG_AFTER`], and its connection is to be closed.
    pub fn waited(&mut self, waited: u64, orders: &Orders, is_served: bool) -> bool {
        let waited = Duration::from_nanos(waited);
        self.silence
            .has_lasted(orders, is_served, waited, RECHECK_INTERVAL, HUNG_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of which `finished` ns are found to be done, with `remaining` ns left.
    #[derive(Default)]
    struct Fixed<'a> {
        gate: Option<&'a Gate>,
        finished: u64,
        remaining: u64,
        is_stream_empty: bool,
    }

    impl Work for Fixed<'_> {
        fn reap(&mut self) {
            if let Some(gate) = self.gate {
                gate.word().subtract(self.finished);
            }
        }

        fn remaining_ns(&mut self) -> u64 {
            self.remaining
        }

        fn is_stream_empty(&mut self) -> bool {
            self.is_stream_empty
        }
    }

    fn orders(epoch: u64) -> Orders {
        let orders = Orders::new();
        orders.gate.set(epoch);
        orders.inflight_us_max.store(10, Ordering::Relaxed);
        orders
    }

    /// Returns a gate whose bound is exceeded, under contention.
    fn full() -> (Gate, Orders) {
        let (gate, orders) = (Gate::new(), orders(2));
        orders.contended.store(1, Ordering::Relaxed);
        gate.word().add(10_000);
        (gate, orders)
    }

    #[test]
    fn a_closed_gate_is_asked_for_once_by_all_threads() {
        let (gate, orders) = (Gate::new(), orders(3));
        let mut work = Fixed::default();
        let (mut first, mut second) = (Parking::default(), Parking::default());
        let step = first.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Ask { epoch: 3 });
        for parking in [&mut first, &mut second] {
            let step = parking.step(0, &orders, &gate, true, &mut work);
            assert_eq!(step, ParkStep::Wait { epoch: 3 });
        }
        orders.gate.set(5);
        let step = second.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Ask { epoch: 5 });
    }

    #[test]
    fn nothing_is_asked_of_an_agent_that_does_not_serve() {
        let (gate, orders) = (Gate::new(), orders(3));
        let (mut parking, mut work) = (Parking::default(), Fixed::default());
        let step = parking.step(0, &orders, &gate, false, &mut work);
        assert_eq!(step, ParkStep::Wait { epoch: 3 });
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Ask { epoch: 3 }, "asked once it serves");
    }

    #[test]
    fn a_returned_token_is_asked_for_again_and_its_successor_opens_the_gate() {
        let (gate, orders) = (Gate::new(), orders(2));
        let (mut parking, mut work) = (Parking::default(), Fixed::default());
        let begun = gate.begin_give_back(&orders).unwrap();
        assert_eq!(gate.finish_give_back(begun, false), Some(2));
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Ask { epoch: 2 });
        orders.gate.set(3);
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Ask { epoch: 3 });
        orders.gate.set(4);
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Launch);
        assert!(!gate.is_given_back());
    }

    #[test]
    fn a_return_that_may_be_undone_is_neither_asked_about_nor_waited_for() {
        let (gate, orders) = (Gate::new(), orders(2));
        let (mut parking, mut work) = (Parking::default(), Fixed::default());
        let begun = gate.begin_give_back(&orders).unwrap();
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Poll);
        assert_eq!(gate.finish_give_back(begun, true), None);
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Launch);
    }

    #[test]
    fn finished_work_lets_the_launch_pass() {
        let (gate, orders) = full();
        let mut work = Fixed {
            gate: Some(&gate),
            finished: 1,
            remaining: 50_000,
            ..Fixed::default()
        };
        let step = Parking::default().step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Launch);
        assert_eq!(gate.word().in_flight(), 9_999);
    }

    #[test]
    fn a_launch_is_queued_before_the_last_one_ends() {
        let (gate, orders) = full();
        let mut work = Fixed {
            remaining: 9_999,
            ..Fixed::default()
        };
        let mut parking = Parking::default();
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Exceed { is_counted: false });
        work.remaining = 10_000;
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Poll);
    }

    #[test]
    fn an_empty_stream_waits_for_others_only_under_contention() {
        let (gate, orders) = full();
        let mut work = Fixed {
            remaining: 50_000,
            is_stream_empty: true,
            ..Fixed::default()
        };
        let mut parking = Parking::default();
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Poll);
        orders.contended.store(0, Ordering::Relaxed);
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Exceed { is_counted: false });
        work.is_stream_empty = false;
        let step = parking.step(0, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Poll);
    }

    #[test]
    fn the_bound_keeps_a_launch_back_for_a_limited_time() {
        let (gate, orders) = full();
        let mut work = Fixed {
            remaining: 50_000,
            ..Fixed::default()
        };
        let mut parking = Parking::default();
        let longest = IN_FLIGHT_WAIT_MAX + 4 * 10_000;
        for (now, expected) in [
            (5, ParkStep::Poll),
            (5 + longest, ParkStep::Poll),
            (6 + longest, ParkStep::Exceed { is_counted: true }),
        ] {
            assert_eq!(parking.step(now, &orders, &gate, true, &mut work), expected);
        }
    }

    #[test]
    fn a_closed_gate_restarts_the_time_of_the_bound() {
        let (gate, orders) = full();
        let mut work = Fixed {
            remaining: 50_000,
            ..Fixed::default()
        };
        let mut parking = Parking::default();
        assert_eq!(
            parking.step(0, &orders, &gate, true, &mut work),
            ParkStep::Poll
        );
        orders.gate.set(3);
        let second = 1_000_000_000;
        let step = parking.step(second, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Ask { epoch: 3 });
        orders.gate.set(4);
        let step = parking.step(2 * second, &orders, &gate, true, &mut work);
        assert_eq!(step, ParkStep::Poll);
    }

    #[test]
    fn an_agent_without_heartbeat_is_hung_after_a_second_of_waits() {
        let (mut parking, orders) = (Parking::default(), orders(3));
        let wait = crate::nanoseconds(RECHECK_INTERVAL);
        for _ in 0..20 {
            assert!(!parking.waited(wait, &orders, true));
        }
        assert!(parking.waited(wait, &orders, true));
    }
}
