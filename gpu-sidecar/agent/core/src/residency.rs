//! Moves of models between device and host: settings, the node's host memory, and what is known of one pod's model.

use std::collections::BTreeMap;

use policy::tokens::ProcessId;
use protocol::message::{MoveRefusal, Transfer};
use protocol::page::Residency;
use serde::{Deserialize, Serialize};

use crate::process::Resumed;

/// Time for which work in flight is waited for where an order states none, in milliseconds.
pub const DRAIN_MS: u32 = 1_000;
/// Longest time that an order may state, in milliseconds.
pub const DRAIN_MS_MAX: u32 = 600_000;
/// Time after which a process that has not answered an order counts as one that refuses it, beside the time for the drain, in nanoseconds.
const ANSWER_MAX_NS: u64 = 120_000_000_000;
/// Sizes of windows are multiples of this, in bytes: a huge page, and a granule of every GPU.
const WINDOW_UNIT: u64 = 2 << 20;
/// Part of the host memory of a process by which a window exceeds the need, so that a growing process needs few.
const AHEAD: u64 = 8;

/// Host memory for models of the node, and what brings models back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemorySettings {
    /// Host memory for models on the node, in bytes; 0: none can leave its device.
    pub host_bytes: u64,
    /// Part of it that processes may register with the driver, in bytes.
    pub pinned_bytes: u64,
    /// Whether a thread that waits for the memory of its process brings it back; otherwise only an order does.
    pub restores_on_demand: bool,
}

/// Host memory of the node for models.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostBudget {
    settings: MemorySettings,
    used: u64,
    pinned: u64,
}

/// Host memory given to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) bytes: u64,
    pub(crate) is_pinned: bool,
}

impl HostBudget {
    pub(crate) const fn new(settings: MemorySettings) -> Self {
        Self {
            settings,
            used: 0,
            pinned: 0,
        }
    }

    pub(crate) const fn settings(&self) -> MemorySettings {
        self.settings
    }

    /// Takes a window for a process which has `given` bytes and needs `wanted`; `None` if it needs none, or there is not enough.
    pub(crate) fn take(&mut self, given: u64, wanted: u64) -> Option<Window> {
        let missing = wanted.checked_sub(given).filter(|bytes| *bytes > 0)?;
        let free = self.settings.host_bytes.saturating_sub(self.used);
        let exact = missing.checked_next_multiple_of(WINDOW_UNIT)?;
        let ahead = missing
            .saturating_add(wanted / AHEAD)
            .checked_next_multiple_of(WINDOW_UNIT)?;
        let bytes = [ahead, exact].into_iter().find(|bytes| *bytes <= free)?;
        let is_pinned = self.pinned.saturating_add(bytes) <= self.settings.pinned_bytes;
        self.used += bytes;
        if is_pinned {
            self.pinned += bytes;
        }
        Some(Window { bytes, is_pinned })
    }

    /// Counts the windows which an earlier agent has given a process, within the budget or not.
    pub(crate) const fn adopt(&mut self, bytes: u64, pinned: u64) {
        self.used = self.used.saturating_add(bytes);
        self.pinned = self.pinned.saturating_add(pinned);
    }

    /// Returns the windows of a process that has ended.
    pub(crate) const fn give_back(&mut self, bytes: u64, pinned: u64) {
        self.used = self.used.saturating_sub(bytes);
        self.pinned = self.pinned.saturating_sub(pinned);
    }
}

/// What the agent knows of the memory of one process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessMoves {
    /// Whether the process can move its memory: version 2 of the protocol.
    pub(crate) is_able: bool,
    /// Location of its memory, as it states it.
    pub(crate) residency: Residency,
    /// Number of the last order in its page.
    pub(crate) order: u32,
    /// Size of its windows, in bytes, and of those which may be registered.
    pub(crate) windows: u64,
    pub(crate) pinned: u64,
    /// Time until which a thread counts as waiting for the memory, in nanoseconds.
    pub(crate) waits_until: u64,
}

impl ProcessMoves {
    pub(crate) const fn new(resumed: &Resumed) -> Self {
        Self {
            is_able: resumed.version >= 2,
            residency: resumed.residency,
            order: 0,
            windows: resumed.host_bytes,
            pinned: resumed.pinned_bytes,
            waits_until: 0,
        }
    }

    /// Takes the location that the process publishes; a process that has published none has stated it by messages alone.
    pub(crate) const fn take_location(&mut self, number: u32) {
        match Residency::from_number(number) {
            None | Some(Residency::None) => {}
            Some(residency) => self.residency = residency,
        }
    }

    /// Returns whether the memory is where an order wants it.
    pub(crate) const fn is_at(&self, target: Target) -> bool {
        let is_away = matches!(self.residency, Residency::Host | Residency::Restoring);
        match target {
            Target::Host => is_away,
            Target::Device => !is_away,
        }
    }
}

/// Where an order wants the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Host,
    Device,
}

impl Target {
    pub(crate) const fn opposite(self) -> Self {
        match self {
            Self::Host => Self::Device,
            Self::Device => Self::Host,
        }
    }
}

/// A move of a pod's model that is being carried out.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) seq: u64,
    pub(crate) target: Target,
    /// Why it was begun: an order, or a thread that waits.
    pub(crate) is_demand: bool,
    /// Whether it undoes a move that some process has refused.
    pub(crate) undoes: Option<MoveRefusal>,
    /// Processes which have not answered, each with the number of its order.
    pub(crate) pending: BTreeMap<ProcessId, u32>,
    /// Processes which have moved.
    pub(crate) moved: Vec<ProcessId>,
    pub(crate) refusal: Option<MoveRefusal>,
    pub(crate) transfer: Transfer,
    /// Numbers of the operators' orders that are answered at its end.
    pub(crate) waiting: Vec<u64>,
    /// Time at which processes without an answer count as refusing, in nanoseconds.
    pub(crate) until: u64,
}

/// Moves of one pod's model.
#[derive(Debug, Default)]
pub(crate) struct PodMoves {
    /// Number of the last move.
    pub(crate) seq: u64,
    pub(crate) current: Option<Move>,
    /// Time before which a waiting thread begins no restore, in nanoseconds.
    pub(crate) retry_at: u64,
}

impl PodMoves {
    /// Returns when the current move times out, in nanoseconds.
    pub(crate) fn until(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.until)
    }

    /// Returns the end of a move with this time for the drain that begins now, in nanoseconds.
    pub(crate) fn end(now: u64, drain_ms: u32) -> u64 {
        now.saturating_add(u64::from(drain_ms) * 1_000_000)
            .saturating_add(ANSWER_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(host: u64, pinned: u64) -> HostBudget {
        HostBudget::new(MemorySettings {
            host_bytes: host * MIB,
            pinned_bytes: pinned * MIB,
            restores_on_demand: true,
        })
    }

    #[test]
    fn a_window_covers_the_need_and_something_more() {
        let mut budget = budget(1_000, 500);
        let window = budget.take(0, 80 * MIB).unwrap();
        assert_eq!((window.bytes, window.is_pinned), (90 * MIB, true));
        assert_eq!(budget.take(90 * MIB, 90 * MIB), None);
        let more = budget.take(90 * MIB, 91 * MIB).unwrap();
        assert_eq!(more.bytes, 14 * MIB);
    }

    #[test]
    fn host_memory_and_its_pinned_part_are_bounded() {
        let mut budget = budget(100, 50);
        let first = budget.take(0, 40 * MIB).unwrap();
        assert_eq!((first.bytes, first.is_pinned), (46 * MIB, true));
        let second = budget.take(0, 30 * MIB).unwrap();
        assert_eq!((second.bytes, second.is_pinned), (34 * MIB, false));
        // No room for more than the need.
        let exact = budget.take(0, 19 * MIB).unwrap();
        assert_eq!(exact.bytes, 20 * MIB);
        assert_eq!(budget.take(0, 1), None);
        budget.give_back(first.bytes, first.bytes);
        assert!(budget.take(0, 40 * MIB).unwrap().is_pinned);
        assert_eq!(budget.take(0, u64::MAX), None);
    }
}
