//! What stands in the way of objectives, by plain rules on what came of a run.
//!
//! **Of a function**, the first that holds:
//!
//! | word | when |
//! |---|---|
//! | `nothing` | its percentile of requests is in time |
//! | `memory` | it never runs: no GPU can hold it, or its node's host memory is full |
//! | `objective` | its execution alone takes longer than its objective; or coming from the host and executing alone do, and more of its requests than may be late had to load |
//! | `swapping` | its node's GPUs are taken for at least [`SATURATED`] of the time, of which loads add at least [`SWAPPING`] to execution |
//! | `gpu-time` | its node's GPUs are taken for at least [`SATURATED`] of the time |
//! | `swapping` | a request of it spends at least as long on loading, beyond execution, as on waiting |
//! | `bursts` | else: requests wait although GPUs are free for much of the time |
//!
//! **Overall** it is the word under which most requests are late, of functions that do not keep their objectives.

use serde::Serialize;

/// GPUs that are taken for so much of the time have none left: what waits does so for them.
pub const SATURATED: f64 = 0.9;
/// Loads that add so much of the time GPUs are taken are worth more memory or faster links.
pub const SWAPPING: f64 = 1.0 / 3.0;

/// What stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Nothing: objectives are kept.
    Nothing,
    /// It fits nowhere.
    Memory,
    /// It cannot be kept even alone.
    Objective,
    /// Models come and go too much.
    Swapping,
    /// GPUs are busy.
    GpuTime,
    /// Requests come together.
    Bursts,
}

impl Limit {
    /// Its word.
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

    /// What helps.
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
            Self::Bursts => {
                "GPUs that are idle on average, fewer requests at once, or longer objectives help."
            }
        }
    }
}

/// What is looked at for one function. Times in ms, shares from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signs {
    /// Its percentile of requests is in time.
    pub keeps: bool,
    /// It never runs.
    pub refused: bool,
    /// Execution where its model is.
    pub execution_ms: f64,
    /// From the host and executed, alone.
    pub swapped_ms: f64,
    /// What it is to be answered within.
    pub objective_ms: f64,
    /// The share of its requests that may be late.
    pub may_be_late: f64,
    /// The share of its requests that had to load.
    pub loads: f64,
    /// Of its node's GPUs, the share of time they are taken …
    pub busy: f64,
    /// … and what loads add of that.
    pub node_swaps: f64,
    /// What loads add to a request of it, mean.
    pub loading_ms: f64,
    /// How long a request of it waits for a GPU, mean.
    pub waiting_ms: f64,
}

impl Signs {
    /// See the [module](self).
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

/// What binds a whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// In a word.
    pub limit: Limit,
    /// In a sentence or two.
    pub sentence: String,
}

/// What a whole run did. Shares from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole {
    /// GPUs taken, mean.
    pub busy: f64,
    /// Of that, what loads add to execution.
    pub swaps: f64,
    /// Functions that are called.
    pub functions: usize,
}

impl Binding {
    /// Of all functions: their limits and how many of their requests are late.
    #[must_use]
    pub fn of(limits: &[(Limit, u64)], whole: Whole) -> Self {
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
        // The first of equals is the one that stands first in the table.
        late.sort_by_key(|&(late, functions, _)| std::cmp::Reverse((late, functions)));
        let [(_, functions, limit), ..] = late;
        let busy = percent(whole.busy);
        if functions == 0 {
            let sentence = format!(
                "Nothing binds: every objective holds, with GPUs taken {busy} of the time."
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
            Limit::Memory => "their models find no place in memory".to_owned(),
            Limit::Objective => {
                "even alone on an idle GPU, execution (and the load before it) takes longer than the objective".to_owned()
            }
            Limit::Swapping => format!(
                "loading models takes what is missing: GPUs are taken {busy} of the time, {} of it added by loads",
                percent(whole.swaps)
            ),
            Limit::GpuTime => format!("GPU time is used up: GPUs are taken {busy} of the time"),
            Limit::Bursts => format!(
                "requests come in bursts and wait for one another, though GPUs are taken only {busy} of the time"
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

    const FINE: Signs = Signs {
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
    fn the_first_rule_that_holds_gives_the_word() {
        let with = |change: fn(&mut Signs)| {
            let mut signs = FINE;
            change(&mut signs);
            signs.limit()
        };
        assert_eq!(FINE.limit(), Limit::Bursts);
        assert_eq!(with(|own| own.keeps = true), Limit::Nothing);
        assert_eq!(with(|own| own.refused = true), Limit::Memory);
        assert_eq!(with(|own| own.execution_ms = 51.0), Limit::Objective);
        assert_eq!(with(|own| own.swapped_ms = 51.0), Limit::Objective);
        // Loads that are rarer than what may be late are not to blame.
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
    fn the_word_under_which_most_requests_are_late_is_the_whole_runs() {
        let whole = Whole {
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
        // A function without a late request that never ran still counts.
        let binding = Binding::of(&[(Limit::Memory, 0)], whole);
        assert_eq!(binding.limit, Limit::Memory);
    }
}
