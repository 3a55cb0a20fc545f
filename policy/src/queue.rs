//! The deadline queue: bounded, ordered by latest start time (LST), late requests behind all others.
//!
//! The order is that of papers 1.4 (M1.10): ascending key, ties by arrival, then by id. A request is
//! *late* when its key is past (`key < now`): it cannot meet its objective any more and is served after
//! every request that can, among late ones by arrival. A request whose key is [`Time::NEVER`] is never
//! late; if all are, the queue is first in, first out.
//!
//! Push, pop and cancel are O(log n). Nothing is allocated once the queue has been as long before.

use std::cmp::Reverse;

use crate::heap::IndexedHeap;
use crate::{RequestId, Span, Time};

/// A request as the queue sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who it is; the last tie-break.
    pub id: RequestId,
    /// When it came; the order of late requests and the first tie-break.
    pub arrival: Time,
    /// Latest start time: deadline − estimated execution − estimated load.
    pub key: Time,
    /// The latency it was promised; ageing counts in multiples of it. Zero: never aged.
    pub objective: Span,
    /// Keeps its place even when late: it is neither shed nor displaced.
    pub kept: bool,
}

/// The right to leave the queue early. Tickets of requests that have left are void for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

impl Ticket {
    /// A small integer that no other waiting request has: an index for the caller's own table. Once its
    /// request has left, the next to come may have the same.
    #[must_use]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Bounds between the numbers of [`DeadlineQueue::by_slack`]: of requests whose latest start time is not past, the time until then.
pub const SLACK_BOUNDS: [Span; 3] = [
    Span::from_millis(100),
    Span::from_secs(1),
    Span::from_secs(10),
];

/// The queue holds as many requests as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A request that left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The ticket it had.
    pub ticket: Ticket,
    /// The request.
    pub waiting: Waiting,
    /// Its key was past when it left.
    pub late: bool,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    generation: u32,
    waiting: Option<Waiting>,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct DeadlineQueue {
    capacity: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    on_time: IndexedHeap<(Time, Time, RequestId)>,
    late_first: IndexedHeap<(Time, RequestId)>,
    /// The late requests that may be displaced, latest arrival first.
    late_last: IndexedHeap<Reverse<(Time, RequestId)>>,
    /// The latest `now` seen: a clock that steps back makes nobody on time again.
    clock: Time,
    scratch: Vec<u32>,
}

impl DeadlineQueue {
    /// An empty queue for at most `capacity` waiting requests.
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

    /// How many requests wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.on_time.len() + self.late_first.len()
    }

    /// Nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many requests wait, by the time from `now` to their latest start times: late ones, then those below each of
    /// [`SLACK_BOUNDS`], then the others. O(n).
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

    /// How many requests may wait.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether a request with this key can no longer make it at `now`.
    #[must_use]
    pub fn is_late(key: Time, now: Time) -> bool {
        key < now
    }

    /// Lets a request wait.
    ///
    /// # Errors
    /// [`Full`] when `capacity` requests wait already.
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

    /// Writes the most urgent requests that are not late into `tickets`, most urgent first: `n` of them, and eight at most.
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

    /// Changes how many requests may wait. Those that do stay, however many they are.
    pub const fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Lets a request wait that has had a place before, whatever the capacity.
    pub fn push_again(&mut self, now: Time, waiting: Waiting) -> Ticket {
        self.advance(now);
        self.put(waiting)
    }

    /// Takes the late request that came first.
    pub fn pop_first_late(&mut self, now: Time) -> Option<Left> {
        self.advance(now);
        self.pop_late()
    }

    /// Takes the request whose turn it is.
    pub fn pop(&mut self, now: Time) -> Option<Left> {
        self.advance(now);
        if let Some((_, slot)) = self.on_time.peek() {
            return Some(self.take(slot, false));
        }
        self.pop_late()
    }

    fn pop_late(&mut self) -> Option<Left> {
        let (_, slot) = self.late_first.peek()?;
        Some(self.take(slot, true))
    }

    /// Takes the late request that came first of those that `fits`. O(n).
    pub fn pop_late_if(&mut self, now: Time, fits: impl Fn(&Waiting) -> bool) -> Option<Left> {
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

    /// Takes the late request that came last and is not kept: the one a newcomer may displace.
    pub fn pop_displaceable(&mut self, now: Time) -> Option<Left> {
        self.advance(now);
        let (_, slot) = self.late_last.peek()?;
        Some(self.take(slot, true))
    }

    /// Takes a request out, wherever it stands. `None` if it has left already.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Left> {
        let slot = self.slots.get(ticket.slot())?;
        if slot.generation != ticket.generation || slot.waiting.is_none() {
            return None;
        }
        let late = self.late_first.contains(ticket.slot);
        Some(self.take(ticket.slot, late))
    }

    /// Makes a late request one that keeps its place.
    pub fn keep(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slots.get_mut(ticket.slot())
            && slot.generation == ticket.generation
            && let Some(waiting) = &mut slot.waiting
        {
            waiting.kept = true;
            self.late_last.remove(ticket.slot);
        }
    }

    /// Gives every waiting request the key that `key_of` says, as when the model's residency or the
    /// estimates have changed. O(n log n).
    pub fn rekey(&mut self, now: Time, mut key_of: impl FnMut(&Waiting) -> Time) {
        self.rekey_by_slot(now, |_, waiting| key_of(waiting));
    }

    /// The same with [`Ticket::slot`], by which the caller knows more of the request.
    pub fn rekey_by_slot(&mut self, now: Time, mut key_of: impl FnMut(usize, &Waiting) -> Time) {
        self.clock = self.clock.max(now);
        self.on_time.clear();
        self.late_first.clear();
        self.late_last.clear();
        for slot in 0..u32::try_from(self.slots.len()).expect("capacity is far below 2^32") {
            if let Some(mut waiting) = self.slots[slot as usize].waiting {
                waiting.key = key_of(slot as usize, &waiting);
                self.slots[slot as usize].waiting = Some(waiting);
                // Whoever is late by its new key turns late at the next step, so that the caller hears
                // of it as of any other.
                self.on_time
                    .push(slot, (waiting.key, waiting.arrival, waiting.id));
            }
        }
    }

    /// When the next waiting request becomes late, unless it leaves before: the first point after its
    /// key. `None` if none ever does.
    #[must_use]
    pub fn next_late_at(&self) -> Option<Time> {
        let ((key, ..), _) = self.on_time.peek()?;
        (key != Time::NEVER).then(|| key.after(Span(1)))
    }

    /// Moves those that have become late since the last call, earliest key first, and tells each to
    /// `on_late`.
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

    fn take(&mut self, slot: u32, late: bool) -> Left {
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
        Left {
            ticket,
            waiting,
            late,
        }
    }
}
