//! Decisions of the mover thread, which moves the process's device memory to the host and back: by orders of the agent, and back by itself
//! where no agent is left to order it (invariant 6). Ahead of an eviction it seals: while nothing happens, it copies to the host what differs
//! from the copy there, so that the eviction itself copies nothing (contracts §6, residency).

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::page::{Orders, Residency, SEALED};

use crate::silence::page_of;

/// State of the process that the mover thread looks at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Situation {
    /// Whether the orders in effect are an agent's.
    pub has_agent: bool,
    /// Whether the memory is on the host.
    pub is_away: bool,
    /// Size of the host memory that a move to the host needs, in bytes.
    pub needed: u64,
    /// Size of the host memory that there is, in bytes.
    pub windows: u64,
    /// Number of launches and touches so far ([`crate::gate::Threads::calls`]).
    pub calls: u32,
    /// Whether the host has every byte of the memory.
    pub is_sealed: bool,
    /// Time of the step on the clock of the process, in nanoseconds.
    pub now: u64,
}

/// Next step of the mover thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum MoverStep {
    /// Moves the memory to the host, and answers the order.
    Evict {
        /// Number of the order.
        seq: u32,
        /// Time for which work in flight is waited for, in milliseconds.
        drain_ms: u32,
    },
    /// Moves the memory to the device, and answers the order; 0 if there is no agent.
    Restore {
        /// Number of the order.
        seq: u32,
    },
    /// Answers an order that is fulfilled.
    Confirm {
        /// Number of the order.
        seq: u32,
    },
    /// Requests host memory up to this total.
    Request {
        /// Total size in bytes.
        bytes: u64,
    },
    /// Copies what has changed to the host, and leaves the memory where it is.
    Seal,
    /// As [`Self::Seal`], and answers the order, whatever came of it.
    SealAndConfirm {
        /// Number of the order.
        seq: u32,
    },
    /// Waits until something changes.
    Sleep {
        /// Time after which the next step is due at the latest.
        at_most: Duration,
    },
}

/// Longest time for which the mover thread sleeps.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// What the mover thread knows between its steps.
#[derive(Debug, Default)]
pub struct Mover {
    /// Identity of the page of orders.
    page: usize,
    /// Number of the last order of the page that was answered.
    answered: u32,
    /// Total host memory which was requested of the agent of this page, in bytes.
    requested: u64,
    /// Number of launches and touches at the last step.
    calls: u32,
    /// Time since which there are no more of them, or at which it was tried to seal, in nanoseconds.
    quiet_since: u64,
}

impl Mover {
    /// Creates a mover that has answered nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            page: 0,
            answered: 0,
            requested: 0,
            calls: 0,
            quiet_since: 0,
        }
    }

    /// Notes that an eviction was refused for want of host memory: it is requested again, since an earlier request may have been lost, or have
    /// come while the node had none.
    pub const fn lacks_windows(&mut self) {
        self.requested = 0;
    }

    /// Returns what the thread does next.
    pub fn step(&mut self, orders: &Orders, situation: Situation) -> MoverStep {
        if situation.calls != self.calls {
            (self.calls, self.quiet_since) = (situation.calls, situation.now);
        }
        let page = page_of(orders);
        if page != self.page {
            // The numbers of a new page begin again, and what a former agent was asked for may have been lost with it.
            (self.page, self.answered, self.requested) = (page, 0, 0);
        }
        if !situation.has_agent {
            return if situation.is_away && orders.gate.is_open() {
                MoverStep::Restore { seq: 0 }
            } else {
                MoverStep::Sleep { at_most: SLEEP_MAX }
            };
        }
        // Pairs with the agent, which stores the number last.
        let seq = orders.order_seq.load(Ordering::Acquire);
        if seq != self.answered {
            self.answered = seq;
            let wanted = orders.residency_wanted.load(Ordering::Relaxed);
            if wanted == SEALED && !situation.is_away && !situation.is_sealed {
                return MoverStep::SealAndConfirm { seq };
            }
            let to_host = wanted == Residency::Host as u32;
            return match (to_host, situation.is_away && wanted != SEALED) {
                (true, false) => MoverStep::Evict {
                    seq,
                    drain_ms: orders.drain_ms.load(Ordering::Relaxed),
                },
                (false, true) => MoverStep::Restore { seq },
                _ => MoverStep::Confirm { seq },
            };
        }
        let needed = situation.needed;
        if needed > situation.windows && needed > self.requested {
            self.requested = needed;
            return MoverStep::Request { bytes: needed };
        }
        self.seal(orders, situation)
    }

    /// Returns whether to seal now, or how long to sleep: until a process that computes nothing, on a slot for which none waits, has done so
    /// for the time in the orders.
    fn seal(&mut self, orders: &Orders, situation: Situation) -> MoverStep {
        let after_ms = orders.seal_after_ms.load(Ordering::Relaxed);
        let is_possible = after_ms > 0
            && !situation.is_away
            && !situation.is_sealed
            && (1..=situation.windows).contains(&situation.needed)
            && orders.gate.is_open()
            && orders.contended.load(Ordering::Relaxed) == 0;
        let after = Duration::from_millis(u64::from(after_ms));
        let quiet = Duration::from_nanos(situation.now.saturating_sub(self.quiet_since));
        if !is_possible {
            MoverStep::Sleep { at_most: SLEEP_MAX }
        } else if quiet >= after {
            // Whatever comes of it, the next attempt is as far away.
            self.quiet_since = situation.now;
            MoverStep::Seal
        } else {
            MoverStep::Sleep {
                at_most: (after - quiet).min(SLEEP_MAX),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Situation = Situation {
        has_agent: true,
        is_away: false,
        needed: 0,
        windows: 0,
        calls: 0,
        is_sealed: false,
        now: 0,
    };
    const SLEEP: MoverStep = MoverStep::Sleep { at_most: SLEEP_MAX };
    const AWAY: Situation = Situation {
        is_away: true,
        ..HERE
    };

    fn order(orders: &Orders, wanted: Residency, seq: u32) {
        orders
            .residency_wanted
            .store(wanted as u32, Ordering::Relaxed);
        orders.drain_ms.store(1_000, Ordering::Relaxed);
        orders.order_seq.store(seq, Ordering::Release);
    }

    #[test]
    fn an_order_is_carried_out_once() {
        let (orders, mut mover) = (Orders::new(), Mover::new());
        assert_eq!(mover.step(&orders, HERE), SLEEP);
        order(&orders, Residency::Host, 1);
        let evict = MoverStep::Evict {
            seq: 1,
            drain_ms: 1_000,
        };
        assert_eq!(mover.step(&orders, HERE), evict);
        assert_eq!(mover.step(&orders, AWAY), SLEEP);
        order(&orders, Residency::Resident, 2);
        assert_eq!(mover.step(&orders, AWAY), MoverStep::Restore { seq: 2 });
        assert_eq!(mover.step(&orders, HERE), SLEEP);
    }

    #[test]
    fn a_fulfilled_order_is_confirmed() {
        let (orders, mut mover) = (Orders::new(), Mover::new());
        order(&orders, Residency::Resident, 1);
        assert_eq!(mover.step(&orders, HERE), MoverStep::Confirm { seq: 1 });
        order(&orders, Residency::Host, 2);
        assert_eq!(mover.step(&orders, AWAY), MoverStep::Confirm { seq: 2 });
    }

    #[test]
    fn an_order_to_seal_moves_nothing_and_is_answered_once() {
        let (orders, mut mover) = (Orders::new(), Mover::new());
        let seal = |seq| {
            orders.residency_wanted.store(SEALED, Ordering::Relaxed);
            orders.order_seq.store(seq, Ordering::Release);
        };
        seal(1);
        assert_eq!(
            mover.step(&orders, HERE),
            MoverStep::SealAndConfirm { seq: 1 }
        );
        assert_eq!(mover.step(&orders, HERE), SLEEP);
        seal(2);
        let sealed = Situation {
            is_sealed: true,
            ..HERE
        };
        assert_eq!(mover.step(&orders, sealed), MoverStep::Confirm { seq: 2 });
        seal(3);
        assert_eq!(mover.step(&orders, AWAY), MoverStep::Confirm { seq: 3 });
    }

    #[test]
    fn the_orders_of_a_new_page_count_from_its_first() {
        let (first, second, mut mover) = (Orders::new(), Orders::new(), Mover::new());
        order(&first, Residency::Host, 1);
        let _evict = mover.step(&first, HERE);
        assert_eq!(mover.step(&second, AWAY), SLEEP);
        order(&second, Residency::Resident, 1);
        assert_eq!(mover.step(&second, AWAY), MoverStep::Restore { seq: 1 });
    }

    #[test]
    fn a_process_without_an_agent_restores_itself_once_launches_pass() {
        let (orders, mut mover) = (Orders::new(), Mover::new());
        let alone = Situation {
            has_agent: false,
            ..AWAY
        };
        assert_eq!(mover.step(&orders, alone), SLEEP, "closed");
        orders.gate.set(2);
        assert_eq!(mover.step(&orders, alone), MoverStep::Restore { seq: 0 });
        let here = Situation {
            is_away: false,
            needed: 9,
            ..alone
        };
        assert_eq!(mover.step(&orders, here), SLEEP);
    }

    #[test]
    fn host_memory_is_requested_once_for_each_amount_and_page() {
        let (orders, mut mover) = (Orders::new(), Mover::new());
        let with = |needed, windows| Situation {
            needed,
            windows,
            ..HERE
        };
        let request = |bytes| MoverStep::Request { bytes };
        assert_eq!(mover.step(&orders, with(10, 0)), request(10));
        assert_eq!(mover.step(&orders, with(10, 0)), SLEEP);
        assert_eq!(mover.step(&orders, with(12, 0)), request(12));
        assert_eq!(mover.step(&orders, with(15, 16)), SLEEP);
        assert_eq!(mover.step(&orders, with(17, 16)), request(17));
        let next = Orders::new();
        assert_eq!(mover.step(&next, with(17, 16)), request(17));
    }

    #[test]
    fn host_memory_is_requested_again_once_an_eviction_lacks_it() {
        let (orders, mut mover) = (Orders::new(), Mover::new());
        let needs = Situation { needed: 10, ..HERE };
        assert_eq!(mover.step(&orders, needs), MoverStep::Request { bytes: 10 });
        assert_eq!(mover.step(&orders, needs), SLEEP);
        mover.lacks_windows();
        assert_eq!(mover.step(&orders, needs), MoverStep::Request { bytes: 10 });
    }

    #[test]
    fn a_process_seals_once_it_has_been_quiet_for_long_enough() {
        const MS: u64 = 1_000_000;
        let (orders, mut mover) = (Orders::new(), Mover::new());
        orders.gate.set(2);
        let at = |ms, calls| Situation {
            needed: 4,
            windows: 4,
            calls,
            now: ms * MS,
            ..HERE
        };
        assert_eq!(mover.step(&orders, at(0, 1)), SLEEP, "never, by the orders");
        orders.seal_after_ms.store(300, Ordering::Relaxed);
        let sleep = |ms| MoverStep::Sleep {
            at_most: Duration::from_millis(ms),
        };
        assert_eq!(mover.step(&orders, at(100, 1)), sleep(200));
        assert_eq!(mover.step(&orders, at(250, 2)), sleep(300), "a launch");
        assert_eq!(mover.step(&orders, at(549, 2)), sleep(1));
        assert_eq!(mover.step(&orders, at(550, 2)), MoverStep::Seal);
        // It was interrupted; the next attempt is as far away.
        assert_eq!(mover.step(&orders, at(560, 2)), sleep(290));
        assert_eq!(mover.step(&orders, at(850, 2)), MoverStep::Seal);
        let sealed = Situation {
            is_sealed: true,
            ..at(9_000, 2)
        };
        assert_eq!(mover.step(&orders, sealed), SLEEP);
    }

    #[test]
    fn no_process_seals_without_room_token_or_peace() {
        type Change<'a> = &'a dyn Fn(&Orders, &mut Situation);
        let with = |change: Change<'_>| {
            let (orders, mut mover) = (Orders::new(), Mover::new());
            orders.gate.set(2);
            orders.seal_after_ms.store(1, Ordering::Relaxed);
            let mut situation = Situation {
                needed: 4,
                windows: 4,
                now: 1 << 40,
                ..HERE
            };
            change(&orders, &mut situation);
            mover.step(&orders, situation)
        };
        assert_eq!(with(&|_, _| {}), MoverStep::Seal);
        let refused: [Change<'_>; 5] = [
            &|orders, _| orders.gate.set(3),
            &|orders, _| orders.contended.store(1, Ordering::Relaxed),
            &|_, situation| situation.is_away = true,
            &|_, situation| situation.needed = 0,
            &|_, situation| situation.has_agent = false,
        ];
        for change in refused {
            assert_eq!(with(change), SLEEP);
        }
        let lacks = with(&|_, situation| situation.windows = 3);
        assert_eq!(lacks, MoverStep::Request { bytes: 4 });
    }
}
