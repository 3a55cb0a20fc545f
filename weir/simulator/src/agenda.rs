//! An event queue: events in the order of time, and events of equal times in the order of insertion.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use policy::Time;

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap has its greatest on top.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// A priority queue of events together with the virtual clock; see the [module](self).
#[derive(Clone, Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    now: Time,
    added: u64,
    taken: u64,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            now: Time::ZERO,
            added: 0,
            taken: 0,
        }
    }
}

impl<E> Agenda<E> {
    /// Returns an empty agenda at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the current virtual time: that of the event taken last.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Schedules an event. An event in the past is scheduled for [`now`](Self::now).
    pub fn add(&mut self, at: Time, event: E) {
        let number = self.added;
        self.added += 1;
        self.heap.push(Entry {
            at: at.max(self.now),
            number,
            event,
        });
    }

    /// Returns the time of the next event, or `None` if no event is scheduled.
    #[must_use]
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Removes the next event, advances the clock to its time and returns it.
    pub fn take(&mut self) -> Option<E> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        self.taken += 1;
        Some(entry.event)
    }

    /// Advances the clock to an event which is kept outside of the agenda, and counts that event as taken.
    pub fn pass_to(&mut self, at: Time) {
        self.now = self.now.max(at);
        self.taken += 1;
    }

    /// Returns the number of events taken so far.
    #[must_use]
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the number of scheduled events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns whether no event is scheduled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_by_time_and_then_by_insertion() {
        let mut agenda = Agenda::new();
        for (at, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd')] {
            agenda.add(Time(at), name);
        }
        let mut order = String::new();
        while let Some(name) = agenda.take() {
            order.push(name);
            if name == 'd' {
                assert_eq!((agenda.now(), agenda.next_at()), (Time(3), Some(Time(5))));
                agenda.add(Time(1), 'e');
            }
        }
        assert_eq!(order, "bdeac");
        assert_eq!((agenda.taken(), agenda.len()), (5, 0));
    }
}
