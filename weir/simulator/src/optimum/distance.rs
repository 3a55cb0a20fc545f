//! Online over optimum, over many cases.
//!
//! Where a search was stopped, its bound stands for the optimum: the ratios are then too small, never too large. A case
//! in which nothing can be in time counts as one reached.

use std::ops::Range;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use thiserror::Error;

use super::draw::{DrawError, Settings, draw};
use super::online::{Online, percentile_of};
use super::solve::{Answer, Objective, solve};
use crate::node::RunError;
use crate::statistics::{Held, Interval, SeedsError};

/// Why there is no distance.
#[derive(Debug, Error)]
pub enum DistanceError {
    /// No case can be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// The node refuses a case.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Too few cases.
    #[error(transparent)]
    Seeds(#[from] SeedsError),
}

/// What a policy reached of what could be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tally {
    /// Online over optimum, the mean over cases with its 95 % interval.
    pub ratio: Interval,
    /// The least of the ratios.
    pub worst: f64,
    /// The seed of the first case that has it.
    pub worst_seed: u64,
    /// The cases in which the optimum was reached.
    pub reached: Held,
    /// What was reached, over all cases.
    pub total: u64,
}

/// A policy's distance from the best possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyDistance {
    /// Which.
    pub online: Online,
    /// By requests in time.
    pub requests: Tally,
    /// By functions with enough of them.
    pub functions: Tally,
}

/// What could be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Best {
    /// By the best plans found, over all cases.
    pub found: u64,
    /// By the bounds, over all cases.
    pub bound: u64,
    /// Cases whose plan is the best.
    pub exact: u64,
    /// The largest gap between a bound and the plan found.
    pub gap_max: u32,
    /// States opened, over all cases.
    pub states: u64,
    /// Most of them for one case.
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

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Distance {
    /// Cases.
    pub cases: u64,
    /// Requests in them.
    pub requests_all: u64,
    /// Requests in time.
    pub requests: Best,
    /// Functions with enough of them.
    pub functions: Best,
    /// By policy.
    pub policies: Vec<PolicyDistance>,
}

/// What one policy reached in each case.
#[derive(Default)]
struct Reached {
    ratios: Vec<f64>,
    total: u64,
}

impl Reached {
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
            reached: Held::count(self.ratios.iter().map(|&ratio| ratio >= 1.0)),
            total: self.total,
        })
    }
}

/// Solves the case of each seed for both objectives, and runs it through every policy.
///
/// # Errors
/// See [`DistanceError`]; two cases at least.
pub fn distance(settings: &Settings, seeds: Range<u64>) -> Result<Distance, DistanceError> {
    let percentile = percentile_of(settings.percentile);
    let mut reached: [(Reached, Reached); Online::ALL.len()] = Default::default();
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
            let met = online.meet(&drawn, settings.percentile)?;
            of_requests.count(met.in_time, by_request.bound);
            of_functions.count(met.compliant, by_function.bound);
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
    /// A policy's.
    #[must_use]
    pub fn of(&self, online: Online) -> Option<&PolicyDistance> {
        self.policies.iter().find(|own| own.online == online)
    }

    /// The share of all requests that are in time where so many are.
    #[must_use]
    pub fn hit_rate(&self, in_time: u64) -> f64 {
        crate::node::outcome::part(in_time, self.requests_all)
    }

    /// For people: the optimum, then each policy.
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

/// A share, or where it is.
fn between(found: f64, bound: f64) -> String {
    if found < bound {
        format!("{:.1}–{:.1} %", 100.0 * found, 100.0 * bound)
    } else {
        format!("{:.1} %", 100.0 * found)
    }
}
