//! What a process states of a move of its memory between device and host.

use crate::page::Residency;

/// Outcome of an order about the memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveReport {
    /// `order_seq` of the order; 0 if the process has moved its memory by itself.
    pub seq: u32,
    /// Location of the memory now.
    pub residency: Residency,
    /// Reason why the order was not carried out; `None` if it was.
    pub refusal: Option<MoveRefusal>,
    /// What was moved, and how long it took.
    pub transfer: Transfer,
}

/// Amounts and times of a move of a process's memory, or of those of several processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Size of the memory that was released on the device, or created there, in bytes.
    pub bytes: u64,
    /// Size of the memory that was copied over the link, in bytes.
    pub copied_bytes: u64,
    /// Time until nothing was in flight, in nanoseconds.
    pub drain_ns: u64,
    /// Time in which changes were looked for, in nanoseconds.
    pub hash_ns: u64,
    /// Time of the copies, in nanoseconds.
    pub copy_ns: u64,
    /// Time of unmapping and releasing, in nanoseconds.
    pub unmap_ns: u64,
    /// Time of creating and mapping, in nanoseconds.
    pub map_ns: u64,
    /// Time from the order to its end, in nanoseconds.
    pub total_ns: u64,
}

impl Transfer {
    /// Combines the moves of two processes at the same time: amounts are added, of the times the longer one counts.
    #[must_use]
    pub fn beside(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            copied_bytes: self.copied_bytes.saturating_add(other.copied_bytes),
            drain_ns: self.drain_ns.max(other.drain_ns),
            hash_ns: self.hash_ns.max(other.hash_ns),
            copy_ns: self.copy_ns.max(other.copy_ns),
            unmap_ns: self.unmap_ns.max(other.unmap_ns),
            map_ns: self.map_ns.max(other.map_ns),
            total_ns: self.total_ns.max(other.total_ns),
        }
    }
}

/// The reason why the memory of a process is not moved. A closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MoveRefusal {
    /// A stream is being captured.
    Capturing = 1,
    /// Work in flight, or a call in progress, did not end in time; or another move is in progress.
    Draining = 2,
    /// Another process may have mapped memory of this one.
    Exported = 3,
    /// The process has mapped memory of another one.
    Imported = 4,
    /// Memory is bound to a multicast object, as by collectives among GPUs, or to a sparse array.
    Collective = 5,
    /// The driver has reported a sticky error.
    StickyError = 6,
    /// The pod's memory stays on the device by its annotation.
    Never = 7,
    /// There is not enough host memory for the copy; or not enough device memory for the return.
    NoMemory = 8,
    /// The process uses a version of the protocol without moves.
    Protocol = 9,
    /// The pod's slot is lost.
    SlotLost = 10,
    /// The pod has no process with a device.
    NoProcess = 11,
}

/// All refusals of moves, each at the index of its number less 1.
pub const MOVE_REFUSALS: [MoveRefusal; 11] = [
    MoveRefusal::Capturing,
    MoveRefusal::Draining,
    MoveRefusal::Exported,
    MoveRefusal::Imported,
    MoveRefusal::Collective,
    MoveRefusal::StickyError,
    MoveRefusal::Never,
    MoveRefusal::NoMemory,
    MoveRefusal::Protocol,
    MoveRefusal::SlotLost,
    MoveRefusal::NoProcess,
];

impl MoveRefusal {
    /// Returns the name of the reason, as in responses and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capturing => "capturing",
            Self::Draining => "draining",
            Self::Exported => "exported",
            Self::Imported => "imported",
            Self::Collective => "collective",
            Self::StickyError => "sticky-error",
            Self::Never => "never",
            Self::NoMemory => "no-memory",
            Self::Protocol => "protocol",
            Self::SlotLost => "slot-lost",
            Self::NoProcess => "no-process",
        }
    }

    /// Returns the reason in words, for operators.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Capturing => "a stream is being captured",
            Self::Draining => {
                "work in flight or a call in progress did not end in time, another move is in progress, or a process is connecting again"
            }
            Self::Exported => "another process may have mapped memory of the process",
            Self::Imported => "the process has mapped memory of another process",
            Self::Collective => {
                "memory is bound to a multicast object, as by collectives among GPUs, or to a sparse array"
            }
            Self::StickyError => "the driver has reported a sticky error",
            Self::Never => "weir.dev/evict: never keeps the model on the device",
            Self::NoMemory => "there is not enough memory for the model at its destination",
            Self::Protocol => "the process uses a version of Weir's library without eviction",
            Self::SlotLost => "the pod's slot is lost",
            Self::NoProcess => "the pod has no process with a device",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_at_the_same_time_are_added() {
        let one = Transfer {
            bytes: 5,
            copied_bytes: 3,
            total_ns: 7,
            ..Transfer::default()
        };
        let both = one.beside(Transfer {
            bytes: 1,
            total_ns: 9,
            ..Transfer::default()
        });
        assert_eq!((both.bytes, both.copied_bytes, both.total_ns), (6, 3, 9));
        for (index, refusal) in MOVE_REFUSALS.into_iter().enumerate() {
            assert_eq!(refusal as usize, index + 1);
            assert!(!refusal.name().contains(' ') && refusal.text().contains(' '));
        }
    }
}
