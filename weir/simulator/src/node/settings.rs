//! Which rules a run goes by, and what is random in it.

use policy::Span;
use policy::pool::{Percentile, queue, slots};

use super::memory::MemoryRule;
use super::swap_time::SwapTime;

/// Random differences, as standard deviations of factors around one (workloads 10).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Of executions, never below half: 0.03 is an assumption.
    pub execution: f64,
    /// Of transfers.
    pub transfer: f64,
    /// Of cold starts: the standard deviation of the logarithm.
    pub cold_start: f64,
}

impl Noise {
    /// None at all.
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

/// What a request spends on its way without a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hops {
    /// From the client to the queue.
    pub there: Span,
    /// From the slot to the client.
    pub back: Span,
}

/// Where models may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosting {
    /// In host memory, swapped to slots as requests come (M2.1).
    Swapped,
    /// Each function has a process on one slot for good, as far as they fit; others never run (M2.21).
    Native,
    /// The same, but a process goes when it has been idle for as long as the histogram of its idle times says, and the next
    /// request of the function starts one anew (M2.21).
    KeptAlive,
}

/// The settings of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How the queue of each node orders functions.
    pub queue: queue::Settings,
    /// How slots are given.
    pub slots: slots::Settings,
    /// Where models may be.
    pub hosting: Hosting,
    /// Where processes are put that have slots to themselves.
    pub filling: slots::Filling,
    /// Of each function's objective, where the function has none of its own.
    pub percentile: Percentile,
    /// How many nodes.
    pub nodes: u32,
    /// What of the memory for models is used: 1 is all.
    pub memory_part: f64,
    /// What is random.
    pub noise: Noise,
    /// What a request spends on its way.
    pub hops: Hops,
    /// Where processes are bound to slots: on how many slots each function has one, as far as there is room for them.
    pub instances_per_function: u32,
    /// How the memory of slots is kept; other than in bytes only where models are swapped and calls are redirected.
    pub memory: MemoryRule,
    /// How long swaps take.
    pub swap_time: SwapTime,
}

impl Default for Settings {
    /// Torpor, whole.
    fn default() -> Self {
        Self {
            queue: queue::Settings::default(),
            slots: slots::Settings::default(),
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
