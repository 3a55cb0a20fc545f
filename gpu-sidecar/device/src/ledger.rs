//! The ledger: resources held by processes, with start and end.

use crate::{Span, Time};

/// Id of a process on a GPU or slice, which has a context of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// Id of a kernel, copy, memset, delay or host function that has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId {
    /// Number of the command to which it belongs.
    pub command: u64,
    /// Index of the node of the command's graph; 0 without a graph.
    pub node: u32,
}

/// Piece of work and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// Id of the piece of work.
    pub work: WorkId,
    /// Process for which the work runs.
    pub process: ProcessId,
    /// Number chosen by the caller, returned when the work ends.
    pub tag: u32,
}

/// Resource that a process can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// SMs of a GPU or slice, in thousandths.
    Sms {
        /// Number of the GPU or slice in the node.
        unit: u32,
    },
    /// Bandwidth of a link, in bytes per second.
    Link {
        /// Number of the link in the node.
        link: u32,
    },
    /// Device memory of a GPU or slice, in bytes.
    Memory {
        /// Number of the GPU or slice in the node.
        unit: u32,
    },
}

/// Entry of the ledger: one constant amount over one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Resource that was held.
    pub resource: Resource,
    /// Process that held it.
    pub process: ProcessId,
    /// Piece of work that used it; `None` for memory.
    pub work: Option<WorkId>,
    /// Amount, in the unit of [`Resource`].
    pub amount: u64,
    /// Start of the period.
    pub from: Time,
    /// End of the period.
    pub to: Time,
}

impl Entry {
    /// Returns the length of the period.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.to.since(self.from)
    }

    /// Returns this entry and a later one as a single entry, if they agree and the later one begins where this one ends; else
    /// `None`. Such entries result from a flush, or from a change that left the amount as it was.
    #[must_use]
    pub fn joined(&self, later: &Self) -> Option<Self> {
        let whole = Self {
            to: later.to,
            ..*self
        };
        let rest = Self {
            from: self.from,
            ..*later
        };
        (whole == rest && self.to == later.from).then_some(whole)
    }
}

/// Entries in the order of their end. They accumulate until they are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    entries: Vec<Entry>,
    is_off: bool,
}

impl Ledger {
    /// Enables or disables recording; it is enabled initially.
    pub const fn keep(&mut self, keep: bool) {
        self.is_off = !keep;
    }

    /// Adds an entry, unless its amount or length is 0.
    pub(crate) fn add(&mut self, entry: Entry) {
        if entry.amount > 0 && entry.to > entry.from && !self.is_off {
            self.entries.push(entry);
        }
    }

    /// Removes and returns the entries recorded since the last call.
    #[must_use]
    pub fn take(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_entries_of_equal_amount_are_joined() {
        let line = |amount, from, to| Entry {
            resource: Resource::Memory { unit: 0 },
            process: ProcessId(1),
            work: None,
            amount,
            from: Time(from),
            to: Time(to),
        };
        let first = line(7, 1, 3);
        assert_eq!(first.joined(&line(7, 3, 9)), Some(line(7, 1, 9)));
        assert_eq!(first.joined(&line(8, 3, 9)), None);
        assert_eq!(first.joined(&line(7, 4, 9)), None);
    }
}
