//! The line of requests that wait for a place, with the handling of late ones: what [`crate::gate`] and
//! [`crate::routing`] have in common.
//!
//! The order is that of [`crate::queue`], and [`Late`] decides what happens to late requests. In a full line, a
//! newcomer that can meet its objective displaces the waiting late request with the latest arrival (contracts §1).

use crate::queue::{DeadlineQueue, Departure, SLACK_BOUNDS, Ticket, Waiting};
use crate::{RequestId, Span, Time};

/// One dispatch in this many goes to a late request that has waited long enough, if there is one.
pub const AGING_PERIOD: u64 = 20;
/// Multiple of the objective after which a late request has waited so long that it is aged.
pub const AGING_OBJECTIVES: u64 = 10;
/// Minimum time between two requests that are served although they would be shed, so that the estimates by which they
/// are judged can recover. None is kept while the previous one still waits, since such requests would take the places
/// of requests that can meet their objective.
pub const KEPT_PERIOD: Span = Span::from_secs(1);

/// Order in which waiting requests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Order of arrival; no request is ever late.
    Arrival,
    /// Order of latest start time, late requests last.
    Deadline,
}

/// Treatment of a request that can no longer meet its objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Late requests are served after all others.
    Serve,
    /// A request is refused as soon as it is late, unless it may be kept.
    Shed,
}

/// Request that arrives and is to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Id of the request.
    pub id: RequestId,
    /// Time of arrival at the process.
    pub at: Time,
    /// Latest start time; ignored under [`Order::Arrival`].
    pub key: Time,
    /// Promised latency; zero for a request without an objective.
    pub objective: Span,
    /// Whether the request is never shed or displaced, as one that is held for a cold start.
    pub kept: bool,
}

/// Reason why a request starts: the values of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchReason {
    /// A place was free on arrival.
    Free,
    /// The request had the smallest key.
    Turn,
    /// No waiting request can meet its objective, and this one arrived first.
    LateTurn,
    /// The request has waited many times its objective ([`AGING_PERIOD`]).
    Aging,
}

impl DispatchReason {
    /// All reasons, each at the index of its discriminant.
    pub const ALL: [Self; 4] = [Self::Free, Self::Turn, Self::LateTurn, Self::Aging];

    /// Returns the value of the label `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Turn => "turn",
            Self::LateTurn => "late",
            Self::Aging => "ageing",
        }
    }
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    /// The queue is full.
    Full,
    /// The queue is full, the request is late, and a newcomer can meet its objective.
    Displaced,
    /// The request is late, and late requests are shed.
    Late,
}

/// Line of waiting requests; see the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Line {
    order: Order,
    late: Late,
    queue: DeadlineQueue,
    /// Number of requests that have started.
    dispatches: u64,
    last_kept: Option<Time>,
    /// Ticket of the last request that was kept instead of shed, while it waits.
    kept_waiting: Option<Ticket>,
    turned_late: Vec<Ticket>,
}

impl Line {
    /// Creates an empty line for at most `depth` waiting requests.
    pub(crate) const fn new(depth: usize, order: Order, late: Late) -> Self {
        Self {
            order,
            late,
            queue: DeadlineQueue::new(depth),
            dispatches: 0,
            last_kept: None,
            kept_waiting: None,
            turned_late: Vec::new(),
        }
    }

    /// Returns the numbers of waiting requests by slack; see [`DeadlineQueue::by_slack`].
    pub(crate) fn by_slack(&self, now: Time) -> [usize; SLACK_BOUNDS.len() + 2] {
        self.queue.by_slack(now)
    }

    /// Returns the number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Counts the start of a request that did not wait.
    pub(crate) const fn pass(&mut self) {
        self.dispatches += 1;
    }

    /// Adds a waiting request. Other requests may lose their place to it; `refused` is called for each. `is_again`: it had a place before, and gets
    /// one regardless of the depth.
    ///
    /// # Errors
    /// Returns the reason if the request gets no place.
    pub(crate) fn join(
        &mut self,
        now: Time,
        arrival: Arrival,
        is_again: bool,
        mut refused: impl FnMut(Ticket, RequestId, RefuseReason),
    ) -> Result<Ticket, RefuseReason> {
        let mut waiting = self.waiting_of(&arrival);
        let late = DeadlineQueue::is_late(waiting.key, now);
        let full = !is_again && self.queue.len() >= self.queue.capacity();
        if late && !waiting.kept && self.late == Late::Shed {
            // Without a place in the queue the request cannot be kept, so it must not use up the one kept per period.
            if full || !self.may_keep(now) {
                return Err(RefuseReason::Late);
            }
            waiting.kept = true;
        }
        if full {
            let displaceable = if late {
                None
            } else {
                self.queue.pop_displaceable(now)
            };
            let left = displaceable.ok_or(RefuseReason::Full)?;
            refused(left.ticket, left.waiting.id, RefuseReason::Displaced);
        }
        // There is room, or the displaced request made it. The line may be longer than its depth, which may have
        // shrunk.
        let ticket = self.queue.push_again(now, waiting);
        if waiting.kept && !arrival.kept {
            self.kept_waiting = Some(ticket);
        }
        Ok(ticket)
    }

    fn waiting_of(&self, arrival: &Arrival) -> Waiting {
        Waiting {
            id: arrival.id,
            arrival: arrival.at,
            key: match self.order {
                Order::Arrival => Time::NEVER,
                Order::Deadline => arrival.key,
            },
            objective: arrival.objective,
            kept: arrival.kept,
        }
    }

    /// Adds a waiting request that had a place before, regardless of the depth.
    pub(crate) fn join_again(&mut self, now: Time, arrival: Arrival) -> Ticket {
        let waiting = self.waiting_of(&arrival);
        self.queue.push_again(now, waiting)
    }

    /// Changes the number of requests that may wait; see [`DeadlineQueue::set_capacity`].
    pub(crate) const fn set_depth(&mut self, depth: usize) {
        self.queue.set_capacity(depth);
    }

    /// Writes the most urgent requests that are not late into `tickets`; see [`DeadlineQueue::most_urgent`].
    pub(crate) fn most_urgent(&mut self, now: Time, n: usize, tickets: &mut Vec<Ticket>) {
        self.queue.most_urgent(now, n, tickets);
    }

    /// Takes a request out of order to start it, or returns `None` if it no longer waits.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<(Departure, DispatchReason)> {
        let left = self.queue.cancel(ticket)?;
        Some(self.started(left, DispatchReason::Turn))
    }

    /// Takes the first-arrived late request that has waited many times its objective, if this dispatch is reserved for
    /// one.
    pub(crate) fn next_aged(&mut self, now: Time) -> Option<(Departure, DispatchReason)> {
        if self.dispatches % AGING_PERIOD != AGING_PERIOD - 1 {
            return None;
        }
        let aged = |waiting: &Waiting| {
            waiting.objective > Span::ZERO
                && now.since(waiting.arrival).0 / AGING_OBJECTIVES >= waiting.objective.0
        };
        let left = self.queue.pop_late_if(now, aged)?;
        Some(self.started(left, DispatchReason::Aging))
    }

    /// Takes the late request that arrived first.
    pub(crate) fn next_late(&mut self, now: Time) -> Option<(Departure, DispatchReason)> {
        let left = self.queue.pop_first_late(now)?;
        Some(self.started(left, DispatchReason::LateTurn))
    }

    /// Removes a waiting request and returns whether it still waited.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> bool {
        let left = self.queue.cancel(ticket).is_some();
        if left {
            self.forget_kept(ticket);
        }
        left
    }

    /// Advances the time: sheds the requests that have become late and calls `refused` for each.
    pub(crate) fn wake(
        &mut self,
        now: Time,
        mut refused: impl FnMut(Ticket, RequestId, RefuseReason),
    ) {
        if self.late != Late::Shed || self.order != Order::Deadline {
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
                refused(ticket, left.waiting.id, RefuseReason::Late);
            }
        }
        self.turned_late = turned_late;
    }

    /// Returns when [`Line::wake`] next has something to do, unless an event comes before.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        match self.late {
            Late::Shed if self.order == Order::Deadline => self.queue.next_late_at(),
            _ => None,
        }
    }

    /// Under [`Order::Deadline`], gives every waiting request the key that `key_of` returns for its [`Ticket::slot`]
    /// and the request; see [`DeadlineQueue::rekey_by_slot`]. Under [`Order::Arrival`], does nothing.
    pub(crate) fn rekey_by_slot(&mut self, now: Time, key_of: impl FnMut(usize, &Waiting) -> Time) {
        if self.order == Order::Deadline {
            self.queue.rekey_by_slot(now, key_of);
        }
    }

    /// Returns the next request in order, apart from ageing, without taking it.
    pub(crate) fn head(&mut self, now: Time) -> Option<(Ticket, Waiting)> {
        self.queue.peek(now)
    }

    /// Takes the next request in order.
    pub(crate) fn next(&mut self, now: Time) -> Option<(Departure, DispatchReason)> {
        if let Some(aged) = self.next_aged(now) {
            return Some(aged);
        }
        let left = self.queue.pop(now)?;
        let reason = if left.late {
            DispatchReason::LateTurn
        } else {
            DispatchReason::Turn
        };
        Some(self.started(left, reason))
    }

    fn started(&mut self, left: Departure, reason: DispatchReason) -> (Departure, DispatchReason) {
        self.forget_kept(left.ticket);
        self.dispatches += 1;
        (left, reason)
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
