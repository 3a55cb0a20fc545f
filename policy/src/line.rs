//! Those who wait for a place, in order, with what becomes of late ones: what [`crate::gate`] and [`crate::routing`] have in
//! common.
//!
//! Who starts next is [`crate::queue`]'s order. What happens to late requests is [`Late`]; in a full line a newcomer that
//! can make it takes the place of the waiting late request with the latest arrival (design 4.1).

use crate::queue::{DeadlineQueue, Left, SLACK_BOUNDS, Ticket, Waiting};
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

impl DispatchReason {
    /// All of them, each at the index of its number.
    pub const ALL: [Self; 4] = [Self::Free, Self::Turn, Self::LateTurn, Self::Ageing];

    /// Returns the value of the label `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Turn => "turn",
            Self::LateTurn => "late",
            Self::Ageing => "ageing",
        }
    }
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

/// See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Line {
    order: Order,
    late: Late,
    queue: DeadlineQueue,
    /// Requests that have started.
    dispatches: u64,
    last_kept: Option<Time>,
    /// The one that was kept last, while it waits.
    kept_waiting: Option<Ticket>,
    turned_late: Vec<Ticket>,
}

impl Line {
    /// Nobody waits; at most `depth` may.
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

    /// Requests that wait, as by [`DeadlineQueue::by_slack`].
    pub(crate) fn by_slack(&self, now: Time) -> [usize; SLACK_BOUNDS.len() + 2] {
        self.queue.by_slack(now)
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A request starts that has not waited.
    pub(crate) const fn pass(&mut self) {
        self.dispatches += 1;
    }

    /// Lets a request wait. Others may lose their place to it: `refused` hears of them.
    ///
    /// # Errors
    /// Why it gets no place.
    pub(crate) fn join(
        &mut self,
        now: Time,
        arrival: Arrival,
        mut refused: impl FnMut(Ticket, RequestId, RefuseReason),
    ) -> Result<Ticket, RefuseReason> {
        let mut waiting = self.waiting_of(&arrival);
        let late = DeadlineQueue::is_late(waiting.key, now);
        let full = self.queue.len() >= self.queue.capacity();
        if late && !waiting.kept && self.late == Late::Shed {
            // Without a place in the queue it cannot be kept, so it does not use up the second's one.
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
        // There is room, or somebody has made it: the line may be longer than its depth, which may have shrunk.
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

    /// Lets a request wait that has had a place before, whatever the depth.
    pub(crate) fn join_again(&mut self, now: Time, arrival: Arrival) -> Ticket {
        let waiting = self.waiting_of(&arrival);
        self.queue.push_again(now, waiting)
    }

    /// Changes how many may wait; see [`DeadlineQueue::set_capacity`].
    pub(crate) const fn set_depth(&mut self, depth: usize) {
        self.queue.set_capacity(depth);
    }

    /// Writes the most urgent requests that are not late into `tickets`; see [`DeadlineQueue::most_urgent`].
    pub(crate) fn most_urgent(&mut self, now: Time, n: usize, tickets: &mut Vec<Ticket>) {
        self.queue.most_urgent(now, n, tickets);
    }

    /// Takes a request out of its turn. `None` if it does not wait any more.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<(Left, DispatchReason)> {
        let left = self.queue.cancel(ticket)?;
        Some(self.started(left, DispatchReason::Turn))
    }

    /// Takes the late request that has waited many times its objective, if it is the turn of one.
    pub(crate) fn next_aged(&mut self, now: Time) -> Option<(Left, DispatchReason)> {
        if self.dispatches % AGEING_PERIOD != AGEING_PERIOD - 1 {
            return None;
        }
        let aged = |waiting: &Waiting| {
            waiting.objective > Span::ZERO
                && now.since(waiting.arrival).0 / AGEING_OBJECTIVES >= waiting.objective.0
        };
        let left = self.queue.pop_late_if(now, aged)?;
        Some(self.started(left, DispatchReason::Ageing))
    }

    /// Takes the late request that came first.
    pub(crate) fn next_late(&mut self, now: Time) -> Option<(Left, DispatchReason)> {
        let left = self.queue.pop_first_late(now)?;
        Some(self.started(left, DispatchReason::LateTurn))
    }

    /// A waiting request gives its place back. False if it does not wait any more.
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> bool {
        let left = self.queue.cancel(ticket).is_some();
        if left {
            self.forget_kept(ticket);
        }
        left
    }

    /// Lets time pass: sheds those that have become late, of which `refused` hears.
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

    /// When [`Line::wake`] next has something to do, if nothing happens before.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        match self.late {
            Late::Shed if self.order == Order::Deadline => self.queue.next_late_at(),
            _ => None,
        }
    }

    /// Gives every waiting request the key that `key_of` says; see [`DeadlineQueue::rekey`].
    pub(crate) fn rekey(&mut self, now: Time, key_of: impl FnMut(&Waiting) -> Time) {
        if self.order == Order::Deadline {
            self.queue.rekey(now, key_of);
        }
    }

    /// The same with [`Ticket::slot`]; see [`DeadlineQueue::rekey_by_slot`].
    pub(crate) fn rekey_by_slot(&mut self, now: Time, key_of: impl FnMut(usize, &Waiting) -> Time) {
        if self.order == Order::Deadline {
            self.queue.rekey_by_slot(now, key_of);
        }
    }

    /// Takes the request whose turn it is.
    pub(crate) fn next(&mut self, now: Time) -> Option<(Left, DispatchReason)> {
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

    fn started(&mut self, left: Left, reason: DispatchReason) -> (Left, DispatchReason) {
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
