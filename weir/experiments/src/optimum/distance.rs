//! Ratio of online to optimum, over many cases.
//!
//! Where a search was stopped early, its bound replaces the optimum: the ratios are then too small, never too large. A case
//! in which nothing can be in time has a ratio of one.

use std::ops::Range;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use thiserror::Error;

use super::draw::{DrawError, Settings, draw};
use super::online::{Online, percentile_of};
use super::solve::{Answer, Objective, solve};
use simulator::node::RunError;
use simulator::statistics::{HeldCount, Interval, SeedsError};

/// Error in computing the distance.
#[derive(Debug, Error)]
pub enum DistanceError {
    /// A case cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// The node refused a case.
    #[error(transparent)]
    Run(#[from] RunError),
    /// There are fewer than two cases.
    #[error(transparent)]
    Seeds(#[from] SeedsError),
}

/// Results of a policy relative to the optimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tally {
    /// Ratio of online to optimum: the mean over cases with its 95 % interval.
    pub ratio: Interval,
    /// Smallest ratio of a case.
    pub worst: f64,
    /// Seed of the first case with the smallest ratio.
    pub worst_seed: u64,
    /// Number of cases in which the optimum was reached.
    pub reached: HeldCount,
    /// Sum over all cases of the value that the policy reached.
    pub total: u64,
}

/// Distance of a policy from the best possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyDistance {
    /// Policy that was run.
    pub online: Online,
    /// Results by requests in time.
    pub requests: Tally,
    /// Results by compliant functions.
    pub functions: Tally,
}

/// Values of the optimum, and effort of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Best {
    /// Sum over all cases of the values of the best plans found.
    pub found: u64,
    /// Sum over all cases of the bounds.
    pub bound: u64,
    /// Number of cases with a plan proven to be the best.
    pub exact: u64,
    /// Largest gap between a bound and the plan found.
    pub gap_max: u32,
    /// Number of states opened, over all cases.
    pub states: u64,
    /// Largest number of states opened for one case.
    pub states_max: u64,
}

impl Best {
    fn count(&mut self, answer: &Answer) {
        self.found += u64::from(answer.value);
        self.bound += u64::from(answer.bound);
        self.exact += u64::from(answer.is_exact());
        self.gap_max = self.gap_max.max(answer.bound - answer.value);
        self.states += answer.states;
        self.states_max = self.states_max.max(answer.states);
    }
}

/// Optimum and policies over many cases; see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Distance {
    /// Number of cases, one for each seed.
    pub cases: u64,
    /// Number of requests of all cases.
    pub requests_all: u64,
    /// Optimum by requests in time.
    pub requests: Best,
    /// Optimum by compliant functions.
    pub functions: Best,
    /// Distance of each policy, in the order of [`Online::ALL`].
    pub policies: Vec<PolicyDistance>,
}

/// Ratios of one policy by case, and the sum of its values.
#[derive(Default)]
struct PolicyRatios {
    ratios: Vec<f64>,
    total: u64,
}

impl PolicyRatios {
    fn count(&mut self, reached: u32, bound: u32) {
        self.total += u64::from(reached);
        self.ratios.push(match bound {
            0 => 1.0,
            _ => f64::from(reached) / f64::from(bound),
        });
    }

    fn tally(&self, first: u64) -> Result<Tally, SeedsError> {
        let (mut worst, mut worst_seed) = (f64::INFINITY, first);
        for (seed, &ratio) in (first..).zip(&self.ratios) {
            if ratio < worst {
                (worst, worst_seed) = (ratio, seed);
            }
        }
        Ok(Tally {
            ratio: Interval::of(&self.ratios)?,
            worst,
            worst_seed,
            reached: HeldCount::count(self.ratios.iter().map(|&ratio| ratio >= 1.0)),
            total: self.total,
        })
    }
}

/// Solves the case of each seed for both objectives, and runs it through every policy.
///
/// # Errors
/// Returns a [`DistanceError`] if a case cannot be drawn or run, or if there are fewer than two seeds.
pub fn distance(settings: &Settings, seeds: Range<u64>) -> Result<Distance, DistanceError> {
    let percentile = percentile_of(settings.percentile);
    let mut reached: [(PolicyRatios, PolicyRatios); Online::ALL.len()] = Default::default();
    let (mut requests, mut functions) = (Best::default(), Best::default());
    let (mut cases, mut requests_all) = (0, 0);
    for seed in seeds.clone() {
        let drawn = draw(settings, seed)?;
        let by_request = solve(&drawn.case, Objective::RequestsInTime, settings.states_max);
        let objective = Objective::FunctionsCompliant(percentile);
        let by_function = solve(&drawn.case, objective, settings.states_max);
        requests.count(&by_request);
        functions.count(&by_function);
        cases += 1;
        requests_all += drawn.case.requests().len() as u64;
        for (online, (of_requests, of_functions)) in Online::ALL.iter().zip(&mut reached) {
            let outcome = online.run(&drawn, settings.percentile)?;
            of_requests.count(outcome.in_time, by_request.bound);
            of_functions.count(outcome.compliant, by_function.bound);
        }
    }
    let policies = Online::ALL.iter().zip(&reached);
    let policies = policies.map(|(&online, (of_requests, of_functions))| {
        Ok(PolicyDistance {
            online,
            requests: of_requests.tally(seeds.start)?,
            functions: of_functions.tally(seeds.start)?,
        })
    });
    Ok(Distance {
        cases,
        requests_all,
        requests,
        functions,
        policies: policies.collect::<Result<_, SeedsError>>()?,
    })
}

impl Distance {
    /// Returns the distance of a policy.
    #[must_use]
    pub fn of(&self, online: Online) -> Option<&PolicyDistance> {
        self.policies.iter().find(|own| own.online == online)
    }

    /// Returns `in_time` as a share of all requests.
    #[must_use]
    pub fn hit_rate(&self, in_time: u64) -> f64 {
        simulator::node::outcome::part(in_time, self.requests_all)
    }

    /// Returns a table for people: the optimum, then each policy.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header([
            "policy",
            "in time",
            "of optimum, mean [95 %]",
            "worst (seed)",
            "reached",
            "functions of optimum [95 %]",
            "worst (seed)",
            "reached",
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let exact = |best: &Best| format!("{} of {} exact", best.exact, self.cases);
        table.add_row([
            "optimum".to_owned(),
            between(
                self.hit_rate(self.requests.found),
                self.hit_rate(self.requests.bound),
            ),
            exact(&self.requests),
            format!("gap {} at most", self.requests.gap_max),
            String::new(),
            exact(&self.functions),
            format!("gap {} at most", self.functions.gap_max),
            String::new(),
        ]);
        for own in &self.policies {
            let cells = |tally: &Tally| {
                let Interval {
                    mean, low, high, ..
                } = tally.ratio;
                [
                    format!("{mean:.3} [{low:.3}, {high:.3}]"),
                    format!("{:.3} ({})", tally.worst, tally.worst_seed),
                    format!("{:.1} %", 100.0 * tally.reached.share()),
                ]
            };
            let hits = format!("{:.1} %", 100.0 * self.hit_rate(own.requests.total));
            let first = [own.online.name().to_owned(), hits];
            let rest = cells(&own.requests)
                .into_iter()
                .chain(cells(&own.functions));
            table.add_row(first.into_iter().chain(rest));
        }
        table.to_string()
    }
}

/// Formats a share, or the range that contains it.
fn between(found: f64, bound: f64) -> String {
    if found < bound {
        format!("{:.1}–{:.1} %", 100.0 * found, 100.0 * bound)
    } else {
        format!("{:.1} %", 100.0 * found)
    }
}
