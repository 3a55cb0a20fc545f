//! Moves of models between device and host: settings, the node's host memory, and what is known of one pod's model.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::time::Duration;

use policy::host_memory::HostMemory;
use policy::host_memory::pins::Pins;
use policy::pool::leases::Rule;
use policy::tokens::ProcessId;
use protocol::MOVES_SINCE;
use protocol::message::{MoveRefusal, Transfer};
use protocol::page::{Residency, Streaming};
use serde::{Deserialize, Serialize};

use crate::process::Resumed;
use crate::record::wire;

/// Time for which work in flight is waited for where an order states none, in milliseconds.
pub const DRAIN_MS: u32 = 1_000;
/// Longest time that an order may state, in milliseconds.
pub const DRAIN_MS_MAX: u32 = 600_000;
/// Time after which a process that has not answered an order counts as one that refuses it, beside the time for the drain, in nanoseconds.
const ANSWER_MAX_NS: u64 = 120_000_000_000;
/// Longest time from an order to its answer, beside the time for its drain: that of the processes, and again that for undoing what some of them
/// have done.
pub const MOVE_MAX: Duration =
    Duration::from_nanos(2 * ANSWER_MAX_NS + DRAIN_MS as u64 * 1_000_000);
/// Maximum number of windows of a process. Each one but the last exceeds what was needed by an eighth, so honest processes need few.
pub(crate) const WINDOWS_MAX: u32 = 256;

/// Host memory for models of the node, and what brings models back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemorySettings {
    /// Host memory for models on the node, in bytes; 0: none can leave its device.
    pub host_bytes: u64,
    /// Part of it that processes may register with the driver, in bytes.
    pub pinned_bytes: u64,
    /// Part of that for a process whose copies are not all registered, through which they pass in pieces, in bytes; 0: none.
    #[serde(default)]
    pub staging_bytes: u64,
    /// Whether a thread that waits for the memory of its process brings it back; otherwise only an order does.
    pub restores_on_demand: bool,
    /// Time without a launch or touch after which a process copies ahead of an eviction, in milliseconds; 0: never.
    #[serde(default)]
    pub seal_after_ms: u32,
    /// Whether programs may compute amid a restore, with what of their memory is there.
    #[serde(default, with = "wire::streaming")]
    pub streaming: Streaming,
    /// Rule by which models leave for others, and their pods get leases.
    #[serde(default, with = "wire::rule")]
    pub rule: Rule,
    /// Whether processes that compute no more are ended where there are leases ([`policy::faults`]).
    #[serde(default)]
    pub ends_faulted: bool,
}

/// Settings, and the host memory that is divided by them.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    pub(crate) settings: MemorySettings,
    pub(crate) host: HostMemory,
    /// The part of it which is pinned.
    pub(crate) pins: Pins,
}

impl NodeMemory {
    /// Returns a node without host memory for models.
    pub(crate) const fn none() -> Self {
        Self::new(MemorySettings {
            host_bytes: 0,
            pinned_bytes: 0,
            staging_bytes: 0,
            restores_on_demand: false,
            seal_after_ms: 0,
            streaming: Streaming::Off,
            rule: Rule::Weir,
            ends_faulted: false,
        })
    }

    pub(crate) const fn new(settings: MemorySettings) -> Self {
        Self {
            settings,
            host: HostMemory::new(settings.host_bytes),
            pins: Pins::new(settings.pinned_bytes, settings.staging_bytes),
        }
    }
}

/// Host memory which a process was given. All of it counts until the process ends, which may keep what it states not to have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Memory that may be registered with the driver, in bytes: windows, in the order in which they came, and staging memory beside them.
    pub(crate) pinned: u64,
    /// Part of `bytes` that the process states not to have: it was on its way when a connection ended.
    pub(crate) missing: u64,
    /// Number of windows given by this agent.
    pub(crate) count: u32,
}

impl Windows {
    pub(crate) const NONE: Self = Self {
        bytes: 0,
        pinned: 0,
        missing: 0,
        count: 0,
    };

    /// Returns the size of what the process has, as far as is known, in bytes.
    pub(crate) const fn held(&self) -> u64 {
        self.bytes - self.missing
    }

    /// Returns the larger numbers of two connections of one process.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            pinned: self.pinned.max(other.pinned),
            missing: self.missing.max(other.missing),
            count: self.count.max(other.count),
        }
    }

    /// Counts a window. `pinned`: what may be registered with it, in bytes.
    pub(crate) const fn add(&mut self, bytes: u64, pinned: u64) {
        self.bytes += bytes;
        self.count += 1;
        self.pinned = pinned;
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
    /// Whether that is to return, without a move of its pod, and is not answered.
    pub(crate) is_returning: bool,
    /// Whether it is to return so once there is room: until then its memory takes none.
    pub(crate) waits_for_room: bool,
    /// Host memory which it was given.
    pub(crate) windows: Windows,
    /// Time until which a thread counts as waiting for the memory, in nanoseconds.
    pub(crate) waits_until: u64,
}

impl ProcessMoves {
    pub(crate) const fn new(resumed: &Resumed) -> Self {
        Self {
            is_able: resumed.version >= MOVES_SINCE,
            residency: resumed.residency,
            order: 0,
            is_returning: false,
            waits_for_room: false,
            windows: resumed.windows,
            waits_until: 0,
        }
    }

    /// Takes the location that the process publishes; a process that has published none has stated it by messages alone.
    pub(crate) const fn take_location(&mut self, number: u32) {
        match Residency::from_number(number) {
            None | Some(Residency::None) => {}
            Some(residency) => self.set_location(residency),
        }
    }

    /// Takes the location that the process states. Once its memory is there, no thread waits for it any more.
    pub(crate) const fn set_location(&mut self, residency: Residency) {
        self.residency = residency;
        if matches!(residency, Residency::Resident) {
            self.waits_until = 0;
        }
        if !matches!(residency, Residency::Host) {
            self.waits_for_room = false;
        }
    }

    /// Returns whether the memory is where an order wants it, and not on its way elsewhere.
    pub(crate) const fn is_at(&self, target: Target) -> bool {
        match target {
            Target::Host => matches!(self.residency, Residency::Host) && !self.is_returning,
            Target::Device => matches!(
                self.residency,
                Residency::None | Residency::Resident | Residency::Faulted
            ),
        }
    }

    /// Returns the number of the next order, by which the process returns without a move of its pod.
    pub(crate) const fn next_return(&mut self) -> u32 {
        let next = self.next_order();
        self.is_returning = true;
        next
    }

    /// Returns the number of the next order, which becomes the last one.
    pub(crate) const fn next_order(&mut self) -> u32 {
        let next = self.order.wrapping_add(1);
        self.order = if next == 0 { 1 } else { next };
        (self.is_returning, self.waits_for_room) = (false, false);
        self.order
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
    /// Why a lease needs it, if one does.
    pub(crate) lease: Option<&'static str>,
    /// ID of the trace of the request for which a lease needs it, if that is sampled.
    pub(crate) trace: Option<NonZero<u128>>,
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
    /// Where the model was to be at the end of the last move; `None` before the first.
    pub(crate) wanted: Option<Target>,
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
