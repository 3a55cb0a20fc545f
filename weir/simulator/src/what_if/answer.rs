//! What came of a run: of each function and of the whole.

use std::cmp::Ordering;

use policy::Span;
use serde::Serialize;

use super::limit::{Binding, Limit};
use crate::node::Taken;
use crate::statistics::{Histogram, Interval, Timeline};

/// Shares are counts divided by counts.
pub(super) const ROUNDING: f64 = 1e-12;

/// Whether every function keeps its objective, as far as the seeds say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Each does at the worse end of its interval over seeds.
    Yes,
    /// None is sure to miss, and some are undecided: their interval meets what is asked. Nine of ten functions are sure to keep theirs, or
    /// all that are undecided keep it on average.
    Probably,
    /// One misses at the better end of its interval as well, too few are sure, or it was stopped.
    No,
}

/// What came of a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionAnswer {
    /// Its name in the trace.
    pub name: String,
    /// Its model; empty: one of its own.
    pub model: String,
    /// Requests counted, of all seeds.
    pub requests: u64,
    /// Of them, late or never answered.
    pub late: u64,
    /// The share in time over seeds; none without requests.
    pub attainment: Option<Interval>,
    /// How long they may take, ms; none where requests state that themselves.
    pub objective_ms: Option<f64>,
    /// The percentile that has to be in time.
    pub percentile: f64,
    /// Whether it is, at the lower end of the interval.
    pub keeps: bool,
    /// Median latency, ms; none if nothing was answered.
    pub p50_ms: Option<f64>,
    /// Latency at its percentile, ms, of what was answered.
    pub at_percentile_ms: Option<f64>,
    /// Execution with the model resident, ms.
    pub execution_ms: f64,
    /// Execution with the model coming from the host, alone, ms.
    pub swapped_ms: f64,
    /// The share of its requests that had to load.
    pub loads: f64,
    /// GPU time that it would be charged (M2.18), s: taken time in whole ms a request, and a tenth of the time its
    /// model waits in host memory.
    pub billed_gpu_s: f64,
    /// What stands in its way.
    pub limit: Limit,
    /// What would, if it did not keep its objective.
    #[serde(skip)]
    pub why: Limit,
}

impl FunctionAnswer {
    /// It misses by the interval's lower end alone: more seeds may settle it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let reaches = |own: Interval| own.high >= self.percentile / 100.0 - ROUNDING;
        !self.keeps && self.attainment.is_some_and(reaches)
    }
}

/// What came of a point: all of its seeds together. Counts are of all of them; times, GPU hours and money are those of a run,
/// on average.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// By which rules.
    pub rule: &'static str,
    /// GPUs of each node.
    pub gpus_per_node: u32,
    /// Nodes.
    pub nodes: u32,
    /// GPUs in all.
    pub gpus: u32,
    /// Memory for models of each GPU, 10⁹ bytes.
    pub models_gb: f64,
    /// Host to GPU, 10⁹ bytes per second.
    pub host_gb_per_s: f64,
    /// Rate in multiples of the trace's.
    pub rate_scale: f64,
    /// It was told to stop: all of this is of the time until then.
    pub stopped: bool,
    /// Time counted, s.
    pub counted_s: f64,
    /// How many seeds.
    pub seeds: usize,
    /// Requests counted.
    pub requests: u64,
    /// The share in time.
    pub attainment: Interval,
    /// The share of functions that keep their objective, seed by seed.
    pub keeping: Interval,
    /// Functions with requests that were counted.
    pub functions_called: usize,
    /// Of them, those that keep their objective at the lower end of their interval.
    pub functions_keeping: usize,
    /// Of the others, those whose interval meets their objective's percentile: more seeds may settle it.
    pub functions_undecided: usize,
    /// Of the undecided, those that keep their objective on average.
    #[serde(skip)]
    pub functions_keeping_on_average: usize,
    /// The share of time that GPUs are taken.
    pub gpu_busy: Interval,
    /// The share of taken time that loads add to execution.
    pub gpu_swapping: f64,
    /// GPUs taken at once, mean.
    pub slots_mean: f64,
    /// GPUs taken at once, most.
    pub slots_peak: u32,
    /// Requests whose model had to be loaded.
    pub loads: u64,
    /// Models that gave way.
    pub evictions: u64,
    /// GPUs times time counted, h.
    pub gpu_hours: f64,
    /// GPU time that functions would be charged, h.
    pub billed_gpu_hours: f64,
    /// What the GPUs cost for the time counted; none without a price.
    pub cost: Option<f64>,
    /// What they cost an hour.
    pub cost_per_hour: Option<f64>,
    /// What a million requests in time cost.
    pub cost_per_million_in_time: Option<f64>,
    /// What stands in the way of more.
    pub binding: Binding,
    /// What to know beside it.
    pub notes: Vec<String>,
    /// By function, in the order of the trace.
    pub functions: Vec<FunctionAnswer>,
    /// For plots.
    #[serde(skip)]
    pub detail: Detail,
}

/// What plots are made of.
#[derive(Clone, Debug)]
pub struct Detail {
    /// Latencies of each function of the answer, of all seeds; none ran: empty.
    pub latencies: Vec<Histogram>,
    /// Objective of each function.
    pub objectives: Vec<Option<Span>>,
    /// How busy GPUs were over the whole run, of the first seed.
    pub timeline: Timeline,
    /// Every stretch in which a GPU was taken, of the first seed, by the time of its end; functions are places in the answer.
    pub taken: Vec<Taken>,
}

impl Answer {
    /// Whether every function keeps its objective.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.outcome() == Outcome::Yes
    }

    /// Returns how sure it is that every function keeps its objective.
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
    /// Returns which of two answers is the better one to give, as `Less`: what holds before what probably does before what does not;
    /// of those, the fewest GPUs, then the highest rate, then the least of what else was swept; of those that do not, the most functions
    /// that keep their objective or may, then the most requests in time, then by the same.
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

/// All runs of a sweep; what plots are made of is kept of one.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    answers: Vec<Answer>,
    shown: Option<usize>,
}

impl Runs {
    /// One more. It is the one to show if it is the better answer ([`Answer::order`]).
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

    /// In the order in which they were run.
    #[must_use]
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// The one whose details are kept.
    #[must_use]
    pub fn shown(&self) -> Option<&Answer> {
        self.answers.get(self.shown?)
    }
}

impl Detail {
    /// Not the timeline, which is small.
    pub(super) fn forget(&mut self) {
        self.latencies = Vec::new();
        self.taken = Vec::new();
    }
}
