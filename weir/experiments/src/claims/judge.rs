//! Judges a claim by its rule, from one value for each seed.

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use super::{Claim, Paper, Relation, Rule};
use simulator::statistics::{HeldCount, Interval, SeedsError, Unit};

/// Width of the band around the paper's value on either side, as a share of the value.
const BAND: f64 = 0.1;
/// Least number of seeds by which an order can be judged (workloads §1).
const SEEDS_OF_AN_ORDER: usize = 10;

/// Values of one setting under several seeds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// Parameters by name, as written in the experiment. A parameter which is absent was the same in all runs.
    pub parameters: BTreeMap<String, String>,
    /// The claim's number by seed, in the claim's unit.
    pub by_seed: BTreeMap<u64, f64>,
}

/// Values by which a claim is judged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evidence {
    /// Run of the setting which was fixed beforehand.
    pub run: Run,
    /// Run of the setting with exactly one parameter changed, to explain a miss; `None` if there is none.
    pub other: Option<Run>,
}

/// Outcome of judging a claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The rule of the claim holds.
    Reproduced,
    /// The rule holds after one named parameter was changed.
    Explained,
    /// The rule does not hold.
    Missed,
    /// A structural claim holds exactly, as it must.
    StructuralOk,
    /// A structural claim does not hold, so the simulator has a defect.
    StructuralWrong,
}

impl Verdict {
    /// Returns the verdict's name as in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Explained => "explained",
            Self::Missed => "missed",
            Self::StructuralOk => "structural-ok",
            Self::StructuralWrong => "structural-wrong",
        }
    }
}

/// A claim together with our numbers and the verdict.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Identifier of the claim.
    pub id: String,
    /// Paper which makes the claim.
    pub paper: Paper,
    /// Section, table or figure of the paper.
    #[serde(rename = "where")]
    pub place: String,
    /// Description of the number that each seed yields.
    pub metric: String,
    /// Unit of all numbers of the row.
    pub unit: Unit,
    /// Relation of our number to the value.
    pub relation: Relation,
    /// The paper's value, in `unit`.
    pub value: f64,
    /// Rule of judgement, fixed before any run.
    pub rule: Rule,
    /// Mean of our number over the seeds.
    pub ours: f64,
    /// Lower end of the 95 % interval, or the least value for structural claims; `None` with one seed.
    pub low: Option<f64>,
    /// Upper end of the 95 % interval, or the greatest value for structural claims; `None` with one seed.
    pub high: Option<f64>,
    /// Number of seeds in which the relation held exactly, and number of all seeds: the basis for judging an order.
    pub held: HeldCount,
    /// Outcome of judging the claim by its rule.
    pub verdict: Verdict,
    /// Reason for the verdict, in one sentence.
    pub why: String,
}

/// Error for evidence which cannot be judged.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum JudgeError {
    /// No claim has this id.
    #[error("there is no claim {0}")]
    Unknown(String),
    /// The evidence has no values.
    #[error("claim {0}: no seed was run")]
    NoSeeds(String),
    /// A value is infinite or not a number.
    #[error("claim {id}: the value of seed {seed} is not a finite number")]
    NotFinite {
        /// Id of the claim.
        id: String,
        /// Seed of the value.
        seed: u64,
    },
}

/// Result of one run by itself.
struct Finding {
    holds: bool,
    ours: f64,
    low: Option<f64>,
    high: Option<f64>,
    held: HeldCount,
    why: String,
}

impl Claim {
    /// Judges the claim by its rule.
    ///
    /// # Errors
    ///
    /// Returns an error if either run has no seeds or has a value which is not finite.
    pub fn judge(&self, evidence: &Evidence) -> Result<Row, JudgeError> {
        let found = self.find(&evidence.run)?;
        let mut why = found.why;
        let verdict = match (self.rule, found.holds) {
            (Rule::Structural, true) => Verdict::StructuralOk,
            (Rule::Structural, false) => Verdict::StructuralWrong,
            (_, true) => Verdict::Reproduced,
            (_, false) => {
                let other = evidence.other.as_ref();
                let explanation = other.map(|other| self.explain(&evidence.run, other));
                match explanation.transpose()? {
                    Some(Explanation { holds, text }) => {
                        why = format!("{why}; {text}");
                        if holds {
                            Verdict::Explained
                        } else {
                            Verdict::Missed
                        }
                    }
                    None => Verdict::Missed,
                }
            }
        };
        Ok(Row {
            id: self.id.clone(),
            paper: self.paper,
            place: self.place.clone(),
            metric: self.metric.clone(),
            unit: self.unit,
            relation: self.relation,
            value: self.value,
            rule: self.rule,
            ours: found.ours,
            low: found.low,
            high: found.high,
            held: found.held,
            verdict,
            why,
        })
    }

    fn find(&self, run: &Run) -> Result<Finding, JudgeError> {
        let values: Vec<f64> = run.by_seed.values().copied().collect();
        let (Some(&first), held) = (
            values.first(),
            HeldCount::count(values.iter().map(|&v| self.relation.holds(v, self.value))),
        ) else {
            return Err(JudgeError::NoSeeds(self.id.clone()));
        };
        let interval = match Interval::of(&values) {
            Ok(interval) => Some(interval.within(f64::NEG_INFINITY, self.most(run))),
            Err(SeedsError::NotFinite(at)) => {
                let seed = run.by_seed.keys().nth(at).copied().unwrap_or_default();
                let id = self.id.clone();
                return Err(JudgeError::NotFinite { id, seed });
            }
            Err(SeedsError::TooFew(_) | SeedsError::Unpaired(..)) => None,
        };
        let (holds, why) = match (self.rule, interval) {
            (Rule::Structural, _) => self.structural(held),
            (Rule::Order, _) => order(held),
            (Rule::Value, Some(interval)) => self.near(&interval),
            (Rule::Bound, Some(interval)) => self.bounded(&interval),
            (Rule::Value | Rule::Bound, None) => (false, "one seed has no interval".to_owned()),
        };
        let least = values.iter().copied().fold(first, f64::min);
        let greatest = values.iter().copied().fold(first, f64::max);
        let (low, high) = match (self.rule, interval) {
            (Rule::Structural, _) => (Some(least), Some(greatest)),
            (_, Some(interval)) => (Some(interval.low), Some(interval.high)),
            (_, None) => (None, None),
        };
        Ok(Finding {
            holds,
            ours: interval.map_or(first, |interval| interval.mean),
            low,
            high,
            held,
            why,
        })
    }

    /// Returns the largest possible value of the number: an interval over few seeds may extend beyond it.
    fn most(&self, run: &Run) -> f64 {
        match self.unit {
            Unit::Percent => 100.0,
            Unit::Share => 1.0,
            Unit::Functions => run
                .parameters
                .get("functions")
                .and_then(|functions| functions.parse().ok())
                .unwrap_or(f64::INFINITY),
            _ => f64::INFINITY,
        }
    }

    fn structural(&self, held: HeldCount) -> (bool, String) {
        let paper_value = self.paper_value();
        if held.seeds == held.of {
            return (true, format!("{paper_value}, as it must be"));
        }
        let wrong = held.of - held.seeds;
        (
            false,
            format!("not {paper_value} in {wrong} of {} runs", held.of),
        )
    }

    fn near(&self, interval: &Interval) -> (bool, String) {
        let (from, to) = (self.value * (1.0 - BAND), self.value * (1.0 + BAND));
        let band = self.unit.write_range(from, to);
        if interval.high < from {
            return (false, format!("the interval ends below {band}"));
        }
        if interval.low > to {
            return (false, format!("the interval begins above {band}"));
        }
        // A wide interval overlaps the band more easily, so the reader is warned.
        if interval.high - interval.low > to - from {
            return (
                true,
                format!("the interval meets {band}, but is wider than that"),
            );
        }
        (true, format!("the interval meets {band}"))
    }

    fn bounded(&self, interval: &Interval) -> (bool, String) {
        let worse = match self.relation {
            Relation::AtLeast => interval.low,
            _ => interval.high,
        };
        let holds = self.relation.holds(worse, self.value);
        let (worse, paper_value) = (self.unit.write(worse), self.paper_value());
        let is = if holds { "is" } else { "is not" };
        (holds, format!("the worse end, {worse}, {is} {paper_value}"))
    }

    fn explain(&self, run: &Run, other: &Run) -> Result<Explanation, JudgeError> {
        let found = self.find(other)?;
        let not = |text: String| Explanation { holds: false, text };
        if !run.by_seed.keys().eq(other.by_seed.keys()) {
            return Ok(not("the second run has other seeds".to_owned()));
        }
        let names: Vec<&String> = changed(run, other);
        let [name] = names.as_slice() else {
            return Ok(not(format!(
                "the second run changes {} parameters, not one",
                names.len()
            )));
        };
        let written = |run: &Run| {
            let value = run.parameters.get(*name);
            value.map_or_else(|| "its default".to_owned(), Clone::clone)
        };
        let ours = self.unit.write(found.ours);
        let (to, from) = (written(other), written(run));
        Ok(Explanation {
            holds: found.holds,
            text: format!(
                "with {name} at {to} instead of {from} it is {ours}: {}",
                found.why
            ),
        })
    }
}

struct Explanation {
    holds: bool,
    text: String,
}

fn order(held: HeldCount) -> (bool, String) {
    let count = format!("holds in {} of {} seeds", held.seeds, held.of);
    if held.of < SEEDS_OF_AN_ORDER {
        return (
            false,
            format!("{count}; an order needs {SEEDS_OF_AN_ORDER}"),
        );
    }
    (held.in_nine_of_ten(), count)
}

/// Returns the names of the parameters which differ, including those present in only one run.
fn changed<'a>(run: &'a Run, other: &'a Run) -> Vec<&'a String> {
    let differs = |name: &&String| run.parameters.get(*name) != other.parameters.get(*name);
    let only_other = |name: &&String| !run.parameters.contains_key(*name);
    let of_run = run.parameters.keys().filter(differs);
    let of_other = other.parameters.keys().filter(only_other);
    of_run.chain(of_other).collect()
}
