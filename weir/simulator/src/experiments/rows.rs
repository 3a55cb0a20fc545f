//! The figures of an experiment, one by one.

use serde::Serialize;

use super::matrix::Matrix;
use super::spec::{Figure, Spec};
use crate::statistics::Interval;

/// One figure of one rule at one load, over the seeds that are done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    experiment: String,
    rule: &'static str,
    functions: u32,
    figure: Figure,
    mean: f64,
    /// Of the 95 % interval; absent with one seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<f64>,
    seeds: usize,
}

/// All rows, in the order of the file and of the figures.
pub(super) fn of(id: &str, spec: &Spec, matrix: &Matrix) -> Vec<Row> {
    let mut rows = Vec::new();
    for &rule in &spec.rules {
        for &functions in &spec.functions {
            for figure in Figure::ALL {
                let values = matrix.by_seed(rule, functions, figure);
                let Some(&first) = values.first() else {
                    continue;
                };
                let interval = Interval::of(&values).ok();
                rows.push(Row {
                    experiment: id.to_owned(),
                    rule: rule.name(),
                    functions,
                    figure,
                    mean: interval.map_or(first, |own| own.mean),
                    low: interval.map(|own| own.low),
                    high: interval.map(|own| own.high),
                    seeds: values.len(),
                });
            }
        }
    }
    rows
}
