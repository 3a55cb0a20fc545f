//! Violations of the objective while pods follow a load (S07).

use policy::{Span, Time};

use simulator::generate::{SpecError, generate, preset};
use simulator::random::Streams;
use simulator::shared::models::Models;
use simulator::shared::outcome::Outcome;
use simulator::shared::run::{RunError, serve};
use simulator::shared::settings::{CountedSpan, Scaling, Settings};
use simulator::statistics::Percentile;

/// Results for ResNet under a load in steps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoadFollowing {
    /// S07: share of requests beyond the objective, in percent.
    pub violations: f64,
    /// Number of counted requests.
    pub requests: u64,
    /// Number of counted requests that arrived when no pod was serving.
    pub held: u64,
    /// 50th and 99th percentile of the latencies of answered requests.
    pub latencies: [Span; 2],
    /// Sum over pods of their lifetimes, in seconds.
    pub pod_seconds: f64,
    /// Sum over pods of window × SMs × lifetime, in GPU seconds.
    pub gpu_seconds: f64,
    /// Largest number of pods at one time.
    pub pods_max: u32,
    /// Number of pods for which no GPU had room.
    pub unplaced: u64,
    /// Number of events of the run.
    pub events: u64,
}

/// Runs S07: the preset `fast-scale` under this seed; the first tenth is not counted.
///
/// # Errors
/// Returns a [`RunError`] if the settings or the workload are refused.
///
/// # Panics
/// Never: the preset is part of the crate.
pub fn follow(
    models: &Models,
    settings: &Settings,
    scaling: &Scaling,
    seed: u64,
) -> Result<LoadFollowing, RunError> {
    let workload = || {
        let mut spec = preset("fast-scale")?.spec();
        spec.seed = seed;
        let length = spec.length();
        Ok::<_, SpecError>((generate(&spec)?, length))
    };
    let (workload, length) = workload().expect("the preset is tested");
    let streams = Streams::new("fast-scale", seed);
    let span = CountedSpan::after_a_tenth(length);
    let outcome = serve(models, settings, scaling, workload, span, &streams)?;
    debug_assert_eq!(Time::ZERO.after(length), span.to, "the run ends there");
    Ok(followed(&outcome))
}

fn followed(outcome: &Outcome) -> LoadFollowing {
    let function = &outcome.functions[0];
    let at = |percentile| {
        let latency = function.latencies.percentile(percentile);
        latency.unwrap_or(Span::ZERO)
    };
    LoadFollowing {
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
