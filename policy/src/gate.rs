//! The concurrency gate: at most `concurrency` requests at the user container, and at most `depth` waiting.
//!
//! The depth rule is Knative's (`pkg/queue/breaker.go` there): `concurrency + depth` requests are held, and the next
//! one is refused. Waiting requests start in the order of [`crate::queue`]. [`Late`] decides what happens to late ones;
//! at a full queue, a newcomer that can meet its objective displaces the waiting late request with the latest arrival
//! (contracts §1).
//!
//! The gate is always work-conserving: while a request waits, every place is taken, or the gate is shut ([`Gate::set_shut`]), as without the lease
//! of a slot (contracts §7). Nothing starts at a shut gate; requests are held up to the same number, and all else goes on.
//!
//! # Examples
//!
//! ```
//! use policy::gate::{Action, Admission, Arrival, DispatchReason, Gate, Late, Order, Settings};
//! use policy::{RequestId, Span, Time};
//!
//! let (order, late) = (Order::Deadline, Late::Serve);
//! let mut gate = Gate::new(Settings { concurrency: 1, depth: 10, order, late });
//! let arrival = |id| Arrival {
//!     id: RequestId(id),
//!     at: Time(id),
//!     key: Time(1_000),
//!     objective: Span(1_000),
//!     kept: false,
//! };
//! let mut actions = Vec::new();
//! let admission = gate.arrive(Time(1), arrival(1), &mut actions);
//! assert_eq!(admission, Admission::Dispatch(DispatchReason::Free));
//! let admission = gate.arrive(Time(2), arrival(2), &mut actions);
//! assert!(matches!(admission, Admission::Wait(_)));
//! gate.depart(Time(3), &mut actions);
//! assert!(matches!(actions[..], [Action::Dispatch { id: RequestId(2), .. }]));
//! ```

use crate::line::Line;
use crate::queue::{Ticket, Waiting};
use crate::{RequestId, Span, Time};

pub use crate::line::{
    AGING_OBJECTIVES, AGING_PERIOD, Arrival, DispatchReason, KEPT_PERIOD, Late, Order, RefuseReason,
};

/// Fixed settings of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of requests that may be at the user container at once; at least 1.
    pub concurrency: u32,
    /// Number of requests that may wait at once.
    pub depth: usize,
    /// Order in which waiting requests start.
    pub order: Order,
    /// Treatment of late requests; without effect under [`Order::Arrival`].
    pub late: Late,
}

/// Immediate outcome for an arriving request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The request starts now.
    Dispatch(DispatchReason),
    /// The request waits; a later [`Action`] names this ticket.
    Wait(Ticket),
    /// The request is refused.
    Refuse(RefuseReason),
}

/// Decision about a request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request starts now.
    Dispatch {
        /// Ticket with which the request waited.
        ticket: Ticket,
        /// Id of the request.
        id: RequestId,
        /// Reason why this request starts now.
        reason: DispatchReason,
    },
    /// The request loses its place.
    Refuse {
        /// Ticket with which the request waited.
        ticket: Ticket,
        /// Id of the request.
        id: RequestId,
        /// Reason why the request is refused.
        reason: RefuseReason,
    },
}

/// Concurrency gate; see the [module](self).
#[derive(Debug, Clone)]
pub struct Gate {
    settings: Settings,
    running: u32,
    line: Line,
    is_shut: bool,
    /// Time by which the keys of waiting requests are earlier than they arrived with.
    ahead: Span,
}

impl Gate {
    /// Creates a gate with every place free.
    ///
    /// # Panics
    /// Panics if `concurrency` is zero, since such a gate would never open.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        assert!(settings.concurrency > 0, "concurrency must be at least 1");
        Self {
            settings,
            running: 0,
            line: Line::new(settings.depth, settings.order, settings.late),
            is_shut: false,
            ahead: Span::ZERO,
        }
    }

    /// Shuts the gate, at which nothing starts from then on, or opens it: the next waiting requests start.
    pub fn set_shut(&mut self, now: Time, is_shut: bool, actions: &mut Vec<Action>) {
        self.is_shut = is_shut;
        self.wake(now, actions);
        self.set_depth();
        self.start(now, actions);
    }

    /// Returns whether the gate is shut.
    #[must_use]
    pub const fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// Sets the time that every request needs besides its execution, such as that of loading its model: all keys are earlier by it. Requests that
    /// have become late by it are shed at the next [`Gate::wake`].
    pub fn set_ahead(&mut self, now: Time, ahead: Span) {
        let before = std::mem::replace(&mut self.ahead, ahead);
        if before != ahead {
            self.line
                .rekey_by_slot(now, |_, waiting| earlier(waiting.key.after(before), ahead));
        }
    }

    /// Returns the next request to start apart from ageing, and its ticket. Its key is earlier by the time of [`Gate::set_ahead`].
    #[must_use]
    pub fn head(&mut self, now: Time) -> Option<(Ticket, Waiting)> {
        self.line.head(now)
    }

    /// Sets the number of requests that may wait: with those that run, as many are held whether the gate is shut or not.
    fn set_depth(&mut self) {
        let free = if self.is_shut {
            self.settings.concurrency.saturating_sub(self.running)
        } else {
            0
        };
        let depth = self.settings.depth.saturating_add(free as usize);
        self.line.set_depth(depth);
    }

    /// Starts waiting requests while there are places.
    fn start(&mut self, now: Time, actions: &mut Vec<Action>) {
        while !self.is_shut
            && self.running < self.settings.concurrency
            && let Some((left, reason)) = self.line.next(now)
        {
            self.running += 1;
            actions.push(Action::Dispatch {
                ticket: left.ticket,
                id: left.waiting.id,
                reason,
            });
        }
    }

    /// Returns the settings of this gate.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the number of requests at the user container.
    #[must_use]
    pub const fn running(&self) -> u32 {
        self.running
    }

    /// Returns the number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Returns the time after which a refused request is worth retrying: the time until the requests before it have
    /// finished, if each takes `execution`.
    #[must_use]
    pub fn retry_after(&self, execution: Span) -> Span {
        let ahead = self.waiting() as u64 + u64::from(self.running);
        Span(execution.0.saturating_mul(ahead) / u64::from(self.settings.concurrency))
    }

    /// Handles the arrival of a request and returns its immediate outcome. Other requests may lose their place to it;
    /// they are appended to `actions`.
    pub fn arrive(&mut self, now: Time, arrival: Arrival, actions: &mut Vec<Action>) -> Admission {
        self.admit(now, arrival, false, actions)
    }

    fn admit(
        &mut self,
        now: Time,
        arrival: Arrival,
        is_again: bool,
        actions: &mut Vec<Action>,
    ) -> Admission {
        self.wake(now, actions);
        if self.running < self.settings.concurrency && !self.is_shut {
            debug_assert!(self.line.is_empty(), "a place is free while requests wait");
            self.running += 1;
            self.line.pass();
            return Admission::Dispatch(DispatchReason::Free);
        }
        let arrival = Arrival {
            key: earlier(arrival.key, self.ahead),
            ..arrival
        };
        match self.line.join(now, arrival, is_again, refuse(actions)) {
            Ok(ticket) => Admission::Wait(ticket),
            Err(reason) => Admission::Refuse(reason),
        }
    }

    /// Takes a request back which had left for another gate without having started there: it has its place again regardless of the depth, may start at
    /// once, and is refused only if it is shed.
    pub fn put_back(
        &mut self,
        now: Time,
        arrival: Arrival,
        actions: &mut Vec<Action>,
    ) -> Admission {
        self.admit(now, arrival, true, actions)
    }

    /// Handles the departure of a request from the user container. Its place goes to the next waiting request.
    ///
    /// # Panics
    /// Panics if no request is at the user container.
    pub fn depart(&mut self, now: Time, actions: &mut Vec<Action>) {
        assert!(self.running > 0, "no request is at the user container");
        self.running -= 1;
        self.wake(now, actions);
        if self.is_shut {
            self.set_depth();
        }
        self.start(now, actions);
    }

    /// Removes a waiting request and returns whether it still waited.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.line.cancel(ticket)
    }

    /// Advances the time: sheds the requests that have become late.
    pub fn wake(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.line.wake(now, refuse(actions));
    }

    /// Returns when [`Gate::wake`] next has something to do, unless an event comes before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Time> {
        self.line.next_wake()
    }
}

/// Returns a key that is earlier by a span; that of a request without a deadline stays.
fn earlier(key: Time, span: Span) -> Time {
    if key == Time::NEVER {
        key
    } else {
        key.before(span)
    }
}

/// Returns a callback that turns refusals of the line into actions.
fn refuse(actions: &mut Vec<Action>) -> impl FnMut(Ticket, RequestId, RefuseReason) {
    |ticket, id, reason| actions.push(Action::Refuse { ticket, id, reason })
}
