//! The rules by which slots are assigned, and the topology of the slots.

use std::fmt;

use crate::Span;
use crate::pool::SlotId;

/// Largest number of slots of a pool, since sets of slots are 64-bit words.
pub const SLOTS_MAX: usize = 64;

/// Slots that a function may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Any slot: calls are redirected to the slot chosen for each request (M2.1).
    Pool,
    /// Slots on which the function has an instance, with a process that belongs to its slot for life. Each instance
    /// costs its context residue there. At most one instance of a function holds weights unless memory is free.
    Process,
}

/// Rule that chooses among the free slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Algorithm 1 (M2.15), which avoids concurrent loads over the same path to the host.
    InterferenceAware,
    /// Any slot; the model is loaded from the host unless it is on that very slot.
    Random,
    /// A slot with the model if one is free, or otherwise any, with the model loaded from the host (M2.21).
    ResidentElseRandom,
}

/// Order in which models are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Duplicates and light models before sole copies of heavy models, each by least recent use (M2.16).
    Classes,
    /// As [`Eviction::Classes`], but sole copies of heavy models which are tight last of all (mechanisms §2.3b).
    Objectives,
    /// Least recent use alone.
    LeastRecentlyUsed,
}

/// Whether models are evicted for others at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// Late binding: models are loaded and evicted as requests arrive.
    On,
    /// Early binding: a model stays on the slot where it was first placed until it is unloaded.
    Off,
}

/// Whether a heavy model waits rather than being loaded next to another heavy one (mechanisms §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The model never waits while a slot is free.
    None,
    /// The model waits if a better slot is expected to be free within 0.25 × the cost of loading side by side.
    QuarterOfContention {
        /// Slowdown of two loads side by side compared to alone, in percent of their common time.
        slowdown_percent: u32,
    },
}

/// Settings of a pool's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Slots that a function may use.
    pub binding: Binding,
    /// Rule that chooses among the free slots.
    pub placement: Placement,
    /// Order in which models are evicted.
    pub eviction: Eviction,
    /// Whether models are evicted for others at all.
    pub swap: Swap,
    /// Whether a heavy model waits rather than being loaded next to another heavy one.
    pub patience: Patience,
    /// Interval at which the past busy time of every slot is halved, for the choice of the least loaded one; zero: it is
    /// never halved.
    pub load_half_life: Span,
}

impl Default for Settings {
    /// Returns the settings of mechanisms §2.3 and §2.3b.
    fn default() -> Self {
        Self {
            binding: Binding::Pool,
            placement: Placement::InterferenceAware,
            eviction: Eviction::Classes,
            swap: Swap::On,
            patience: Patience::None,
            load_half_life: Span::from_secs(10),
        }
    }
}

/// Slots of a node with their memory and links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub(super) memory: Vec<u64>,
    /// Bit sets of the slots that share a slot's path to the host.
    pub(super) neighbours: Vec<u64>,
    /// Link speeds in megabytes per second, row by row, from source to destination; zero without a link.
    pub(super) links: Vec<u32>,
}

/// Reason why a topology is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// The topology has no slots, or more than [`SLOTS_MAX`].
    Slots {
        /// Number of slots given.
        slots: usize,
    },
    /// A slot of the pair does not exist, or both are the same.
    Pair {
        /// First slot of the pair.
        one: SlotId,
        /// Second slot of the pair.
        other: SlotId,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Slots { slots } => {
                write!(f, "a pool must have 1 to {SLOTS_MAX} slots, not {slots}")
            }
            Self::Pair { one, other } => {
                write!(
                    f,
                    "{} and {} are not two different slots of the pool",
                    one.0, other.0
                )
            }
        }
    }
}

impl std::error::Error for TopologyError {}

impl Topology {
    /// Creates one slot for each entry of `memory`, which is the memory for models in bytes, without links.
    ///
    /// # Errors
    /// Returns [`TopologyError::Slots`] if `memory` is empty or too long.
    pub fn new(memory: &[u64]) -> Result<Self, TopologyError> {
        let slots = memory.len();
        if slots == 0 || slots > SLOTS_MAX {
            return Err(TopologyError::Slots { slots });
        }
        Ok(Self {
            memory: memory.to_vec(),
            neighbours: vec![0; slots],
            links: vec![0; slots * slots],
        })
    }

    /// Creates one slot without memory, to which others are added later ([`super::Pool::add_slots`]).
    pub(in crate::pool) fn of_one_slot() -> Self {
        Self {
            memory: vec![0],
            neighbours: vec![0],
            links: vec![0],
        }
    }

    /// Records that two slots share their path to the host, as GPUs on one PCIe switch or slices of one GPU do.
    ///
    /// # Errors
    /// Returns [`TopologyError::Pair`].
    pub fn share_host_path(&mut self, one: SlotId, other: SlotId) -> Result<(), TopologyError> {
        let (from, to) = self.both(one, other)?;
        self.neighbours[from] |= 1 << to;
        self.neighbours[to] |= 1 << from;
        Ok(())
    }

    /// Links two slots in both directions at `speed` megabytes per second; zero removes the link.
    ///
    /// # Errors
    /// Returns [`TopologyError::Pair`].
    pub fn link(&mut self, one: SlotId, other: SlotId, speed: u32) -> Result<(), TopologyError> {
        let (from, to) = self.both(one, other)?;
        let slots = self.memory.len();
        self.links[from * slots + to] = speed;
        self.links[to * slots + from] = speed;
        Ok(())
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.memory.len()
    }

    fn both(&self, one: SlotId, other: SlotId) -> Result<(usize, usize), TopologyError> {
        let (from, to) = (one.0 as usize, other.0 as usize);
        if from == to || from.max(to) >= self.memory.len() {
            return Err(TopologyError::Pair { one, other });
        }
        Ok((from, to))
    }
}
