//! Derives, for each seed, the number by which a claim is judged.

use std::collections::BTreeMap;

use super::matrix::{Key, Matrix};
use super::spec::{Condition, Figure, Number, Spec};
use crate::claims::{Evidence, Run};
use simulator::rules::RuleName;

/// Returns the evidence for all claims of an experiment, from the seeds that are complete.
pub(super) fn of(spec: &Spec, matrix: &Matrix) -> BTreeMap<String, Evidence> {
    let mut all = BTreeMap::new();
    for evidence in &spec.evidence {
        let run = runs(spec, matrix, &evidence.number);
        if run.by_seed.is_empty() {
            continue;
        }
        let other = evidence
            .other_functions
            .and_then(|functions| evidence.number.at(functions))
            .map(|number| runs(spec, matrix, &number));
        all.insert(evidence.claim.clone(), Evidence { run, other });
    }
    all
}

fn runs(spec: &Spec, matrix: &Matrix, number: &Number) -> Run {
    let each = matrix.seeds.iter();
    let by_seed = each.filter_map(|&seed| Some((seed, self::number(spec, matrix, number, seed)?)));
    let mut parameters = BTreeMap::from([("preset".to_owned(), spec.preset.clone())]);
    let functions = number.functions().map(|functions| functions.to_string());
    parameters.extend(functions.map(|functions| ("functions".to_owned(), functions)));
    Run {
        by_seed: by_seed.collect(),
        parameters,
    }
}

fn number(spec: &Spec, matrix: &Matrix, number: &Number, seed: u64) -> Option<f64> {
    let figure = |rule, functions, figure| {
        matrix.figure(
            Key {
                rule,
                functions,
                seed,
            },
            figure,
        )
    };
    match number {
        Number::Figure {
            figure: own,
            rule,
            functions,
        } => figure(*rule, *functions, *own),
        Number::Largest { rule } => Some(f64::from(largest(spec, matrix, *rule, seed))),
        Number::LargestOverExecuted { rule, over } => {
            let most = *spec.functions.last()?;
            let held = figure(*over, most, Figure::Executed)?;
            (held > 0.0).then(|| f64::from(largest(spec, matrix, *rule, seed)) / held)
        }
        Number::Place {
            figure: own,
            rule,
            among,
            functions,
        } => {
            let mut values = vec![figure(*rule, *functions, *own)?];
            for other in among {
                values.push(figure(*other, *functions, *own)?);
            }
            let place = simulator::statistics::place(&values, 0)?;
            Some(f64::from(u32::try_from(place).unwrap_or(u32::MAX)))
        }
        Number::Ratio {
            figure: own,
            rule,
            over,
            functions,
        } => {
            let over = figure(*over, *functions, *own)?;
            let own = figure(*rule, *functions, *own)?;
            (over > 0.0).then(|| own / over)
        }
        Number::Difference {
            figure: own,
            rule,
            over,
            functions,
        } => Some(figure(*rule, *functions, *own)? - figure(*over, *functions, *own)?),
        Number::All {
            functions,
            conditions,
        } => {
            let mut holds = true;
            for condition in conditions {
                holds &= is_met(matrix, condition, *functions, seed)?;
            }
            Some(f64::from(u8::from(holds)))
        }
    }
}

/// Returns the largest load at which, as at all smaller loads, all functions keep their objectives; zero if they do not at
/// the smallest load.
fn largest(spec: &Spec, matrix: &Matrix, rule: RuleName, seed: u64) -> u32 {
    let all_comply = |functions: &&u32| {
        let key = Key {
            rule,
            functions: **functions,
            seed,
        };
        matrix.figure(key, Figure::Compliant) == Some(f64::from(**functions))
    };
    let held = spec.functions.iter().take_while(all_comply);
    held.last().copied().unwrap_or(0)
}

fn is_met(matrix: &Matrix, condition: &Condition, functions: u32, seed: u64) -> Option<bool> {
    let key = Key {
        rule: condition.rule,
        functions,
        seed,
    };
    let tail = *matrix
        .runs
        .get(&key)?
        .model_tails_ms
        .get(&condition.model)?;
    let low_enough = condition.at_most_ms.is_none_or(|most| tail <= most);
    let high_enough = condition.above_ms.is_none_or(|least| tail > least);
    Some(low_enough && high_enough)
}
