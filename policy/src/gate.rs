//! The concurrency gate: at most `concurrency` requests at the user container, at most `depth` waiting.
//!
//! The depth rule is Knative's (`pkg/queue/breaker.go` there): `concurrency + depth` requests are held, the
//! next one is refused. Who of the waiting starts next is [`crate::queue`]'s order. What happens to late
//! requests is [`Late`]; at a full queue a newcomer that can make it takes the place of the waiting late
//! request with the latest arrival (design 4.1).
//!
//! The gate is always work-conserving: while anybody waits, every place is taken.

use crate::queue::{DeadlineQueue, Ticket, Waiting};
use crate::{RequestId, Span, Time};

/// One dispatch in this many goes to a late request that has waited long enough, if there is one.
pub const AGEING_PERIOD: u64 = 20;
/// A late request has waited long enough after this many times its objective.
pub const AGEING_OBJECTIVES: u64 = 10;
/// Of the requests that would be shed, one in this time is served instead, so that the estimates by
/// which they are judged can recover; none while the one before it still waits, since those would take the
/// places of requests that can make it.
pub const KEPT_PERIOD: Span = Span::from_secs(1);

/// The order in which waiting requests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they came; nobody is ever late.
    Arrival,
    /// By latest start time, late ones last.
    Deadline,
}

/// What becomes of a request that can no longer make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It is served after all others.
    Serve,
    /// It is refused at that moment, unless it may be kept.
    Shed,
}

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

/// A request that asks to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Who it is.
    pub id: RequestId,
    /// When it came to the process.
    pub at: Time,
    /// Latest start time; ignored under [`Order::Arrival`].
    pub key: Time,
    /// The latency it was promised.
    pub objective: Span,
    /// Never shed nor displaced, as one held for a cold start.
    pub kept: bool,
}

/// Why a request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchReason {
    /// A place was free.
    Free,
    /// Its key was the smallest.
    Turn,
    /// Nobody that waits can make it, and it came first.
    LateTurn,
    /// It has waited many times its objective ([`AGEING_PERIOD`]).
    Ageing,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// The queue is full.
    Full,
    /// The queue is full, it is late, and a newcomer can make it.
    Displaced,
    /// It is late, and late requests are shed.
    Late,
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
    queue: DeadlineQueue,
    dispatches: u64,
    last_kept: Option<Time>,
    /// The one that was kept last, while it waits.
    kept_waiting: Option<Ticket>,
    turned_late: Vec<Ticket>,
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
            queue: DeadlineQueue::new(settings.depth),
            dispatches: 0,
            last_kept: None,
            kept_waiting: None,
            turned_late: Vec::new(),
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
        self.queue.len()
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
            debug_assert!(
                self.queue.is_empty(),
                "a place is free while somebody waits"
            );
            self.running += 1;
            self.dispatches += 1;
            return Admission::Dispatch(DispatchReason::Free);
        }
        let mut waiting = Waiting {
            id: arrival.id,
            arrival: arrival.at,
            key: match self.settings.order {
                Order::Arrival => Time::NEVER,
                Order::Deadline => arrival.key,
            },
            objective: arrival.objective,
            kept: arrival.kept,
        };
        let late = DeadlineQueue::is_late(waiting.key, now);
        let full = self.queue.len() >= self.queue.capacity();
        if late && !waiting.kept && self.settings.late == Late::Shed {
            // Without a place in the queue it cannot be kept, so it does not use up the second's one.
            if full || !self.may_keep(now) {
                return Admission::Refuse(RefuseReason::Late);
            }
            waiting.kept = true;
        }
        if full {
            match if late {
                None
            } else {
                self.queue.pop_displaceable(now)
            } {
                Some(left) => actions.push(Action::Refuse {
                    ticket: left.ticket,
                    id: left.waiting.id,
                    reason: RefuseReason::Displaced,
                }),
                None => return Admission::Refuse(RefuseReason::Full),
            }
        }
        match self.queue.push(now, waiting) {
            Ok(ticket) => {
                if waiting.kept && !arrival.kept {
                    self.kept_waiting = Some(ticket);
                }
                Admission::Wait(ticket)
            }
            Err(_) => Admission::Refuse(RefuseReason::Full),
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
        if let Some((left, reason)) = self.next(now) {
            self.forget_kept(left.ticket);
            self.running += 1;
            self.dispatches += 1;
            actions.push(Action::Dispatch {
                ticket: left.ticket,
                id: left.waiting.id,
                reason,
            });
        }
    }

    /// A waiting request gives its place back. False if it does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let left = self.queue.cancel(ticket).is_some();
        if left {
            self.forget_kept(ticket);
        }
        left
    }

    /// Lets time pass: sheds those that have become late.
    pub fn wake(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.settings.late != Late::Shed || self.settings.order != Order::Deadline {
            return;
        }
        let mut turned_late = std::mem::take(&mut self.turned_late);
        self.queue.advance_with(now, |ticket, waiting| {
            if !waiting.kept {
                turned_late.push(ticket);
            }
        });
        for ticket in turned_late.drain(..) {
            if self.may_keep(now) {
                self.queue.keep(ticket);
                self.kept_waiting = Some(ticket);
            } else if let Some(left) = self.queue.cancel(ticket) {
                actions.push(Action::Refuse {
                    ticket,
                    id: left.waiting.id,
                    reason: RefuseReason::Late,
                });
            }
        }
        self.turned_late = turned_late;
    }

    /// When [`Gate::wake`] next has something to do, if nothing happens before.
    #[must_use]
    pub fn next_wake(&self) -> Option<Time> {
        match self.settings.late {
            Late::Shed if self.settings.order == Order::Deadline => self.queue.next_late_at(),
            _ => None,
        }
    }

    /// Gives every waiting request the key that `key_of` says; see [`DeadlineQueue::rekey`].
    pub fn rekey(&mut self, now: Time, key_of: impl FnMut(&Waiting) -> Time) {
        if self.settings.order == Order::Deadline {
            self.queue.rekey(now, key_of);
        }
    }

    fn next(&mut self, now: Time) -> Option<(crate::queue::Left, DispatchReason)> {
        let aged = |waiting: &Waiting| {
            waiting.objective > Span::ZERO
                && now.since(waiting.arrival).0 / AGEING_OBJECTIVES >= waiting.objective.0
        };
        if self.dispatches % AGEING_PERIOD == AGEING_PERIOD - 1
            && let Some(left) = self.queue.pop_late_if(now, aged)
        {
            return Some((left, DispatchReason::Ageing));
        }
        let left = self.queue.pop(now)?;
        let reason = if left.late {
            DispatchReason::LateTurn
        } else {
            DispatchReason::Turn
        };
        Some((left, reason))
    }

    fn may_keep(&mut self, now: Time) -> bool {
        let may = self.kept_waiting.is_none()
            && self
                .last_kept
                .is_none_or(|last| now.since(last) >= KEPT_PERIOD);
        if may {
            self.last_kept = Some(now);
        }
        may
    }

    fn forget_kept(&mut self, ticket: Ticket) {
        if self.kept_waiting == Some(ticket) {
            self.kept_waiting = None;
        }
    }
}
