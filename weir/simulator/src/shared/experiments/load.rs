//! Violations while pods follow a load (S07).

use policy::{Span, Time};

use super::super::models::Models;
use super::super::outcome::Outcome;
use super::super::run::{RunError, serve};
use super::super::settings::{Counted, Scaling, Settings};
use crate::generate::{SpecError, generate, preset};
use crate::random::Streams;
use crate::statistics::Percentile;

/// ResNet under a load in steps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Followed {
    /// S07: requests beyond the objective, in percent.
    pub violations: f64,
    /// Requests counted.
    pub requests: u64,
    /// Of them, those that found no pod that served.
    pub held: u64,
    /// The 50th and the 99th percentile of the latencies of those that were answered.
    pub latencies: [Span; 2],
    /// Pods × time that they were there, in seconds.
    pub pod_seconds: f64,
    /// Window × SMs × that time, in GPUs for a second.
    pub gpu_seconds: f64,
    /// The most pods at once.
    pub pods_max: u32,
    /// Pods that found no GPU.
    pub unplaced: u64,
    /// Events of the run.
    pub events: u64,
}

/// S07: the preset `fast-scale` under this seed; the first tenth is not counted.
///
/// # Errors
/// See [`RunError`].
///
/// # Panics
/// Never: the preset is part of the crate.
pub fn follow(
    models: &Models,
    settings: &Settings,
    scaling: &Scaling,
    seed: u64,
) -> Result<Followed, RunError> {
    let workload = || {
        let mut spec = preset("fast-scale")?.spec();
        spec.seed = seed;
        let length = spec.length();
        Ok::<_, SpecError>((generate(&spec)?, length))
    };
    let (workload, length) = workload().expect("the preset is tested");
    let streams = Streams::new("fast-scale", seed);
    let span = Counted::after_a_tenth(length);
    let outcome = serve(models, settings, scaling, workload, span, &streams)?;
    debug_assert_eq!(Time::ZERO.after(length), span.to, "the run ends there");
    Ok(told(&outcome))
}

fn told(outcome: &Outcome) -> Followed {
    let function = &outcome.functions[0];
    let at = |percentile| {
        let latency = function.latencies.percentile(percentile);
        latency.unwrap_or(Span::ZERO)
    };
    Followed {
        violations: function.late_percent(),
        requests: function.requests,
        held: function.held,
        latencies: [at(Percentile::P50), at(Percentile::P99)],
        pod_seconds: outcome.pod_seconds,
        gpu_seconds: outcome.gpu_seconds,
        pods_max: outcome.pods_max,
        unplaced: outcome.unplaced,
        events: outcome.events,
    }
}
