//! The figures of an experiment, one row each.

use serde::Serialize;

use super::matrix::Matrix;
use super::spec::{Figure, Spec};
use simulator::statistics::Interval;

/// A row of an experiment's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Row {
    /// One figure of a rule.
    Figure(FigureRow),
    /// Requests and functions under an order of requests.
    Order(OrderRow),
}

/// One figure of one rule at one load, over the seeds that are complete.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureRow {
    experiment: String,
    rule: &'static str,
    #[serde(flatten)]
    case: Case,
    mean: f64,
    /// Lower end of the 95 % interval; absent with one seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<f64>,
    seeds: usize,
}

/// Setting in which a figure was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Case {
    /// Nodes that share a number of functions.
    Nodes {
        /// Number of functions of the workload.
        functions: u32,
        /// Figure which the row's numbers give.
        figure: Figure,
    },
    /// Instances of one function behind a router.
    Routing {
        /// Speed of each instance, in percent.
        speeds: &'static [u32],
        /// Offered load: the sum of service times divided by the span and by the sum of the speeds.
        load: f64,
        /// Duration of a hand-over, in microseconds.
        hand_over_us: u64,
        /// Error of the estimated service times, as a share.
        estimate_error: f64,
        /// Always `in_time`: the mean is a share of all requests.
        figure: &'static str,
    },
}

/// Results under one order of requests on a trace at one load, over the seeds that are complete.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrderRow {
    trace: &'static str,
    /// Share of time in which the GPUs are occupied, under the printed order.
    load: f64,
    rule: &'static str,
    /// Mean share of requests in time.
    in_time: f64,
    /// Mean number of functions that keep their objectives.
    keeping: f64,
    /// Lower end of the 95 % interval of `keeping`; absent with one seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<f64>,
}

impl OrderRow {
    /// Returns a row of these values, one for each seed; `None` if there are none.
    pub(crate) fn new(
        trace: &'static str,
        load: f64,
        rule: &'static str,
        in_time: &[f64],
        keeping: &[f64],
    ) -> Option<Self> {
        let interval = Interval::of(keeping).ok();
        let mean = |values: &[f64]| {
            let own = Interval::of(values).ok().map(|own| own.mean);
            own.or_else(|| values.first().copied())
        };
        Some(Self {
            trace,
            load,
            rule,
            in_time: mean(in_time)?,
            keeping: mean(keeping)?,
            low: interval.map(|own| own.low),
            high: interval.map(|own| own.high),
        })
    }
}

impl Row {
    /// Returns a row of these values, one for each seed; `None` if there are none.
    pub(crate) fn new(
        experiment: &str,
        rule: &'static str,
        case: Case,
        values: &[f64],
    ) -> Option<Self> {
        let &first = values.first()?;
        let interval = Interval::of(values).ok();
        Some(Self::Figure(FigureRow {
            experiment: experiment.to_owned(),
            rule,
            case,
            mean: interval.map_or(first, |own| own.mean),
            low: interval.map(|own| own.low),
            high: interval.map(|own| own.high),
            seeds: values.len(),
        }))
    }
}

/// Returns all rows, in the order of the file and of the figures.
pub(super) fn of(id: &str, spec: &Spec, matrix: &Matrix) -> Vec<Row> {
    let mut rows = Vec::new();
    for &rule in &spec.rules {
        for &functions in &spec.functions {
            for figure in Figure::ALL {
                let values = matrix.by_seed(rule, functions, figure);
                let case = Case::Nodes { functions, figure };
                rows.extend(Row::new(id, rule.name(), case, &values));
            }
        }
    }
    rows
}
