//! By what rules slots are given, and what the slots are.

use std::fmt;

use crate::Span;
use crate::pool::SlotId;

/// A pool has at most this many slots: sets of slots are words.
pub const SLOTS_MAX: usize = 64;

/// Which slots a function may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Any: calls are redirected to the slot chosen for each request (M2.1).
    Pool,
    /// Those where it has an instance, whose process belongs to its slot for life. Each instance costs its
    /// context residue there. At most one instance of a function holds weights unless memory is free.
    Process,
}

/// Which of the free slots a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Algorithm 1 (M2.15).
    InterferenceAware,
    /// Any, and the model comes from the host unless it is on that very slot.
    Random,
    /// A slot with the model if one is free, else any, and the model comes from the host (M2.21).
    ResidentElseRandom,
}

/// Which model gives way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Duplicates and light models before sole copies of heavy ones, each by least recent use (M2.16).
    Classes,
    /// By least recent use alone.
    LeastRecentlyUsed,
}

/// Whether models give way at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// Late binding: models come and go as requests do.
    On,
    /// Early binding: a model stays on the slot where it was first put until it is unloaded.
    Off,
}

/// Whether a heavy model waits rather than load beside another heavy one (note to papers 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It never waits while a slot is free.
    None,
    /// It waits if a better slot is expected to be free within 0.25 × what loading side by side would cost.
    QuarterOfContention {
        /// By how much longer than alone two loads take side by side, in percent of their common time.
        slowdown_percent: u32,
    },
}

/// The settings of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which slots a function may use.
    pub binding: Binding,
    /// Which of the free slots a request gets.
    pub placement: Placement,
    /// Which model gives way first.
    pub eviction: Eviction,
    /// Whether models give way at all.
    pub swap: Swap,
    /// Whether a heavy model waits rather than load beside another heavy one.
    pub patience: Patience,
    /// A slot's past load counts half after so long.
    pub load_half_life: Span,
}

impl Default for Settings {
    /// Papers 2.3 and 2.3b.
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

/// The slots of a node, their memory, and how they are linked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub(super) memory: Vec<u64>,
    /// Slots on the same path to the host, as sets.
    pub(super) neighbours: Vec<u64>,
    /// Row by row, from source to destination.
    pub(super) links: Vec<u32>,
}

/// Why a topology is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// No slots, or more than [`SLOTS_MAX`].
    Slots {
        /// How many.
        slots: usize,
    },
    /// No such slot, or one slot twice.
    Pair {
        /// One.
        one: SlotId,
        /// The other.
        other: SlotId,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Slots { slots } => write!(f, "{slots} slots are not 1 to {SLOTS_MAX}"),
            Self::Pair { one, other } => {
                write!(f, "{} and {} are no two slots of the pool", one.0, other.0)
            }
        }
    }
}

impl std::error::Error for TopologyError {}

impl Topology {
    /// One slot for each of `memory`, in bytes that models may take, without links.
    ///
    /// # Errors
    /// [`TopologyError::Slots`].
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

    /// Two slots share their path to the host: GPUs on one PCIe switch, slices of one GPU.
    ///
    /// # Errors
    /// [`TopologyError::Pair`].
    pub fn share_host_path(&mut self, one: SlotId, other: SlotId) -> Result<(), TopologyError> {
        let (from, to) = self.both(one, other)?;
        self.neighbours[from] |= 1 << to;
        self.neighbours[to] |= 1 << from;
        Ok(())
    }

    /// Two slots are linked, both ways, at this speed in megabytes per second; zero: they are not.
    ///
    /// # Errors
    /// [`TopologyError::Pair`].
    pub fn link(&mut self, one: SlotId, other: SlotId, speed: u32) -> Result<(), TopologyError> {
        let (from, to) = self.both(one, other)?;
        let slots = self.memory.len();
        self.links[from * slots + to] = speed;
        self.links[to * slots + from] = speed;
        Ok(())
    }

    /// How many slots there are.
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
