//! The requests of all functions in one table, each in its function's line.
//!
//! A line is a doubly linked list through the table, so a request can leave from any position in O(1), and nothing is
//! allocated once the table has held as many requests before.

use super::Ticket;
use crate::pool::FunctionId;
use crate::{RequestId, Time};

/// Index of no place: before the first and behind the last.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct QueueEntry {
    pub(super) generation: u32,
    pub(super) used: bool,
    pub(super) function: FunctionId,
    pub(super) request: RequestId,
    pub(super) arrival: Time,
    pub(super) deadline: Time,
    /// Key by which the line is ordered; ties by arrival, then by id.
    pub(super) rank: Time,
    pub(super) before: u32,
    pub(super) behind: u32,
}

/// First and last place of one function's line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Places {
    places: Vec<QueueEntry>,
    free: Vec<u32>,
    used: usize,
}

impl Places {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }

    pub(super) const fn used(&self) -> usize {
        self.used
    }

    pub(super) fn at(&self, at: u32) -> &QueueEntry {
        &self.places[at as usize]
    }

    pub(super) fn ticket(&self, at: u32) -> Ticket {
        Ticket {
            place: at,
            generation: self.at(at).generation,
        }
    }

    /// Returns the place of a ticket's request, or `None` if it has left.
    pub(super) fn find(&self, ticket: Ticket) -> Option<u32> {
        let place = self.places.get(ticket.place as usize)?;
        (place.used && place.generation == ticket.generation).then_some(ticket.place)
    }

    /// Inserts a request into a line, behind all requests of a smaller or equal rank. O(requests of a larger rank).
    pub(super) fn enter(
        &mut self,
        line: &mut Line,
        function: FunctionId,
        request: RequestId,
        arrival: Time,
        deadline: Time,
        rank: Time,
    ) -> u32 {
        let mut before = line.last;
        while before != NONE {
            let other = self.at(before);
            if (other.rank, other.arrival, other.request) <= (rank, arrival, request) {
                break;
            }
            before = other.before;
        }
        let behind = match before {
            NONE => line.first,
            at => self.at(at).behind,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            let at =
                u32::try_from(self.places.len()).expect("fewer than 2^32 requests fit in memory");
            self.places.push(QueueEntry {
                generation: 0,
                used: false,
                function,
                request,
                arrival,
                deadline,
                rank,
                before: NONE,
                behind: NONE,
            });
            // Reserved so that leaving never allocates, whatever the order.
            self.free.reserve(self.places.len());
            at
        });
        let generation = self.at(at).generation;
        self.places[at as usize] = QueueEntry {
            generation,
            used: true,
            function,
            request,
            arrival,
            deadline,
            rank,
            before,
            behind,
        };
        *self.behind_of(line, before) = at;
        *self.before_of(line, behind) = at;
        self.used += 1;
        at
    }

    pub(super) fn leave(&mut self, line: &mut Line, at: u32) {
        let QueueEntry { before, behind, .. } = *self.at(at);
        *self.behind_of(line, before) = behind;
        *self.before_of(line, behind) = before;
        let place = &mut self.places[at as usize];
        place.used = false;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(at);
        self.used -= 1;
    }

    fn behind_of<'a>(&'a mut self, line: &'a mut Line, at: u32) -> &'a mut u32 {
        match at {
            NONE => &mut line.first,
            at => &mut self.places[at as usize].behind,
        }
    }

    fn before_of<'a>(&'a mut self, line: &'a mut Line, at: u32) -> &'a mut u32 {
        match at {
            NONE => &mut line.last,
            at => &mut self.places[at as usize].before,
        }
    }
}
