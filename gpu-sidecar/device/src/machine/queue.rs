//! Streams whose first command may start, now, later, or when an event completes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{EventId, SubmitError};
use crate::Time;
use crate::ids::IdMap;

/// Streams whose first command may start, by their slots.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// Streams ready now, ordered by the numbers of their commands.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// Streams ready later, ordered by the earliest start of their commands.
    later: BinaryHeap<Reverse<(Time, u64, u32)>>,
}

impl Heads {
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the earliest start among the later streams; [`Time::NEVER`] if there are none.
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

    /// Moves the streams that may start by `now` to the ready ones.
    pub(super) fn advance_to(&mut self, now: Time) {
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

    /// Removes the streams for which `is_out` returns true.
    pub(super) fn remove(&mut self, mut is_out: impl FnMut(u32) -> bool) {
        self.ready.retain(|Reverse((_, stream))| !is_out(*stream));
        self.later.retain(|Reverse((.., stream))| !is_out(*stream));
    }
}

/// Events and the streams that wait for them. A record is identified by the number of its command.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Last submitted record of each event.
    latest: IdMap<EventId, Option<u64>>,
    /// Records that are not complete, each with the streams whose first command, given by its number, waits for it.
    pending: IdMap<u64, Vec<(u32, u64)>>,
    /// Empty lists, kept for their capacity.
    spare: Vec<Vec<(u32, u64)>>,
}

impl Events {
    pub(super) fn add(&mut self, event: EventId) {
        self.latest.insert(event, None);
    }

    pub(super) fn destroy(&mut self, event: EventId) {
        self.latest.remove(&event);
    }

    /// Registers the record of an event by a command.
    pub(super) fn record(&mut self, event: EventId, command: u64) -> Result<(), SubmitError> {
        let latest = self.latest.get_mut(&event);
        *latest.ok_or(SubmitError::NoEvent(event))? = Some(command);
        let waiting = self.spare.pop().unwrap_or_default();
        self.pending.insert(command, waiting);
        Ok(())
    }

    /// Returns the last submitted record of an event, unless it is complete.
    pub(super) fn latest(&self, event: EventId) -> Result<Option<u64>, SubmitError> {
        let latest = self.latest.get(&event).copied();
        let latest = latest.ok_or(SubmitError::NoEvent(event))?;
        Ok(latest.filter(|record| self.pending.contains_key(record)))
    }

    /// Lets a stream's first command wait for a record. Returns `false` if the record is already complete.
    pub(super) fn wait(&mut self, record: u64, stream: u32, command: u64) -> bool {
        match self.pending.get_mut(&record) {
            None => false,
            Some(waiting) => {
                waiting.push((stream, command));
                true
            }
        }
    }

    /// Completes or drops a record, and returns the streams that waited for it. The list is to be passed to [`Events::recycle`].
    pub(super) fn complete_record(&mut self, record: u64) -> Vec<(u32, u64)> {
        self.pending.remove(&record).unwrap_or_default()
    }

    /// Clears a list and keeps it for reuse of its capacity.
    pub(super) fn recycle(&mut self, mut list: Vec<(u32, u64)>) {
        if list.capacity() > 0 {
            list.clear();
            self.spare.push(list);
        }
    }

    /// Returns the number of events and the number of incomplete records.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        (self.latest.len(), self.pending.len())
    }
}
