//! The heads of streams that may start, now or later or when an event happens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{EventId, SubmitError};
use crate::Time;
use crate::ids::IdMap;

/// The streams whose first command may start, by their places.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Those that may start now, by their commands' numbers.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// Those that may start later, by the time from which on they may.
    later: BinaryHeap<Reverse<(Time, u64, u32)>>,
}

impl Heads {
    pub(super) fn is_one_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the first of those that may start later may start; never, if there is none.
    pub(super) fn next_later(&self) -> Time {
        self.later
            .peek()
            .map_or(Time::NEVER, |Reverse((at, ..))| *at)
    }

    pub(super) fn add(&mut self, now: Time, not_before: Time, command: u64, stream: u32) {
        if not_before <= now {
            self.ready.push(Reverse((command, stream)));
        } else {
            self.later.push(Reverse((not_before, command, stream)));
        }
    }

    /// What may start by now is ready.
    pub(super) fn go_to(&mut self, now: Time) {
        while let Some(&Reverse((at, command, stream))) = self.later.peek() {
            if at > now {
                return;
            }
            self.later.pop();
            self.ready.push(Reverse((command, stream)));
        }
    }

    pub(super) fn pop_ready(&mut self) -> Option<u32> {
        self.ready.pop().map(|Reverse((_, stream))| stream)
    }

    /// Takes streams out.
    pub(super) fn remove(&mut self, mut is_out: impl FnMut(u32) -> bool) {
        self.ready.retain(|Reverse((_, stream))| !is_out(*stream));
        self.later.retain(|Reverse((.., stream))| !is_out(*stream));
    }
}

/// Events, and those who wait for what was recorded in them. A record is known by the number of its command.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The last record of each.
    latest: IdMap<EventId, Option<u64>>,
    /// Records that have not happened, and the streams whose first command waits for them, with its number.
    pending: IdMap<u64, Vec<(u32, u64)>>,
    /// Empty lists, kept for their room.
    spare: Vec<Vec<(u32, u64)>>,
}

impl Events {
    pub(super) fn add(&mut self, event: EventId) {
        self.latest.insert(event, None);
    }

    pub(super) fn destroy(&mut self, event: EventId) {
        self.latest.remove(&event);
    }

    /// A command records an event.
    pub(super) fn record(&mut self, event: EventId, command: u64) -> Result<(), SubmitError> {
        let latest = self.latest.get_mut(&event);
        *latest.ok_or(SubmitError::NoEvent(event))? = Some(command);
        let waiting = self.spare.pop().unwrap_or_default();
        self.pending.insert(command, waiting);
        Ok(())
    }

    /// The last record of an event, if it has not happened.
    pub(super) fn latest(&self, event: EventId) -> Result<Option<u64>, SubmitError> {
        let latest = self.latest.get(&event).copied();
        let latest = latest.ok_or(SubmitError::NoEvent(event))?;
        Ok(latest.filter(|record| self.pending.contains_key(record)))
    }

    /// A stream's first command waits for a record; false: that has happened.
    pub(super) fn wait(&mut self, record: u64, stream: u32, command: u64) -> bool {
        match self.pending.get_mut(&record) {
            None => false,
            Some(waiting) => {
                waiting.push((stream, command));
                true
            }
        }
    }

    /// A record has happened, or never will. Returns who waited for it; to be given back to [`Events::keep`].
    pub(super) fn happen(&mut self, record: u64) -> Vec<(u32, u64)> {
        self.pending.remove(&record).unwrap_or_default()
    }

    /// Keeps a list for its room.
    pub(super) fn keep(&mut self, mut list: Vec<(u32, u64)>) {
        if list.capacity() > 0 {
            list.clear();
            self.spare.push(list);
        }
    }

    /// How many events there are, and how many records have not happened.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.latest.len(), self.pending.len())
    }
}
