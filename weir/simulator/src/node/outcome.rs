//! Counters and results of a run.

use policy::{Span, Time};

use crate::statistics::{Histogram, Percentile};

/// Period in which a request occupied a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Index of the slot over all nodes, node by node.
    pub slot: u32,
    /// Index of the function of the request.
    pub function: u32,
    /// Time at which the request got the slot.
    pub from: Time,
    /// Time at which the model was loaded; `from` if it was resident.
    pub loaded: Time,
    /// Execution time of the request with the model resident, noise included.
    pub execution: Span,
    /// Time at which the slot was released.
    pub to: Time,
}

/// Counters of one function's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FunctionOutcome {
    /// Number of counted requests.
    pub requests: u64,
    /// Number of counted requests which were late, or unanswered although their deadline was past.
    pub late: u64,
    /// Number of counted requests for which the model had to be loaded.
    pub loads: u64,
    /// Number of counted requests refused because no process or memory was available for the function in the whole run.
    pub refused: u64,
    /// GPU time charged to the function for the whole run, warm-up included (M2.18).
    pub charged: Span,
}

impl FunctionOutcome {
    /// Returns whether the percentile of the latencies is within the objective (M2.19); true for a function without requests.
    #[must_use]
    pub const fn complies(&self, percentile: Percentile) -> bool {
        percentile.kept(self.requests - self.late, self.requests)
    }

    /// Returns whether any request of the function was not refused.
    #[must_use]
    pub const fn executed(&self) -> bool {
        self.requests > self.refused
    }
}

/// Counters of one node.
#[derive(Clone, Debug, Default)]
pub struct NodeOutcome {
    /// Time for which each slot was occupied within the counted span.
    pub busy: Vec<Span>,
    /// Part of `busy` in which the slot waited for the model.
    pub loading: Vec<Span>,
    /// Latencies of the requests executed on each slot.
    pub latencies: Vec<Histogram>,
    /// Number of evicted models.
    pub evictions: u64,
    /// Number of loads from the host.
    pub host_loads: u64,
    /// Number of loads from other slots.
    pub link_loads: u64,
    /// Number of requests with a resident model.
    pub resident: u64,
}

/// Results of a run; see the [module](self).
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Counters of each function.
    pub functions: Vec<FunctionOutcome>,
    /// Nodes that hold each function; no node if none has room for it.
    pub places: Vec<[Option<u32>; 2]>,
    /// Latencies of each model's requests, in the order of the hardware's models.
    pub models: Vec<Histogram>,
    /// Latencies divided by objectives, with 1 s for a ratio of one.
    pub normalised: Histogram,
    /// Times of waiting for device memory divided by execution, with 1 s for a ratio of one; empty where memory is
    /// counted in bytes.
    pub allocation: Histogram,
    /// Counters of each node.
    pub nodes: Vec<NodeOutcome>,
    /// Length of the counted span; shorter than requested if the run was stopped.
    pub counted: Span,
    /// Number of events processed.
    pub events: u64,
    /// Number of requests that arrived, warm-up included.
    pub arrived: u64,
    /// Largest number of requests in flight at one time.
    pub in_flight_max: u64,
    /// First slot occupancies that end in the counted span, at most [`CountedSpan::keep`](super::CountedSpan::keep).
    pub taken: Vec<Occupancy>,
    /// Whether `watch` stopped the run before its end.
    pub stopped: bool,
}

impl Outcome {
    /// Returns the number of functions that comply and had at least one request which was not refused.
    #[must_use]
    pub fn compliant(&self, percentile: Percentile) -> usize {
        self.functions
            .iter()
            .filter(|function| function.complies(percentile) && function.executed())
            .count()
    }

    /// Returns the share of counted requests that were in time.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let (requests, late) = self.functions.iter().fold((0, 0), |(requests, late), own| {
            (requests + own.requests, late + own.late)
        });
        part(requests - late, requests)
    }

    /// Returns the load of each slot, as a share of the counted span.
    #[must_use]
    pub fn loads(&self) -> Vec<f64> {
        let each = self.nodes.iter().flat_map(|node| &node.busy);
        each.map(|busy| part(busy.0, self.counted.0)).collect()
    }
}

/// Returns `some ÷ of`, and 0 for 0 of 0.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub fn part(some: u64, of: u64) -> f64 {
    some as f64 / of.max(1) as f64
}
