//! Results of a run: of each function and of the whole.

use std::cmp::Ordering;

use policy::Span;
use serde::Serialize;

use super::limit::{Binding, Limit};
use crate::node::Occupancy;
use crate::statistics::{Histogram, Interval, Timeline};

/// Tolerance for comparing shares, which are quotients of counts.
pub(super) const ROUNDING: f64 = 1e-12;

/// Whether every function keeps its objective, with the confidence that the seeds allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every function does, at the worse end of its interval over seeds.
    Yes,
    /// No function is sure to miss, and some are undecided: their interval contains the required share. Nine of ten functions are
    /// sure to keep their objectives, or all undecided ones keep them on average.
    Probably,
    /// A function misses even at the better end of its interval, too few are sure, or the run was stopped.
    No,
}

/// Results of a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionAnswer {
    /// Name of the function in the trace.
    pub name: String,
    /// Name of the model; empty if the function has a model of its own.
    pub model: String,
    /// Number of counted requests, of all seeds.
    pub requests: u64,
    /// Number of counted requests that were late or never answered.
    pub late: u64,
    /// Share in time over seeds; `None` without requests.
    pub attainment: Option<Interval>,
    /// Objective in milliseconds; `None` where requests state their own.
    pub objective_ms: Option<f64>,
    /// Percentile of requests that must be in time.
    pub percentile: f64,
    /// Whether the lower end of the interval reaches the percentile.
    pub keeps: bool,
    /// Median latency in milliseconds; `None` if no request was answered.
    pub p50_ms: Option<f64>,
    /// Latency of answered requests at the percentile, in milliseconds.
    pub at_percentile_ms: Option<f64>,
    /// Execution time with the model resident, in milliseconds.
    pub execution_ms: f64,
    /// Duration of an uncontended request with a load from the host, in milliseconds.
    pub swapped_ms: f64,
    /// Share of requests for which the model was loaded.
    pub loads: f64,
    /// GPU time charged (M2.18), in seconds: occupied time in whole ms for each request, and a tenth of the time for which its
    /// model waits in host memory.
    pub billed_gpu_s: f64,
    /// Limit that binds the function.
    pub limit: Limit,
    /// Limit that would bind the function if it missed its objective.
    #[serde(skip)]
    pub why: Limit,
}

impl FunctionAnswer {
    /// Returns whether the function misses only at the lower end of its interval, so that more seeds may decide.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let reaches = |own: Interval| own.high >= self.percentile / 100.0 - ROUNDING;
        !self.keeps && self.attainment.is_some_and(reaches)
    }
}

/// Results of a point: all of its seeds together. Counts are sums over seeds; times, GPU hours and money are averages for one
/// run.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Name of the rules.
    pub rule: &'static str,
    /// Number of GPUs of each node.
    pub gpus_per_node: u32,
    /// Number of nodes of the cluster.
    pub nodes: u32,
    /// Number of GPUs of all nodes.
    pub gpus: u32,
    /// Memory for models on each GPU, in 10⁹ bytes.
    pub models_gb: f64,
    /// Rate from host to GPU, in 10⁹ bytes per second.
    pub host_gb_per_s: f64,
    /// Rate of arrivals as a multiple of the trace's.
    pub rate_scale: f64,
    /// Whether the run was interrupted; the results then cover the time until then.
    pub stopped: bool,
    /// Length of the counted time of a run, in seconds.
    pub counted_s: f64,
    /// Number of seeds that were run.
    pub seeds: usize,
    /// Number of counted requests, of all seeds.
    pub requests: u64,
    /// Share of requests in time, over seeds.
    pub attainment: Interval,
    /// Share of functions that keep their objectives, over seeds.
    pub keeping: Interval,
    /// Number of functions with counted requests.
    pub functions_called: usize,
    /// Number of functions that keep their objectives at the lower end of their interval.
    pub functions_keeping: usize,
    /// Number of functions whose interval contains their percentile without keeping it at the lower end: more seeds may decide.
    pub functions_undecided: usize,
    /// Number of undecided functions that keep their objectives on average.
    #[serde(skip)]
    pub functions_keeping_on_average: usize,
    /// Share of time in which GPUs are occupied, over seeds.
    pub gpu_busy: Interval,
    /// Share of occupied time that loads add to execution.
    pub gpu_swapping: f64,
    /// Mean number of occupied GPUs.
    pub slots_mean: f64,
    /// Largest number of GPUs occupied at one time.
    pub slots_peak: u32,
    /// Number of requests for which the model was loaded.
    pub loads: u64,
    /// Number of evicted models.
    pub evictions: u64,
    /// GPU hours of the counted time, occupied or not.
    pub gpu_hours: f64,
    /// GPU hours charged to functions.
    pub billed_gpu_hours: f64,
    /// Cost of the GPUs for the counted time; `None` without a price.
    pub cost: Option<f64>,
    /// Cost of the GPUs for an hour; `None` without a price.
    pub cost_per_hour: Option<f64>,
    /// Cost of a million requests in time; `None` without a price.
    pub cost_per_million_in_time: Option<f64>,
    /// Limit that binds most late requests.
    pub binding: Binding,
    /// Remarks on the results, in sentences.
    pub notes: Vec<String>,
    /// Results by function, in the order of the trace.
    pub functions: Vec<FunctionAnswer>,
    /// Data for plots, complete only in the answer that is shown.
    #[serde(skip)]
    pub detail: Detail,
}

/// Latencies and occupancies from which plots are drawn.
#[derive(Clone, Debug)]
pub struct Detail {
    /// Latencies of each function of the answer, of all seeds; empty if none ran.
    pub latencies: Vec<Histogram>,
    /// Objective of each function of the answer.
    pub objectives: Vec<Option<Span>>,
    /// Busy time of GPUs over the whole run of the first seed.
    pub timeline: Timeline,
    /// All slot occupancies of the first seed, by the time of their end; `function` is an index into the answer's functions.
    pub taken: Vec<Occupancy>,
}

impl Answer {
    /// Returns whether every function keeps its objective.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.outcome() == Outcome::Yes
    }

    /// Returns whether every function keeps its objective, and with which confidence.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        if self.stopped {
            Outcome::No
        } else if self.functions_keeping == self.functions_called {
            Outcome::Yes
        } else if self.functions_keeping + self.functions_undecided == self.functions_called
            && (self.functions_keeping * 10 >= self.functions_called * 9
                || self.functions_keeping_on_average == self.functions_undecided)
        {
            Outcome::Probably
        } else {
            Outcome::No
        }
    }
}

impl Answer {
    /// Compares two answers, with the better one to give as `Less`: yes before probably before no. Of answers that are yes or
    /// probably, the fewest GPUs are better, then the highest rate, then the least of the other swept values; of those that are
    /// no, the most functions that keep their objectives or may, then the most requests in time, then the same as before.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        let rank = |own: &Self| (own.stopped, own.outcome());
        let by_cost = || {
            let rate = other.rate_scale.total_cmp(&self.rate_scale);
            let memory = self.models_gb.total_cmp(&other.models_gb);
            let link = self.host_gb_per_s.total_cmp(&other.host_gb_per_s);
            self.gpus
                .cmp(&other.gpus)
                .then(rate)
                .then(memory)
                .then(link)
        };
        let by_nearness = || {
            let near = |own: &Self| own.functions_keeping + own.functions_undecided;
            let in_time = other.attainment.mean.total_cmp(&self.attainment.mean);
            near(other).cmp(&near(self)).then(in_time)
        };
        rank(self)
            .cmp(&rank(other))
            .then_with(|| match self.outcome() {
                Outcome::Yes | Outcome::Probably => by_cost(),
                Outcome::No => by_nearness().then_with(by_cost),
            })
    }
}

/// All runs of a sweep; data for plots are kept of only one.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    answers: Vec<Answer>,
    shown: Option<usize>,
}

impl Runs {
    /// Adds a run. It becomes the one to show if it is the better answer ([`Answer::order`]).
    pub fn push(&mut self, mut answer: Answer) {
        let better = self.shown().is_none_or(|shown| answer.order(shown).is_lt());
        if better {
            if let Some(shown) = self.shown.and_then(|at| self.answers.get_mut(at)) {
                shown.detail.forget();
            }
            self.shown = Some(self.answers.len());
        } else {
            answer.detail.forget();
        }
        self.answers.push(answer);
    }

    /// Returns the answers in the order in which they were run.
    #[must_use]
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Returns the answer with data for plots.
    #[must_use]
    pub fn shown(&self) -> Option<&Answer> {
        self.answers.get(self.shown?)
    }
}

impl Detail {
    /// Frees the data for plots, except for the timeline, which is small.
    pub(super) fn forget(&mut self) {
        self.latencies = Vec::new();
        self.taken = Vec::new();
    }
}
