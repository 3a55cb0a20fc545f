//! Synthetic workloads (workloads §§2–4): the rate of each function, its change over time, and the arrival of each
//! request.
//!
//! A workload is described by data, a [`Spec`]: in TOML, or one of the [`presets`](preset_names) that represent the
//! experiments of the papers. Arrivals are generated lazily: a function holds two random streams and the state of its rate
//! (about 0.3 KB), and [`Merged`] sorts a few arrivals of each function at a time, so memory grows with functions and not
//! with requests. An arrival costs O(log functions) and, in shapes with changing rates, the changes passed.
//!
//! The same spec yields the same arrivals on every machine, and function 17 the same ones whether it is one of 20
//! or one of 2,000 (except with [`Spec::total_per_minute`], which scales every function by the sum of all).

mod merge;
mod preset;
mod rates;
mod shape;
mod spec;

pub use merge::Merged;
pub use preset::{Preset, named_shape, preset, preset_names};
pub use rates::Rates;
pub use shape::{Daily, FunctionArrivals, Shape};
pub use spec::{Mix, Model, Spec, SpecError};

use std::sync::Arc;

use policy::Span;

use crate::random::{Purpose, Streams};
use crate::traces::{Arrival, FunctionInfo, TraceError, Work, Workload};

/// Arrivals of a synthetic workload, ordered by time, then function.
#[derive(Debug, Clone)]
pub struct Generated {
    merged: Merged<FunctionArrivals>,
}

impl Iterator for Generated {
    type Item = Result<Arrival, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.merged.next().map(|(at, function)| {
            Ok(Arrival {
                at,
                function,
                work: Work::Unstated,
                objective: None,
            })
        })
    }
}

/// Returns the workload of a spec.
///
/// # Errors
/// Returns the errors of [`Spec::validate`].
pub fn generate(spec: &Spec) -> Result<Workload<Generated>, SpecError> {
    spec.validate()?;
    let streams = Streams::new(&spec.experiment, spec.seed);
    let per_minute = spec.rates_per_minute(&streams);
    let models = spec.models_of_functions();
    let shape = Arc::new(spec.shape.clone());
    let mut functions = Vec::with_capacity(per_minute.len());
    let mut arrivals = Vec::with_capacity(per_minute.len());
    for (function, &per_minute) in (0_u32..).zip(&per_minute) {
        let mut info = FunctionInfo::named(format!("function-{function}"));
        info.per_minute = Some(per_minute);
        if let Some(model) = models
            .get(function as usize)
            .and_then(|&at| spec.models.get(at))
        {
            info.model = Some(model.name.clone());
            info.objective = model.objective_ms.map(span_of_ms);
            info.memory_mb = Some(model.weights_mb);
        }
        functions.push(info);
        arrivals.push(FunctionArrivals::new(
            &shape,
            per_minute,
            spec.daily,
            streams.stream(Purpose::Shape, function),
            streams.stream(Purpose::Arrival, function),
            spec.length(),
        ));
    }
    Ok(Workload {
        functions,
        arrivals: Generated {
            merged: Merged::new(arrivals),
        },
    })
}

fn span_of_ms(ms: f64) -> Span {
    Span(nanos(ms * 1e6))
}

/// Rounds to whole nanoseconds; values below zero become zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates at both ends"
)]
pub(crate) fn nanos(value: f64) -> u64 {
    libm::round(value) as u64
}
