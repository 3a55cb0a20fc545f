//! The deadline queue: bounded, ordered by latest start time (LST), with late requests behind all others.
//!
//! The order is that of mechanisms §1.4 (M1.10): ascending key, ties by arrival, then by id. A request is *late* when its
//! key is past (`key < now`): it can no longer meet its objective, and is served after every request that can. Late
//! requests are ordered by arrival. A request with the key [`Time::NEVER`] is never late; if all requests have it, the
//! queue is first in, first out.
//!
//! Push, pop, and cancel are O(log n). Nothing is allocated once the queue has been as long before.
//!
//! # Examples
//!
//! ```
//! use policy::queue::{DeadlineQueue, Waiting};
//! use policy::{RequestId, Span, Time};
//!
//! let waiting = |id, key| Waiting {
//!     id: RequestId(id),
//!     arrival: Time(id),
//!     key: Time(key),
//!     objective: Span(1_000),
//!     kept: false,
//! };
//! let mut queue = DeadlineQueue::new(10);
//! queue.push(Time(2), waiting(1, 900)).unwrap();
//! queue.push(Time(2), waiting(2, 500)).unwrap();
//! // The request with the earliest latest start time is first.
//! assert_eq!(queue.pop(Time(3)).unwrap().waiting.id, RequestId(2));
//! // By now the other request is late.
//! assert!(queue.pop(Time(901)).unwrap().late);
//! ```

use std::cmp::Reverse;

use crate::heap::IndexedHeap;
use crate::{RequestId, Span, Time};

/// Waiting request, as the queue sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Id of the request; the last tie-break.
    pub id: RequestId,
    /// Time of arrival; the order of late requests, and the first tie-break.
    pub arrival: Time,
    /// Latest start time: deadline − estimated execution − estimated load.
    pub key: Time,
    /// Promised latency; aging counts in multiples of it. A request with zero never ages.
    pub objective: Span,
    /// Whether the request keeps its place even when late: it is neither shed nor displaced.
    pub kept: bool,
}

/// Handle by which a waiting request can leave the queue early. It becomes void for ever once the request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

impl Ticket {
    /// Returns a small integer that no other waiting request has, as an index into the caller's own table. It is reused
    /// once the request has left.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Bounds between the buckets of [`DeadlineQueue::by_slack`], as the time until a request's latest start time.
pub const SLACK_BOUNDS: [Span; 3] = [
    Span::from_millis(100),
    Span::from_secs(1),
    Span::from_secs(10),
];

/// Error of a queue that is at its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Request that has left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Ticket that the request had.
    pub ticket: Ticket,
    /// Request as it was in the queue.
    pub waiting: Waiting,
    /// Whether the request's key was past when it left.
    pub late: bool,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    generation: u32,
    waiting: Option<Waiting>,
}

/// Bounded queue of waiting requests; see the [module](self).
#[derive(Debug, Clone)]
pub struct DeadlineQueue {
    capacity: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    on_time: IndexedHeap<(Time, Time, RequestId)>,
    late_first: IndexedHeap<(Time, RequestId)>,
    /// Late requests that may be displaced, latest arrival first.
    late_last: IndexedHeap<Reverse<(Time, RequestId)>>,
    /// Latest `now` passed in: a clock that is set back makes no late request timely again.
    clock: Time,
    scratch: Vec<u32>,
}

impl DeadlineQueue {
    /// Creates an empty queue, to which [`push`](Self::push) adds up to `capacity` waiting requests;
    /// [`push_again`](Self::push_again) may exceed it.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            slots: Vec::new(),
            free: Vec::new(),
            on_time: IndexedHeap::new(),
            late_first: IndexedHeap::new(),
            late_last: IndexedHeap::new(),
            clock: Time::ZERO,
            scratch: Vec::new(),
        }
    }

    /// Returns the number of waiting requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.on_time.len() + self.late_first.len()
    }

    /// Returns whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers of waiting requests by the time from `now` to their latest start times: late ones first,
    /// then those below each of [`SLACK_BOUNDS`], then the rest. O(n).
    #[must_use]
    pub fn by_slack(&self, now: Time) -> [usize; SLACK_BOUNDS.len() + 2] {
        let mut counts = [0; SLACK_BOUNDS.len() + 2];
        let now = now.max(self.clock);
        for waiting in self.slots.iter().filter_map(|slot| slot.waiting) {
            let at = if Self::is_late(waiting.key, now) {
                0
            } else {
                let slack = waiting.key.since(now);
                1 + SLACK_BOUNDS.iter().filter(|bound| slack >= **bound).count()
            };
            counts[at] += 1;
        }
        counts
    }

    /// Returns the number of requests that may wait.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns whether a request with this key can no longer meet its objective at `now`.
    #[must_use]
    pub fn is_late(key: Time, now: Time) -> bool {
        key < now
    }

    /// Adds a waiting request.
    ///
    /// # Errors
    /// Returns [`Full`] if `capacity` requests already wait.
    pub fn push(&mut self, now: Time, waiting: Waiting) -> Result<Ticket, Full> {
        self.advance(now);
        if self.len() >= self.capacity {
            return Err(Full);
        }
        Ok(self.put(waiting))
    }

    fn put(&mut self, waiting: Waiting) -> Ticket {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.slots.len()).expect("capacity is far below 2^32");
            self.slots.push(Slot {
                generation: 0,
                waiting: None,
            });
            slot
        });
        self.slots[slot as usize].waiting = Some(waiting);
        self.file(slot, waiting);
        Ticket {
            slot,
            generation: self.slots[slot as usize].generation,
        }
    }

    /// Writes the `n` most urgent requests that are not late into `tickets`, most urgent first; at most eight.
    pub fn most_urgent(&mut self, now: Time, n: usize, tickets: &mut Vec<Ticket>) {
        self.advance(now);
        let mut slots = std::mem::take(&mut self.scratch);
        self.on_time.smallest(n, &mut slots);
        tickets.clear();
        tickets.extend(slots.iter().map(|&slot| Ticket {
            slot,
            generation: self.slots[slot as usize].generation,
        }));
        self.scratch = slots;
    }

    /// Changes the number of requests that may wait. Requests that already wait stay, even if there are more.
    pub const fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Adds a waiting request that had a place before, regardless of the capacity.
    pub fn push_again(&mut self, now: Time, waiting: Waiting) -> Ticket {
        self.advance(now);
        self.put(waiting)
    }

    /// Removes and returns the late request that arrived first.
    pub fn pop_first_late(&mut self, now: Time) -> Option<Departure> {
        self.advance(now);
        self.pop_late()
    }

    /// Removes and returns the next request in order.
    pub fn pop(&mut self, now: Time) -> Option<Departure> {
        self.advance(now);
        if let Some((_, slot)) = self.on_time.peek() {
            return Some(self.take(slot, false));
        }
        self.pop_late()
    }

    /// Returns the next request in order, and its ticket, without removing it.
    #[must_use]
    pub fn peek(&mut self, now: Time) -> Option<(Ticket, Waiting)> {
        self.advance(now);
        let on_time = self.on_time.peek().map(|(_, slot)| slot);
        let slot = match on_time {
            Some(slot) => slot,
            None => self.late_first.peek()?.1,
        };
        let at = self.slots.get(slot as usize)?;
        let ticket = Ticket {
            slot,
            generation: at.generation,
        };
        Some((ticket, at.waiting?))
    }

    fn pop_late(&mut self) -> Option<Departure> {
        let (_, slot) = self.late_first.peek()?;
        Some(self.take(slot, true))
    }

    /// Removes and returns the first-arrived late request for which `fits` returns true. O(n).
    pub fn pop_late_if(&mut self, now: Time, fits: impl Fn(&Waiting) -> bool) -> Option<Departure> {
        self.advance(now);
        let slot = self
            .late_first
            .iter()
            .filter(|(_, slot)| {
                self.slots[*slot as usize]
                    .waiting
                    .as_ref()
                    .is_some_and(&fits)
            })
            .min()?
            .1;
        Some(self.take(slot, true))
    }

    /// Removes and returns the late request that arrived last and is not kept, which is the one that a newcomer may
    /// displace.
    pub fn pop_displaceable(&mut self, now: Time) -> Option<Departure> {
        self.advance(now);
        let (_, slot) = self.late_last.peek()?;
        Some(self.take(slot, true))
    }

    /// Removes and returns a request, wherever it is in the order, or returns `None` if it has already left.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Departure> {
        let slot = self.slots.get(ticket.slot())?;
        if slot.generation != ticket.generation || slot.waiting.is_none() {
            return None;
        }
        let late = self.late_first.contains(ticket.slot);
        Some(self.take(ticket.slot, late))
    }

    /// Marks a waiting request as one that keeps its place.
    pub fn keep(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slots.get_mut(ticket.slot())
            && slot.generation == ticket.generation
            && let Some(waiting) = &mut slot.waiting
        {
            waiting.kept = true;
            self.late_last.remove(ticket.slot);
        }
    }

    /// Gives every waiting request the key returned by `key_of`, for example after the residency of the model or the
    /// estimates have changed. O(n log n).
    pub fn rekey(&mut self, now: Time, mut key_of: impl FnMut(&Waiting) -> Time) {
        self.rekey_by_slot(now, |_, waiting| key_of(waiting));
    }

    /// Gives every waiting request the key that `key_of` returns for its [`Ticket::slot`] and the request, so that the
    /// caller can look up more about it. O(n log n); see [`DeadlineQueue::rekey`].
    pub fn rekey_by_slot(&mut self, now: Time, mut key_of: impl FnMut(usize, &Waiting) -> Time) {
        self.clock = self.clock.max(now);
        self.on_time.clear();
        self.late_first.clear();
        self.late_last.clear();
        for slot in 0..u32::try_from(self.slots.len()).expect("capacity is far below 2^32") {
            if let Some(mut waiting) = self.slots[slot as usize].waiting {
                waiting.key = key_of(slot as usize, &waiting);
                self.slots[slot as usize].waiting = Some(waiting);
                // A request that is late by its new key turns late at the next step, so the caller is notified as
                // usual.
                self.on_time
                    .push(slot, (waiting.key, waiting.arrival, waiting.id));
            }
        }
    }

    /// Returns when the next waiting request becomes late unless it leaves before, which is the first point after its
    /// key, or `None` if no request ever does.
    #[must_use]
    pub fn next_late_at(&self) -> Option<Time> {
        let ((key, ..), _) = self.on_time.peek()?;
        (key != Time::NEVER).then(|| key.after(Span(1)))
    }

    /// Marks the requests that have become late since the last call, earliest key first, and calls `on_late` for each.
    pub fn advance_with(&mut self, now: Time, mut on_late: impl FnMut(Ticket, &Waiting)) {
        self.clock = self.clock.max(now);
        while let Some(((key, ..), slot)) = self.on_time.peek() {
            if !Self::is_late(key, self.clock) {
                break;
            }
            self.on_time.pop();
            let waiting = self.slots[slot as usize]
                .waiting
                .expect("a filed slot is in use");
            self.file_late(slot, waiting);
            let generation = self.slots[slot as usize].generation;
            on_late(Ticket { slot, generation }, &waiting);
        }
    }

    fn advance(&mut self, now: Time) {
        self.advance_with(now, |_, _| {});
    }

    fn file(&mut self, slot: u32, waiting: Waiting) {
        if Self::is_late(waiting.key, self.clock) {
            self.file_late(slot, waiting);
        } else {
            self.on_time
                .push(slot, (waiting.key, waiting.arrival, waiting.id));
        }
    }

    fn file_late(&mut self, slot: u32, waiting: Waiting) {
        self.late_first.push(slot, (waiting.arrival, waiting.id));
        if !waiting.kept {
            self.late_last
                .push(slot, Reverse((waiting.arrival, waiting.id)));
        }
    }

    fn take(&mut self, slot: u32, late: bool) -> Departure {
        self.on_time.remove(slot);
        self.late_first.remove(slot);
        self.late_last.remove(slot);
        let entry = &mut self.slots[slot as usize];
        let ticket = Ticket {
            slot,
            generation: entry.generation,
        };
        let waiting = entry.waiting.take().expect("only filed slots are taken");
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Departure {
            ticket,
            waiting,
            late,
        }
    }
}
