//! The concurrency gate: at most `concurrency` requests at the user container, at most `depth` waiting.
//!
//! The depth rule is Knative's (`pkg/queue/breaker.go` there): `concurrency + depth` requests are held, the
//! next one is refused. Who of the waiting starts next is [`crate::queue`]'s order. What happens to late
//! requests is [`Late`]; at a full queue a newcomer that can make it takes the place of the waiting late
//! request with the latest arrival (design 4.1).
//!
//! The gate is always work-conserving: while anybody waits, every place is taken.

use crate::line::Line;
use crate::queue::{Ticket, Waiting};
use crate::{RequestId, Span, Time};

pub use crate::line::{
    AGEING_OBJECTIVES, AGEING_PERIOD, Arrival, DispatchReason, KEPT_PERIOD, Late, Order,
    RefuseReason,
};

/// The gate's fixed settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Requests at the user container at once; at least 1.
    pub concurrency: u32,
    /// Requests waiting at once.
    pub depth: usize,
    /// Their order.
    pub order: Order,
    /// What becomes of late ones; without effect under [`Order::Arrival`].
    pub late: Late,
}

/// What becomes of an arriving request at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It starts now.
    Dispatch(DispatchReason),
    /// It waits; an [`Action`] will name this ticket.
    Wait(Ticket),
    /// It gets no place.
    Refuse(RefuseReason),
}

/// What becomes of a request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It starts now.
    Dispatch {
        /// The ticket it waited with.
        ticket: Ticket,
        /// The request.
        id: RequestId,
        /// Why it, why now.
        reason: DispatchReason,
    },
    /// It loses its place.
    Refuse {
        /// The ticket it waited with.
        ticket: Ticket,
        /// The request.
        id: RequestId,
        /// Why.
        reason: RefuseReason,
    },
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Gate {
    settings: Settings,
    running: u32,
    line: Line,
}

impl Gate {
    /// A gate with every place free.
    ///
    /// # Panics
    /// If `concurrency` is zero: such a gate would never open.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        assert!(settings.concurrency > 0, "a gate needs at least one place");
        Self {
            settings,
            running: 0,
            line: Line::new(settings.depth, settings.order, settings.late),
        }
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many requests are at the user container.
    #[must_use]
    pub const fn running(&self) -> u32 {
        self.running
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// When a request that is refused now may be worth another try: the time until those before it are done, if
    /// each takes `execution`.
    #[must_use]
    pub fn retry_after(&self, execution: Span) -> Span {
        let ahead = self.waiting() as u64 + u64::from(self.running);
        Span(execution.0.saturating_mul(ahead) / u64::from(self.settings.concurrency))
    }

    /// A request asks to start. Others may lose their place to it: read `actions`.
    pub fn arrive(&mut self, now: Time, arrival: Arrival, actions: &mut Vec<Action>) -> Admission {
        self.wake(now, actions);
        if self.running < self.settings.concurrency {
            debug_assert!(self.line.is_empty(), "a place is free while somebody waits");
            self.running += 1;
            self.line.pass();
            return Admission::Dispatch(DispatchReason::Free);
        }
        match self.line.join(now, arrival, refuse(actions)) {
            Ok(ticket) => Admission::Wait(ticket),
            Err(reason) => Admission::Refuse(reason),
        }
    }

    /// A request has left the user container: its place goes to the next.
    ///
    /// # Panics
    /// If none was there.
    pub fn depart(&mut self, now: Time, actions: &mut Vec<Action>) {
        assert!(self.running > 0, "nobody is at the user container");
        self.running -= 1;
        self.wake(now, actions);
        if let Some((left, reason)) = self.line.next(now) {
            self.running += 1;
            actions.push(Action::Dispatch {
                ticket: left.ticket,
                id: left.waiting.id,
                reason,
            });
        }
    }

    /// A waiting request gives its place back. False if it does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.line.cancel(ticket)
    }

    /// Lets time pass: sheds those that have become late.
    pub fn wake(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.line.wake(now, refuse(actions));
    }

    /// When [`Gate::wake`] next has something to do, if nothing happens before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Time> {
        self.line.next_wake()
    }

    /// Gives every waiting request the key that `key_of` says; see [`DeadlineQueue::rekey`].
    ///
    /// [`DeadlineQueue::rekey`]: crate::queue::DeadlineQueue::rekey
    pub fn rekey(&mut self, now: Time, key_of: impl FnMut(&Waiting) -> Time) {
        self.line.rekey(now, key_of);
    }
}

/// What becomes of those that lose their place in the line.
fn refuse(actions: &mut Vec<Action>) -> impl FnMut(Ticket, RequestId, RefuseReason) {
    |ticket, id, reason| actions.push(Action::Refuse { ticket, id, reason })
}
