//! Decisions of the mover thread, which moves the process's device memory to the host and back: by orders of the agent, and back by itself
//! where no agent is left to order it (invariant 6).

use std::sync::atomic::Ordering;

use protocol::page::{Orders, Residency};

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
    /// Waits until something changes.
    Sleep,
}

/// What the mover thread knows between its steps.
#[derive(Debug, Default)]
pub struct Mover {
    /// Identity of the page of orders.
    page: usize,
    /// Number of the last order of the page that was answered.
    answered: u32,
    /// Total host memory which was requested of the agent of this page, in bytes.
    requested: u64,
}

impl Mover {
    /// Creates a mover that has answered nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            page: 0,
            answered: 0,
            requested: 0,
        }
    }

    /// Returns what the thread does next.
    pub fn step(&mut self, orders: &Orders, situation: Situation) -> MoverStep {
        let page = page_of(orders);
        if page != self.page {
            // The numbers of a new page begin again, and what a former agent was asked for may have been lost with it.
            (self.page, self.answered, self.requested) = (page, 0, 0);
        }
        if !situation.has_agent {
            return if situation.is_away && orders.gate.is_open() {
                MoverStep::Restore { seq: 0 }
            } else {
                MoverStep::Sleep
            };
        }
        // Pairs with the agent, which stores the number last.
        let seq = orders.order_seq.load(Ordering::Acquire);
        if seq != self.answered {
            self.answered = seq;
            let wanted = orders.residency_wanted.load(Ordering::Relaxed);
            let to_host = wanted == Residency::Host as u32;
            return match (to_host, situation.is_away) {
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
        MoverStep::Sleep
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
    };
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
        assert_eq!(mover.step(&orders, HERE), MoverStep::Sleep);
        order(&orders, Residency::Host, 1);
        let evict = MoverStep::Evict {
            seq: 1,
            drain_ms: 1_000,
        };
        assert_eq!(mover.step(&orders, HERE), evict);
        assert_eq!(mover.step(&orders, AWAY), MoverStep::Sleep);
        order(&orders, Residency::Resident, 2);
        assert_eq!(mover.step(&orders, AWAY), MoverStep::Restore { seq: 2 });
        assert_eq!(mover.step(&orders, HERE), MoverStep::Sleep);
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
    fn the_orders_of_a_new_page_count_from_its_first() {
        let (first, second, mut mover) = (Orders::new(), Orders::new(), Mover::new());
        order(&first, Residency::Host, 1);
        let _evict = mover.step(&first, HERE);
        assert_eq!(mover.step(&second, AWAY), MoverStep::Sleep);
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
        assert_eq!(mover.step(&orders, alone), MoverStep::Sleep, "closed");
        orders.gate.set(2);
        assert_eq!(mover.step(&orders, alone), MoverStep::Restore { seq: 0 });
        let here = Situation {
            is_away: false,
            needed: 9,
            ..alone
        };
        assert_eq!(mover.step(&orders, here), MoverStep::Sleep);
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
        assert_eq!(mover.step(&orders, with(10, 0)), MoverStep::Sleep);
        assert_eq!(mover.step(&orders, with(12, 0)), request(12));
        assert_eq!(mover.step(&orders, with(15, 16)), MoverStep::Sleep);
        assert_eq!(mover.step(&orders, with(17, 16)), request(17));
        let next = Orders::new();
        assert_eq!(mover.step(&next, with(17, 16)), request(17));
    }
}
