//! Decisions of the watch thread: it drains work in flight when the agent has closed the gate, and returns a token that the program
//! does not use while other processes wait for it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::page::Orders;

use crate::gate::Gate;
use crate::silence::page_of;

/// Interval at which use of the token is checked while other processes wait for it.
pub const CONTENDED_INTERVAL: Duration = Duration::from_micros(250);
/// Interval with nothing to do; a change of the orders wakes the thread earlier.
pub const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval where no event can be waited for.
pub const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Next step of the watch thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum WatchStep {
    /// The agent has closed the gate: the thread waits until no launch is in progress and nothing is in flight, publishes the kernel
    /// time, and sends `Closed` with this epoch.
    ///
    /// The agent may reopen the gate meanwhile; it ignores the answer to an old epoch.
    Drain {
        /// Even epoch which the agent has ended.
        epoch: u64,
    },
    /// Other processes wait: the thread waits for the work that was found.
    WaitForWork,
    /// Other processes wait and the token is not used: the thread returns it, with [`Gate::begin_give_back`]. On success it calls
    /// [`Watch::gave_back`], and else it sleeps as in [`Self::Sleep`].
    GiveBack {
        /// Longest time to sleep if the token is kept.
        interval: Duration,
    },
    /// The thread sleeps until the word `attention` of the orders changes, from its value before [`Watch::step`], for at most this
    /// time.
    Sleep {
        /// Longest time to sleep.
        interval: Duration,
    },
}

/// What the watch thread knows between its steps.
#[derive(Debug)]
pub struct Watch {
    /// Identity of the page, and epoch of its gate, that were answered last.
    answered: (usize, u64),
    /// Number of launches at the last step under contention; `u64::MAX` if the token was in use.
    launches: u64,
    /// Identity of the page, and number of its last order about the memory, that was seen.
    order: (usize, u32),
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

impl Watch {
    /// Creates a watch that has answered nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            answered: (0, 0),
            launches: u64::MAX,
            order: (0, 0),
        }
    }

    /// Returns whether the page has an order about the memory that was not seen before.
    pub fn has_new_order(&mut self, orders: &Orders) -> bool {
        let order = (page_of(orders), orders.order_seq.load(Ordering::Acquire));
        let is_new = order != self.order && order.1 != 0;
        self.order = order;
        is_new
    }

    /// Returns what the thread does next. `launches` is the number of launches so far; `has_work` looks for unfinished work, and is
    /// called only while other processes wait.
    pub fn step(
        &mut self,
        orders: &Orders,
        gate: &Gate,
        launches: u64,
        has_work: impl FnOnce() -> bool,
    ) -> WatchStep {
        let epoch = orders.gate.epoch();
        let page = page_of(orders);
        if epoch == 1 {
            // A page of this library's own, without an agent, so an answer has no reader. An agent ignores the answer to a new page of its own.
            self.answered = (page, 1);
        }
        let idle = WatchStep::Sleep {
            interval: IDLE_INTERVAL,
        };
        if epoch & 1 == 1 {
            if gate.was_given_back(epoch - 1) {
                // The agent has only acknowledged the returned token.
                self.answered = (page, epoch);
            }
            if self.answered == (page, epoch) {
                return idle;
            }
            self.answered = (page, epoch);
            return WatchStep::Drain { epoch: epoch - 1 };
        }
        if orders.contended.load(Ordering::Acquire) == 0 || gate.is_given_back() {
            return idle;
        }
        if has_work() {
            self.launches = u64::MAX;
            return WatchStep::WaitForWork;
        }
        let is_unused = launches == self.launches || gate.usually_pauses();
        self.launches = launches;
        let interval = CONTENDED_INTERVAL;
        if is_unused {
            WatchStep::GiveBack { interval }
        } else {
            WatchStep::Sleep { interval }
        }
    }

    /// Notes that the thread has returned the token.
    pub const fn gave_back(&mut self) {
        self.launches = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: WatchStep = WatchStep::Sleep {
        interval: IDLE_INTERVAL,
    };
    const CONTENDED: WatchStep = WatchStep::Sleep {
        interval: CONTENDED_INTERVAL,
    };
    const GIVE_BACK: WatchStep = WatchStep::GiveBack {
        interval: CONTENDED_INTERVAL,
    };

    fn orders(epoch: u64, contended: u32) -> Orders {
        let orders = Orders::new();
        orders.gate.set(epoch);
        orders.contended.store(contended, Ordering::Relaxed);
        orders
    }

    fn unasked() -> bool {
        panic!("work is looked for only while other processes wait")
    }

    #[test]
    fn an_order_about_the_memory_is_seen_once() {
        let mut watch = Watch::new();
        let (first, second) = (orders(2, 0), orders(2, 0));
        assert!(!watch.has_new_order(&first));
        first.order_seq.store(1, Ordering::Release);
        assert!(watch.has_new_order(&first) && !watch.has_new_order(&first));
        assert!(!watch.has_new_order(&second));
        second.order_seq.store(1, Ordering::Release);
        assert!(watch.has_new_order(&second));
    }

    #[test]
    fn a_page_without_an_agent_needs_no_answer() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), Orders::new());
        assert_eq!(watch.step(&orders, &gate, 0, unasked), IDLE);
    }

    #[test]
    fn each_closed_epoch_is_drained_and_answered_once() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), orders(3, 0));
        for epoch in [3, 5] {
            orders.gate.set(epoch);
            let drain = WatchStep::Drain { epoch: epoch - 1 };
            assert_eq!(watch.step(&orders, &gate, 0, unasked), drain);
            assert_eq!(watch.step(&orders, &gate, 0, unasked), IDLE);
            orders.gate.set(epoch + 1);
            assert_eq!(watch.step(&orders, &gate, 0, unasked), IDLE);
        }
    }

    #[test]
    fn the_same_epoch_of_another_page_is_answered_again() {
        let (mut watch, gate) = (Watch::new(), Gate::new());
        for page in [&orders(3, 0), &orders(3, 0)] {
            let drain = WatchStep::Drain { epoch: 2 };
            assert_eq!(watch.step(page, &gate, 0, unasked), drain);
        }
    }

    #[test]
    fn the_acknowledgement_of_a_returned_token_is_not_answered() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), orders(2, 1));
        let begun = gate.begin_give_back(&orders).unwrap();
        assert_eq!(gate.finish_give_back(begun, false), Some(2));
        assert_eq!(watch.step(&orders, &gate, 0, unasked), IDLE);
        orders.gate.set(3);
        assert_eq!(watch.step(&orders, &gate, 0, unasked), IDLE);
    }

    #[test]
    fn a_return_by_another_thread_that_may_be_undone_is_not_relied_on() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), orders(2, 1));
        let begun = gate.begin_give_back(&orders).unwrap();
        // Were it taken for returned, the thread would sleep for long and answer nothing.
        assert_eq!(watch.step(&orders, &gate, 7, || false), CONTENDED);
        orders.gate.set(3);
        let drain = WatchStep::Drain { epoch: 2 };
        assert_eq!(watch.step(&orders, &gate, 7, unasked), drain);
        assert_eq!(gate.finish_give_back(begun, true), None);
    }

    #[test]
    fn a_token_without_launches_between_two_steps_is_returned() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), orders(2, 1));
        assert_eq!(watch.step(&orders, &gate, 7, || false), CONTENDED);
        assert_eq!(watch.step(&orders, &gate, 8, || false), CONTENDED);
        assert_eq!(watch.step(&orders, &gate, 8, || false), GIVE_BACK);
        // It was kept, so the next step tries again.
        assert_eq!(watch.step(&orders, &gate, 8, || false), GIVE_BACK);
        watch.gave_back();
        assert_eq!(watch.step(&orders, &gate, 8, || false), CONTENDED);
    }

    #[test]
    fn unfinished_work_is_waited_for_and_counts_as_use() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), orders(2, 1));
        assert_eq!(watch.step(&orders, &gate, 8, || false), CONTENDED);
        let step = watch.step(&orders, &gate, 8, || true);
        assert_eq!(step, WatchStep::WaitForWork);
        assert_eq!(watch.step(&orders, &gate, 8, || false), CONTENDED);
    }

    #[test]
    fn a_program_that_usually_pauses_returns_its_token_at_once() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), orders(2, 1));
        assert!(!gate.after_host_wait(1, &orders));
        gate.begin_burst(4_000_000);
        assert!(gate.usually_pauses());
        assert_eq!(watch.step(&orders, &gate, 7, || false), GIVE_BACK);
        assert_eq!(watch.step(&orders, &gate, 9, || false), GIVE_BACK);
    }

    #[test]
    fn a_token_without_contention_is_kept() {
        let (mut watch, gate, orders) = (Watch::new(), Gate::new(), orders(2, 0));
        for _ in 0..3 {
            assert_eq!(watch.step(&orders, &gate, 8, unasked), IDLE);
        }
    }
}
