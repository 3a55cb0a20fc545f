//! Rules and random variation of a run.

use policy::Span;
use policy::pool::{Percentile, queue, slots};

use super::memory::MemoryRule;
use super::swap_time::SwapTime;

/// Standard deviations of random factors with mean one (workloads §10).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Deviation of execution times; factors are never below half. 0.03 is an assumption.
    pub execution: f64,
    /// Deviation of transfer times; factors are never below half.
    pub transfer: f64,
    /// Deviation of the logarithm of cold-start times.
    pub cold_start: f64,
}

impl Noise {
    /// Noise of zero: executions, transfers and cold starts take exactly their mean times.
    pub const OFF: Self = Self {
        execution: 0.0,
        transfer: 0.0,
        cold_start: 0.0,
    };
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            execution: 0.03,
            transfer: 0.05,
            cold_start: 0.15,
        }
    }
}

/// Latency of a request outside of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hops {
    /// Latency from the client to the queue.
    pub there: Span,
    /// Latency from the slot to the client.
    pub back: Span,
}

/// Location of models and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosting {
    /// Models are in host memory and are swapped to slots on demand (M2.1).
    Swapped,
    /// Each function has a process bound to one slot, as far as they fit; other functions never run (M2.21).
    Native,
    /// As [`Native`](Self::Native), but a process is stopped when it has been idle for a time derived from the histogram of its
    /// function's idle times, and the next request of the function starts a new one (M2.21).
    KeptAlive,
}

/// Settings of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Order of functions in the queue of each node.
    pub queue: queue::Settings,
    /// Placement, eviction and swapping on slots.
    pub slots: slots::Settings,
    /// Whether models of waiting requests are loaded beside what computes, where models are swapped and their memory is counted
    /// ([`policy::pool::ahead`]).
    pub loads_ahead: bool,
    /// Location of models and processes.
    pub hosting: Hosting,
    /// Choice of slots for processes bound to them.
    pub filling: slots::Filling,
    /// Percentile of the objective, for functions without one of their own.
    pub percentile: Percentile,
    /// Number of nodes of the cluster.
    pub nodes: u32,
    /// Share of the memory for models that is used; 1 is all of it.
    pub memory_part: f64,
    /// Random variation of times.
    pub noise: Noise,
    /// Latency of a request outside of the slot.
    pub hops: Hops,
    /// Number of slots with a process of each function, as far as there is room, where processes are bound to slots.
    pub instances_per_function: u32,
    /// Management of the slots' memory; only [`MemoryRule::Bytes`] unless models are swapped and calls redirected.
    pub memory: MemoryRule,
    /// Law by which swaps take their time.
    pub swap_time: SwapTime,
}

impl Default for Settings {
    /// Returns the settings of Torpor with all of its mechanisms.
    fn default() -> Self {
        Self {
            queue: queue::Settings::default(),
            slots: slots::Settings::default(),
            loads_ahead: false,
            hosting: Hosting::Swapped,
            filling: slots::Filling::default(),
            percentile: Percentile::from_parts_per_million(980_000),
            nodes: 1,
            memory_part: 1.0,
            noise: Noise::default(),
            hops: Hops::default(),
            instances_per_function: 1,
            memory: MemoryRule::Bytes,
            swap_time: SwapTime::Fitted,
        }
    }
}
