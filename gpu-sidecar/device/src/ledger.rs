//! Who held what from when to when.

use crate::{Span, Time};

/// A process on a GPU or slice: a context of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A kernel, copy, memset, delay or host function that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId {
    /// The command it belongs to.
    pub command: u64,
    /// Its place in that command's graph; 0 without one.
    pub node: u32,
}

/// A piece of work, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// Which piece of work.
    pub work: WorkId,
    /// The process it is done for.
    pub process: ProcessId,
    /// A number of the caller's, which comes back when it has ended.
    pub tag: u32,
}

/// What can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// Thousandths of SMs of a GPU or slice.
    Sms {
        /// Which, by its number in the node.
        unit: u32,
    },
    /// Bytes per second of a link.
    Link {
        /// Which, by its number in the node.
        link: u32,
    },
    /// Bytes of device memory of a GPU or slice.
    Memory {
        /// Which, by its number in the node.
        unit: u32,
    },
}

/// One line of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was held.
    pub held: Held,
    /// Who held it.
    pub process: ProcessId,
    /// For which piece of work; `None` for memory.
    pub work: Option<WorkId>,
    /// How much, in the unit of [`Held`].
    pub amount: u64,
    /// Since when.
    pub from: Time,
    /// Until when.
    pub to: Time,
}

impl Entry {
    /// How long it was held.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.to.since(self.from)
    }

    /// This line and a later one as one line, if they say the same and the later one begins where this one ends: what
    /// was cut by a flush, or by a change that left the amount as it was, is whole again.
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

/// Entries in the order in which they ended. It grows until it is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    entries: Vec<Entry>,
    is_off: bool,
}

impl Ledger {
    /// Whether lines are kept from now on, as they are unless this says otherwise.
    pub const fn keep(&mut self, keep: bool) {
        self.is_off = !keep;
    }

    /// Writes a line; one without amount or length is left out.
    pub(crate) fn add(&mut self, entry: Entry) {
        if entry.amount > 0 && entry.to > entry.from && !self.is_off {
            self.entries.push(entry);
        }
    }

    /// What has been written since the last time.
    #[must_use]
    pub fn take(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_continue_each_other_are_joined() {
        let line = |amount, from, to| Entry {
            held: Held::Memory { unit: 0 },
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
