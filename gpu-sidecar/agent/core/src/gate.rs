//! The agent's view of a process's gate: its epoch, and what the process was ordered last.
//!
//! ```text
//!          wait             open              shut                returned
//!   Idle ───────> Waiting ───────> Open ─────────────> Closing ────────────> Idle
//!    ^               │               │                    │
//!    └── withdraw ───┘               └──── returned ──────┴── revoked: Idle, or Waiting if a token was requested meanwhile
//! ```
//!
//! The epoch is even exactly while the gate is open, and only ever increases. A report about another epoch than the one which is
//! held, or closing, is late and is ignored ([`Gate::is_current`]). A thread of the process may report on a gate of its former
//! pages after it has got new ones, so a new gate begins at an epoch which no earlier one of the process can have reached: twice
//! the time in microseconds.

use crate::action::Order;

/// State of the gate of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateState {
    /// Shut; no token is requested.
    Idle,
    /// Shut; a token was requested at this time.
    Waiting {
        /// Time of the request, in nanoseconds.
        since: u64,
    },
    /// Open: the process holds a token.
    Open,
    /// Shut, while the return of the token is outstanding.
    Closing {
        /// Time of the order to close, in nanoseconds.
        since: u64,
    },
}

/// Gate of one process.
#[derive(Debug)]
pub(crate) struct Gate {
    epoch: u64,
    state: GateState,
    /// Time since which other processes wait for the SMs of this one, in nanoseconds.
    contended_since: Option<u64>,
    /// Whether the process has requested another token since the grant of the current one.
    requests_again: bool,
}

/// What the return of a token leaves to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Returned {
    /// Order to write.
    pub(crate) order: Option<Order>,
    /// Time of the order to close, in nanoseconds, unless the process returned the token by itself.
    pub(crate) closing_since: Option<u64>,
    /// Time since which other processes waited for its SMs, in nanoseconds.
    pub(crate) contended_since: Option<u64>,
    /// Whether the process has requested another token meanwhile.
    pub(crate) requests_again: bool,
}

impl Gate {
    /// Creates the gate of a process with new pages. `former`: last epoch of its gate in former pages; 0 where none are known.
    pub(crate) fn new(is_open: bool, former: u64, now: u64) -> Self {
        let begin = (now / 1_000 * 2 + 2).max((former | 1) + 1);
        Self {
            epoch: if is_open { begin } else { begin + 1 },
            state: if is_open {
                GateState::Open
            } else {
                GateState::Idle
            },
            contended_since: None,
            requests_again: false,
        }
    }

    /// Returns the epoch: even while the gate is open.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) const fn state(&self) -> GateState {
        self.state
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == GateState::Open
    }

    /// Returns whether the process holds a token, or has not returned it yet.
    pub(crate) const fn is_held(&self) -> bool {
        matches!(self.state, GateState::Open | GateState::Closing { .. })
    }

    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.state, GateState::Waiting { .. })
    }

    /// Returns whether a report concerns the token which is held, or whose return is outstanding. Its epoch is even.
    pub(crate) fn is_current(&self, epoch: u64) -> bool {
        match self.state {
            GateState::Open => epoch == self.epoch,
            GateState::Closing { .. } => epoch.checked_add(1) == Some(self.epoch),
            GateState::Idle | GateState::Waiting { .. } => false,
        }
    }

    /// Records a request by a thread which found the gate shut at this epoch. Returns whether the process waits from now on:
    /// it does not if it waits already, and a holder's request counts once its token is returned.
    pub(crate) fn request(&mut self, epoch: u64, now: u64) -> bool {
        match self.state {
            GateState::Idle => {
                self.wait(now);
                true
            }
            GateState::Waiting { .. } => false,
            GateState::Open => {
                // From before the grant, or from a thread which found the gate shut from inside.
                self.requests_again |= epoch == self.epoch;
                false
            }
            GateState::Closing { .. } => {
                self.requests_again = true;
                false
            }
        }
    }

    /// Lets an idle process wait for a token.
    pub(crate) const fn wait(&mut self, now: u64) {
        self.state = GateState::Waiting { since: now };
        self.requests_again = false;
    }

    /// Withdraws the request of a waiting process. Returns whether there was one.
    pub(crate) const fn withdraw(&mut self) -> bool {
        let was_waiting = self.is_waiting();
        if was_waiting {
            self.state = GateState::Idle;
        }
        was_waiting
    }

    /// Opens the gate. Returns the order, and the time for which the process has waited, in nanoseconds.
    pub(crate) fn open(&mut self, until: u64, inflight_us_max: u32, now: u64) -> (Order, u64) {
        let waited = match self.state {
            GateState::Waiting { since } => now.saturating_sub(since),
            _ => 0,
        };
        self.epoch += 1 + (self.epoch + 1) % 2;
        self.state = GateState::Open;
        self.contended_since = None;
        self.requests_again = false;
        let order = Order::Open {
            epoch: self.epoch,
            until,
            inflight_us_max,
        };
        (order, waited)
    }

    /// Shuts an open gate, until the process reports that nothing is in flight.
    pub(crate) fn shut(&mut self, now: u64) -> Option<Order> {
        if !self.is_open() {
            return None;
        }
        self.epoch += 1;
        self.state = GateState::Closing { since: now };
        Some(Order::Shut { epoch: self.epoch })
    }

    /// Publishes whether other processes wait for its SMs.
    pub(crate) fn contend(&mut self, contended: bool, inflight_us_max: u32, now: u64) -> Order {
        self.contended_since = contended.then_some(now);
        Order::Contended {
            contended,
            inflight_us_max,
        }
    }

    /// Records that the process has returned its token and shut the gate from inside.
    pub(crate) fn returned(&mut self) -> Returned {
        let is_open = self.is_open();
        let returned = self.end();
        let order = is_open.then_some(Order::Acknowledge { epoch: self.epoch });
        Returned { order, ..returned }
    }

    /// Takes the token back without an answer of the process.
    pub(crate) fn revoke(&mut self) -> Returned {
        let is_open = self.is_open();
        let returned = self.end();
        let order = is_open.then_some(Order::Shut { epoch: self.epoch });
        Returned { order, ..returned }
    }

    fn end(&mut self) -> Returned {
        if self.is_open() {
            self.epoch += 1;
        }
        let closing_since = match self.state {
            GateState::Closing { since } => Some(since),
            _ => None,
        };
        self.state = GateState::Idle;
        Returned {
            order: None,
            closing_since,
            contended_since: self.contended_since.take().or(closing_since),
            requests_again: std::mem::take(&mut self.requests_again),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_even_exactly_while_the_gate_is_open() {
        let mut gate = Gate::new(false, 0, 0);
        assert_eq!((gate.epoch(), gate.state()), (3, GateState::Idle));
        assert!(gate.request(3, 5));
        assert!(!gate.request(3, 6), "it waits already");
        let (order, waited) = gate.open(90, 7, 25);
        assert_eq!(waited, 20);
        let (epoch, until, inflight_us_max) = (4, 90, 7);
        assert_eq!(
            order,
            Order::Open {
                epoch,
                until,
                inflight_us_max
            }
        );
        assert_eq!(gate.shut(30), Some(Order::Shut { epoch: 5 }));
        assert_eq!(gate.shut(31), None);
        // A new grant while the return is outstanding.
        let (order, _) = gate.open(90, 7, 35);
        assert!(matches!(order, Order::Open { epoch: 6, .. }));
        assert_eq!(gate.revoke().order, Some(Order::Shut { epoch: 7 }));
        assert_eq!(gate.state(), GateState::Idle);
    }

    #[test]
    fn only_reports_of_the_current_token_count() {
        let mut gate = Gate::new(true, 0, 0);
        assert!(gate.is_current(2) && !gate.is_current(1) && !gate.is_current(4));
        assert!(gate.shut(10).is_some());
        assert!(gate.is_current(2) && !gate.is_current(3));
        assert_eq!(gate.returned().closing_since, Some(10));
        assert!(!gate.is_current(2), "it was returned already");
        assert!(!gate.is_current(u64::MAX));
    }

    #[test]
    fn a_holder_requests_its_next_token_with_the_epoch_of_the_current_one() {
        let mut gate = Gate::new(true, 0, 0);
        assert!(!gate.request(1, 0), "from before the grant");
        assert!(!gate.returned().requests_again);
        let mut gate = Gate::new(true, 0, 0);
        assert!(!gate.request(2, 0));
        let returned = gate.returned();
        assert!(returned.requests_again);
        assert_eq!(returned.order, Some(Order::Acknowledge { epoch: 3 }));
        // While it closes, any request counts.
        let mut gate = Gate::new(true, 0, 0);
        assert!(gate.shut(1).is_some());
        assert!(!gate.request(1, 0));
        assert!(gate.revoke().requests_again);
    }

    #[test]
    fn waiting_others_count_from_the_order_to_close_at_the_latest() {
        let mut gate = Gate::new(true, 0, 0);
        let _order = gate.contend(true, 1, 40);
        assert!(gate.shut(50).is_some());
        assert_eq!(gate.returned().contended_since, Some(40));
        let mut gate = Gate::new(true, 0, 0);
        let _order = gate.contend(true, 1, 40);
        let _order = gate.contend(false, 1, 45);
        assert!(gate.shut(50).is_some());
        assert_eq!(gate.revoke().contended_since, Some(50));
    }

    #[test]
    fn a_withdrawn_request_leaves_the_gate_idle() {
        let mut gate = Gate::new(false, 0, 0);
        assert!(!gate.withdraw());
        assert!(gate.request(1, 5));
        assert!(gate.withdraw());
        assert!(gate.request(1, 6), "it waits anew");
    }

    #[test]
    fn a_report_on_the_gate_of_former_pages_is_ignored() {
        const SECOND: u64 = 1_000_000_000;
        let mut former = Gate::new(true, 0, SECOND);
        for turn in 1..100_u64 {
            assert!(former.shut(SECOND + turn * 20_000).is_some());
            let _order = former.open(0, 1, SECOND + turn * 20_000 + 10_000);
        }
        let next = Gate::new(true, 0, SECOND + 2_000_000);
        assert!(next.epoch() > former.epoch());
        assert!(next.is_open() && !next.is_current(former.epoch()));
        // Whatever the clock shows.
        for is_open in [false, true] {
            let next = Gate::new(is_open, former.epoch(), SECOND);
            assert!(next.epoch() > former.epoch());
            assert_eq!(next.epoch() & 1 == 0, is_open);
        }
    }
}
