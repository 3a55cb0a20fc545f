//! The limit that keeps objectives from being met, by plain rules on the results of a run.
//!
//! **Of a function**, the first rule that applies:
//!
//! | limit | condition |
//! |---|---|
//! | `nothing` | its percentile of requests is in time |
//! | `memory` | it never runs: no GPU can hold its model, or its node's host memory is full |
//! | `objective` | execution alone takes longer than the objective; or a load and execution do, and more requests than may be late had to load |
//! | `swapping` | its node's GPUs are occupied for at least [`SATURATED`] of the time, of which loads add at least [`SWAPPING`] to execution |
//! | `gpu-time` | its node's GPUs are occupied for at least [`SATURATED`] of the time |
//! | `swapping` | its requests spend at least as long on loading, beyond execution, as on waiting |
//! | `bursts` | otherwise: requests wait although GPUs are free for much of the time |
//!
//! **Overall** it is the limit under which most requests are late, of functions that do not keep their objectives.

use serde::Serialize;

/// Share of time from which occupied GPUs count as saturated, so that requests wait for GPU time.
pub const SATURATED: f64 = 0.9;
/// Share of occupied time from which loads count as the limit, so that more memory or faster links help.
pub const SWAPPING: f64 = 1.0 / 3.0;

/// A limit that keeps objectives from being met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// None: objectives are met.
    Nothing,
    /// The model fits on no GPU, or not into host memory.
    Memory,
    /// The objective cannot be met even by a single request.
    Objective,
    /// Models are loaded and evicted too often.
    Swapping,
    /// GPUs are busy nearly all the time.
    GpuTime,
    /// Requests arrive in bursts.
    Bursts,
}

impl Limit {
    /// Returns the limit's name as in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Memory => "memory",
            Self::Objective => "objective",
            Self::Swapping => "swapping",
            Self::GpuTime => "gpu-time",
            Self::Bursts => "bursts",
        }
    }

    /// Returns advice on what would help, in a sentence; empty for `Nothing`.
    const fn helps(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Memory => {
                "More memory for models on GPUs or hosts, more nodes, or smaller models help; more GPU time does not."
            }
            Self::Objective => {
                "No number of GPUs helps: a longer objective, a faster model or GPU, or a faster link does."
            }
            Self::Swapping => {
                "More GPU memory (or more GPUs) so that models stay, or a faster link to the host, help."
            }
            Self::GpuTime => "More or faster GPUs help.",
            Self::Bursts => "Spare GPUs, fewer simultaneous requests, or longer objectives help.",
        }
    }
}

/// Measurements of one function from which its limit is derived. Times are in milliseconds, shares from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurements {
    /// Whether the function keeps its objective: the required share of its requests is in time.
    pub keeps: bool,
    /// Whether the function never runs, so that all its requests are refused.
    pub refused: bool,
    /// Execution time with the model resident.
    pub execution_ms: f64,
    /// Duration of an uncontended request with a load from the host.
    pub swapped_ms: f64,
    /// Objective of the function.
    pub objective_ms: f64,
    /// Share of requests that may be late.
    pub may_be_late: f64,
    /// Share of requests for which the model was loaded.
    pub loads: f64,
    /// Share of time in which the GPUs of its nodes are occupied.
    pub busy: f64,
    /// Share of that occupied time which loads add.
    pub node_swaps: f64,
    /// Mean time that loads add to a request.
    pub loading_ms: f64,
    /// Mean time for which a request waits for a GPU.
    pub waiting_ms: f64,
}

impl Measurements {
    /// Returns the limit by the rules of the [module](self).
    #[must_use]
    pub fn limit(&self) -> Limit {
        let alone_too_slow = self.execution_ms > self.objective_ms
            || (self.swapped_ms > self.objective_ms && self.loads > self.may_be_late);
        if self.keeps {
            Limit::Nothing
        } else if self.refused {
            Limit::Memory
        } else if alone_too_slow {
            Limit::Objective
        } else if self.busy >= SATURATED {
            if self.node_swaps >= SWAPPING {
                Limit::Swapping
            } else {
                Limit::GpuTime
            }
        } else if self.loading_ms > 0.0 && self.loading_ms >= self.waiting_ms {
            Limit::Swapping
        } else {
            Limit::Bursts
        }
    }
}

/// Limit that binds a whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// Limit under which most requests are late.
    pub limit: Limit,
    /// Explanation and advice, in one or two sentences.
    pub sentence: String,
}

/// Measurements of a whole run. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WholeRun {
    /// Mean share of busy GPUs.
    pub busy: f64,
    /// Share of the occupied time which loads add to execution.
    pub swaps: f64,
    /// Number of functions with requests.
    pub functions: usize,
}

impl Binding {
    /// Derives the binding limit from the limit and the number of late requests of each function.
    #[must_use]
    pub fn of(limits: &[(Limit, u64)], whole: WholeRun) -> Self {
        let mut late = [
            Limit::Memory,
            Limit::Objective,
            Limit::Swapping,
            Limit::GpuTime,
            Limit::Bursts,
        ]
        .map(|limit| {
            let own = limits.iter().filter(|own| own.0 == limit);
            let (functions, late) =
                own.fold((0, 0), |(functions, sum), own| (functions + 1, sum + own.1));
            (late, functions, limit)
        });
        // The sort is stable: of equal limits, the first in the table is chosen.
        late.sort_by_key(|&(late, functions, _)| std::cmp::Reverse((late, functions)));
        let [(_, functions, limit), ..] = late;
        let busy = percent(whole.busy);
        if functions == 0 {
            let sentence = format!(
                "Nothing binds: every objective is met, with GPUs busy {busy} of the time."
            );
            return Self {
                limit: Limit::Nothing,
                sentence,
            };
        }
        let all: usize = late.iter().map(|own| own.1).sum();
        let missing = if all == 1 {
            format!("1 of {} functions misses its objective", whole.functions)
        } else {
            format!(
                "{all} of {} functions miss their objectives",
                whole.functions
            )
        };
        let most = if functions == all {
            String::new()
        } else {
            format!(", {functions} of them for this")
        };
        let why = match limit {
            Limit::Nothing => String::new(),
            Limit::Memory => "their models do not fit into memory".to_owned(),
            Limit::Objective => {
                "even alone on an idle GPU, execution (and the load before it) takes longer than the objective".to_owned()
            }
            Limit::Swapping => format!(
                "GPU time is lost to loading models: GPUs are busy {busy} of the time, {} of it added by loads",
                percent(whole.swaps)
            ),
            Limit::GpuTime => format!("GPU time is used up: GPUs are busy {busy} of the time"),
            Limit::Bursts => format!(
                "requests arrive in bursts and wait for one another, although GPUs are busy only {busy} of the time"
            ),
        };
        Self {
            limit,
            sentence: format!("{missing}{most}: {why}. {}", limit.helps()),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Measurements = Measurements {
        keeps: false,
        refused: false,
        execution_ms: 10.0,
        swapped_ms: 30.0,
        objective_ms: 50.0,
        may_be_late: 0.02,
        loads: 0.1,
        busy: 0.5,
        node_swaps: 0.2,
        loading_ms: 2.0,
        waiting_ms: 20.0,
    };

    #[test]
    fn the_first_rule_that_applies_determines_the_limit() {
        let with = |change: fn(&mut Measurements)| {
            let mut measurements = FINE;
            change(&mut measurements);
            measurements.limit()
        };
        assert_eq!(FINE.limit(), Limit::Bursts);
        assert_eq!(with(|own| own.keeps = true), Limit::Nothing);
        assert_eq!(with(|own| own.refused = true), Limit::Memory);
        assert_eq!(with(|own| own.execution_ms = 51.0), Limit::Objective);
        assert_eq!(with(|own| own.swapped_ms = 51.0), Limit::Objective);
        // Loads that are rarer than the share which may be late do not matter.
        assert_eq!(
            with(|own| (own.swapped_ms, own.loads) = (51.0, 0.02)),
            Limit::Bursts
        );
        assert_eq!(with(|own| own.busy = SATURATED), Limit::GpuTime);
        assert_eq!(
            with(|own| (own.busy, own.node_swaps) = (1.0, 0.4)),
            Limit::Swapping
        );
        assert_eq!(with(|own| own.waiting_ms = 2.0), Limit::Swapping);
        assert_eq!(
            with(|own| (own.waiting_ms, own.loading_ms) = (0.0, 0.0)),
            Limit::Bursts
        );
    }

    #[test]
    fn the_limit_with_most_late_requests_binds_the_run() {
        let whole = WholeRun {
            busy: 0.951,
            swaps: 0.1,
            functions: 5,
        };
        let binding = Binding::of(&[(Limit::Nothing, 9), (Limit::Nothing, 0)], whole);
        assert_eq!(binding.limit, Limit::Nothing);
        assert!(binding.sentence.contains("95 %"), "{}", binding.sentence);
        let limits = [
            (Limit::GpuTime, 5),
            (Limit::GpuTime, 6),
            (Limit::Bursts, 10),
            (Limit::Nothing, 100),
        ];
        let binding = Binding::of(&limits, whole);
        assert_eq!(binding.limit, Limit::GpuTime);
        let begin =
            "3 of 5 functions miss their objectives, 2 of them for this: GPU time is used up";
        assert!(binding.sentence.starts_with(begin), "{}", binding.sentence);
        // A function that never ran counts even without late requests.
        let binding = Binding::of(&[(Limit::Memory, 0)], whole);
        assert_eq!(binding.limit, Limit::Memory);
    }
}
