//! From the values of several seeds to a verdict, by the rule that the claim came with.

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use super::{Claim, Paper, Relation, Rule};
use crate::statistics::{Held, Interval, SeedsError, Unit};

/// How far from the paper's value still counts as it.
const BAND: f64 = 0.1;
/// An order needs as many seeds (workloads §1).
const SEEDS_OF_AN_ORDER: usize = 10;

/// One setting, run under several seeds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Run {
    /// Every parameter by name, as it is written; what is not here was the same in all runs.
    pub parameters: BTreeMap<String, String>,
    /// The claim's number for each seed, in the claim's unit.
    pub by_seed: BTreeMap<u64, f64>,
}

/// What there is to judge a claim by.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evidence {
    /// The setting that was settled beforehand.
    pub run: Run,
    /// The same with exactly one parameter changed, to explain a miss.
    pub other: Option<Run>,
}

/// What is to be said of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Its rule holds.
    Reproduced,
    /// Its rule holds after one named parameter was changed.
    Explained,
    /// Its rule does not hold.
    Missed,
    /// It holds exactly, as it must.
    StructuralOk,
    /// It does not, so something of ours is wrong.
    StructuralWrong,
}

impl Verdict {
    /// Its word.
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

/// A claim beside what came out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Of the claim.
    pub id: String,
    /// Whose.
    pub paper: Paper,
    /// Section, table or figure.
    #[serde(rename = "where")]
    pub place: String,
    /// What the numbers are.
    pub metric: String,
    /// What they count.
    pub unit: Unit,
    /// How ours is said to stand to the value.
    pub relation: Relation,
    /// The paper's.
    pub value: f64,
    /// The rule settled beforehand.
    pub rule: Rule,
    /// The mean over seeds.
    pub ours: f64,
    /// The lower end of its 95 % interval, of structural claims the least; `None` with one seed.
    pub low: Option<f64>,
    /// The upper end, of structural claims the greatest.
    pub high: Option<f64>,
    /// In how many seeds the relation held exactly, of how many: what an order is judged by.
    pub held: Held,
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in one sentence.
    pub why: String,
}

/// Values that cannot be judged.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum JudgeError {
    /// Nothing was claimed under this name.
    #[error("there is no claim {0}")]
    Unknown(String),
    /// No values.
    #[error("claim {0}: no seed was run")]
    NoSeeds(String),
    /// Infinite, or not a number.
    #[error("claim {id}: the value of seed {seed} is not a finite number")]
    NotFinite {
        /// The claim.
        id: String,
        /// Whose value.
        seed: u64,
    },
}

/// What one run says by itself.
struct Finding {
    holds: bool,
    ours: f64,
    low: Option<f64>,
    high: Option<f64>,
    held: Held,
    why: String,
}

impl Claim {
    /// Judges it by its rule.
    ///
    /// # Errors
    ///
    /// No seeds, or a value that is not finite, in either run.
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
            Held::count(values.iter().map(|&v| self.relation.holds(v, self.value))),
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

    /// Returns the most that the number can be: an interval over few seeds may reach beyond.
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

    fn structural(&self, held: Held) -> (bool, String) {
        let said = self.said();
        if held.seeds == held.of {
            return (true, format!("{said}, as it must be"));
        }
        let wrong = held.of - held.seeds;
        (false, format!("not {said} in {wrong} of {} runs", held.of))
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
        // A wide interval meets more: whoever reads this should know.
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
        let (worse, said) = (self.unit.write(worse), self.said());
        let is = if holds { "is" } else { "is not" };
        (holds, format!("the worse end, {worse}, {is} {said}"))
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

fn order(held: Held) -> (bool, String) {
    let count = format!("holds in {} of {} seeds", held.seeds, held.of);
    if held.of < SEEDS_OF_AN_ORDER {
        return (
            false,
            format!("{count}; an order needs {SEEDS_OF_AN_ORDER}"),
        );
    }
    (held.in_nine_of_ten(), count)
}

/// Parameters that are written differently, or only in one.
fn changed<'a>(run: &'a Run, other: &'a Run) -> Vec<&'a String> {
    let differs = |name: &&String| run.parameters.get(*name) != other.parameters.get(*name);
    let only_other = |name: &&String| !run.parameters.contains_key(*name);
    let of_run = run.parameters.keys().filter(differs);
    let of_other = other.parameters.keys().filter(only_other);
    of_run.chain(of_other).collect()
}
