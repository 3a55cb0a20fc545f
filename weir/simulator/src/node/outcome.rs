//! What came of a run.

use policy::{Span, Time};

use crate::statistics::{Histogram, Percentile};

/// A stretch of time in which a slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Over all nodes, node by node.
    pub slot: u32,
    /// By a request of this function.
    pub function: u32,
    /// From when.
    pub from: Time,
    /// Until when its model was on its way; `from` if it was there.
    pub loaded: Time,
    /// How long the request executes where its model is.
    pub execution: Span,
    /// Until when.
    pub to: Time,
}

/// What a function's requests met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FunctionOutcome {
    /// Requests counted.
    pub requests: u64,
    /// Of them, late or never answered although their deadline was past.
    pub late: u64,
    /// Of them, whose model had to be loaded.
    pub loads: u64,
    /// No process or memory was ever there for it.
    pub refused: u64,
    /// What it is charged for the whole run, warm-up included, in time of a GPU (M2.18).
    pub charged: Span,
}

impl FunctionOutcome {
    /// Whether the percentile of its latencies is within the objective (M2.19); a function without requests is.
    #[must_use]
    pub const fn complies(&self, percentile: Percentile) -> bool {
        percentile.kept(self.requests - self.late, self.requests)
    }

    /// Whether anything of it ran.
    #[must_use]
    pub const fn executed(&self) -> bool {
        self.requests > self.refused
    }
}

/// What a node did.
#[derive(Clone, Debug, Default)]
pub struct NodeOutcome {
    /// How long each slot was taken within the counted span.
    pub busy: Vec<Span>,
    /// Of it, until the model was there.
    pub loading: Vec<Span>,
    /// Latencies of requests that ran there, by slot.
    pub latencies: Vec<Histogram>,
    /// Models that gave way.
    pub evictions: u64,
    /// Loads from the host, and from other slots.
    pub host_loads: u64,
    /// See there.
    pub link_loads: u64,
    /// Requests whose model was there.
    pub resident: u64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By function.
    pub functions: Vec<FunctionOutcome>,
    /// By function, the nodes that hold it; none: none has room for it.
    pub places: Vec<[Option<u32>; 2]>,
    /// Latencies by model, as the hardware lists them.
    pub models: Vec<Histogram>,
    /// Latency as a part of the objective, 1 s for a whole.
    pub normalised: Histogram,
    /// How long requests waited for device memory as a part of their execution, 1 s for a whole; empty where memory is
    /// counted in bytes.
    pub allocation: Histogram,
    /// By node.
    pub nodes: Vec<NodeOutcome>,
    /// How long is counted: less than asked for where the run was stopped.
    pub counted: Span,
    /// Events that were taken.
    pub events: u64,
    /// Requests that arrived, warm-up included.
    pub arrived: u64,
    /// Most requests in flight at once.
    pub in_flight_max: u64,
    /// The first stretches of the counted span, if they were asked for.
    pub taken: Vec<Taken>,
    /// It was told to stop, and ended there.
    pub stopped: bool,
}

impl Outcome {
    /// Functions that comply, of those that have run or were to.
    #[must_use]
    pub fn compliant(&self, percentile: Percentile) -> usize {
        self.functions
            .iter()
            .filter(|function| function.complies(percentile) && function.executed())
            .count()
    }

    /// Requests in time, of those that were counted.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let (requests, late) = self.functions.iter().fold((0, 0), |(requests, late), own| {
            (requests + own.requests, late + own.late)
        });
        part(requests - late, requests)
    }

    /// Load of each slot, as a part of the counted span.
    #[must_use]
    pub fn loads(&self) -> Vec<f64> {
        let each = self.nodes.iter().flat_map(|node| &node.busy);
        each.map(|busy| part(busy.0, self.counted.0)).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub(crate) fn part(some: u64, of: u64) -> f64 {
    some as f64 / of.max(1) as f64
}
