//! Who held what from when to when.

use crate::{Span, Time};

/// A process on a GPU or slice: a context of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A kernel, copy or delay that has been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId {
    /// The command it belongs to.
    pub command: u64,
    /// Its place in that command's graph; 0 without one.
    pub node: u32,
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
}

/// Entries in the order in which they ended. It grows until it is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Writes a line; one without amount or length is left out.
    pub(crate) fn add(&mut self, entry: Entry) {
        if entry.amount > 0 && entry.to > entry.from {
            self.entries.push(entry);
        }
    }

    /// What has been written since the last time.
    #[must_use]
    pub fn take(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }
}
