//! A cluster, functions and a load together, and one run of them.

use std::collections::BTreeSet;

use policy::{Span, Time};
use thiserror::Error;

use super::answer::Answer;
use super::cluster::Cluster;
use super::functions::Functions;
use super::judge::judge;
use super::load::Load;
use super::resolve::{CalledFunction, resolve};
use crate::node::{CountedSpan, Hosting, ModelTimes, Noise, RunError, Settings, run};
use crate::random::Streams;
use crate::rules::RuleName;
use crate::traces::{Arrival, FunctionInfo, TraceError, Work, Workload};

/// Largest number of functions with requests in a window.
pub const FUNCTIONS_MAX: usize = 16_384;

/// Values that may differ between runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Rules of the run.
    pub rule: RuleName,
    /// Number of GPUs of each node.
    pub gpus: u32,
    /// Number of nodes of the cluster.
    pub nodes: u32,
    /// Memory for models on each GPU, in 10⁹ bytes.
    pub models_gb: f64,
    /// Rate from host to GPU, in 10⁹ bytes per second.
    pub host_gb_per_s: f64,
    /// Rate of arrivals as a multiple of the trace's: gaps between arrivals are divided by it.
    pub rate_scale: f64,
}

/// Error in a scenario or its run.
#[derive(Debug, Error)]
pub enum WhatIfError {
    /// A setting of a function is missing.
    #[error("function {function:?}: {what}")]
    Function {
        /// Name of the function.
        function: String,
        /// Missing setting, and the keys that can provide it.
        what: String,
    },
    /// There are too many functions with requests.
    #[error(
        "{0} functions are called, but at most {FUNCTIONS_MAX} can be run: exclude some (leave_out = true)"
    )]
    TooMany(usize),
    /// No function remains to be run.
    #[error("every function with requests is excluded by leave_out")]
    NoFunction,
    /// The run of the nodes failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Input of runs; see the [module](self).
#[derive(Clone, Debug)]
pub struct Scenario<'a> {
    /// Cluster on which the functions run.
    pub cluster: &'a Cluster,
    /// Requests of the window.
    pub load: &'a Load,
    /// Functions with requests that are run.
    pub called: Vec<CalledFunction>,
    /// Share of the window, at its start, that is run and not counted.
    pub warm_up: f64,
    /// Random variation of times.
    pub noise: Noise,
    /// Seed, part of the random streams' key.
    pub seed: u64,
    /// Names in the file of functions that match no function of the trace.
    pub unused: Vec<String>,
}

impl<'a> Scenario<'a> {
    /// Creates a scenario with a warm-up of a tenth (workloads §1), noise, and seed 1.
    ///
    /// # Errors
    /// Returns an error if a function with requests lacks weights, execution or objective, if there are too many, or if none is
    /// left.
    pub fn new(
        cluster: &'a Cluster,
        functions: &Functions,
        load: &'a Load,
    ) -> Result<Self, WhatIfError> {
        let mut called = Vec::new();
        let mut used = BTreeSet::new();
        for (place, function) in load.functions.iter().enumerate() {
            let pattern = functions.pattern(&function.info.name);
            if let Some(pattern) = pattern {
                used.insert(pattern.name.as_str());
            }
            if function.requests == 0 || pattern.is_some_and(|pattern| pattern.leave_out) {
                continue;
            }
            let own = pattern.map(|pattern| &pattern.settings);
            called.push(resolve(cluster, functions, own, place, function)?);
        }
        if called.is_empty() {
            return Err(WhatIfError::NoFunction);
        }
        if called.len() > FUNCTIONS_MAX {
            return Err(WhatIfError::TooMany(called.len()));
        }
        let names = functions.patterns.iter().map(|own| own.name.as_str());
        Ok(Self {
            cluster,
            load,
            called,
            warm_up: 0.1,
            noise: Noise::default(),
            seed: 1,
            unused: names
                .filter(|name| !used.contains(name))
                .map(str::to_owned)
                .collect(),
        })
    }

    /// Returns the point that the cluster's file describes.
    #[must_use]
    pub fn point(&self, rule: RuleName) -> Point {
        Point {
            rule,
            gpus: u32::try_from(self.cluster.node.slots).unwrap_or(u32::MAX),
            nodes: self.cluster.nodes,
            models_gb: self.cluster.node.models_gb,
            host_gb_per_s: self.cluster.link.host_gb_per_s,
            rate_scale: 1.0,
        }
    }

    /// Runs the scenario at a point. `watch` is called with the completed share of the run, and stops it by returning false; the
    /// answer then covers the time until then.
    ///
    /// # Errors
    /// Returns the errors of [`run()`].
    pub fn run(
        &self,
        point: Point,
        watch: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Answer, WhatIfError> {
        self.run_with(point, point.rule.settings(), watch)
    }

    /// Runs the scenario at a point, with these settings instead of those of the point's rule. Their nodes, noise and hops are
    /// replaced by the scenario's.
    ///
    /// # Errors
    /// Returns the errors of [`run()`].
    pub fn run_with(
        &self,
        point: Point,
        settings: Settings,
        watch: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Answer, WhatIfError> {
        let cluster = self.at(point);
        let models = (0..self.called.len()).map(|at| self.model(at));
        let hardware = cluster.hardware(point.gpus, models.collect());
        let settings = Settings {
            nodes: point.nodes,
            noise: self.noise,
            hops: cluster.hops,
            ..settings
        };
        let length = scaled(self.load.length.0, point.rate_scale).max(1_000_000_000);
        let functions = self.called.iter().enumerate().map(|(at, own)| {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let per_minute = own.requests as f64 / (length as f64 / 60e9);
            FunctionInfo {
                model: Some(at.to_string()),
                objective: Some(own.objective),
                percentile: Some(own.percentile),
                per_minute: Some(per_minute),
                ..FunctionInfo::named(own.name.clone())
            }
        });
        let workload = Workload {
            functions: functions.collect(),
            arrivals: self.arrivals(point),
        };
        let span = self.counted(point.rate_scale);
        let streams = Streams::new("what-if", self.seed);
        let outcome = run(
            &hardware,
            &settings,
            workload,
            span,
            &streams,
            &mut |_, at| {
                #[expect(clippy::cast_precision_loss, reason = "a share")]
                let share = at.0 as f64 / span.to.0 as f64;
                watch(share)
            },
        )?;
        let until = span.from.after(outcome.counted);
        Ok(judge(self, point, &cluster, &outcome, span.from, until))
    }

    /// Returns the cluster with the values of a point.
    fn at(&self, point: Point) -> Cluster {
        let mut cluster = self.cluster.clone();
        // A GPU's total memory changes with its memory for models.
        cluster.node.memory_gb += point.models_gb - cluster.node.models_gb;
        cluster.node.models_gb = point.models_gb;
        cluster.link.host_gb_per_s = point.host_gb_per_s;
        cluster.nodes = point.nodes;
        cluster
    }

    fn model(&self, at: usize) -> ModelTimes {
        let own = &self.called[at];
        ModelTimes {
            // One model for each function, so that its latencies are counted separately.
            name: at.to_string(),
            weights_mb: own.weights_mb,
            execution_ms: own.execution.as_secs_f64() * 1e3,
            native_ms: own.native.as_secs_f64() * 1e3,
            footprint_mb: own.footprint_mb,
            cold_start_ms: Cluster::cold_start_ms(own.footprint_mb),
            blocks_mib: Vec::new(),
        }
    }

    /// Returns the counted span: from the end of the warm-up until the last request has had the longest objective, but at most a
    /// tenth of the window. Requests which are then unanswered and not late are left out (workloads §1).
    fn counted(&self, scale: f64) -> CountedSpan {
        let longest = self.called.iter().map(|own| own.objective).max();
        let length = scaled(self.load.length.0, scale);
        let tenth = Span((length / 10).max(1_000_000_000));
        let rest = longest.unwrap_or(Span::ZERO).min(tenth);
        let from = if self.warm_up > 0.0 {
            scaled(length, 1.0 / self.warm_up)
        } else {
            0
        };
        CountedSpan {
            from: Time(from),
            to: Time(length).after(rest).after(Span(1)),
            // All occupancies are kept: bills, plots and limits are derived from them.
            keep: usize::MAX,
        }
    }

    fn arrivals(&self, point: Point) -> impl Iterator<Item = Result<Arrival, TraceError>> + '_ {
        let scale = point.rate_scale;
        let is_native = point.rule.settings().hosting != Hosting::Swapped;
        let mut of_trace = vec![None; self.load.functions.len()];
        for (function, own) in (0..).zip(&self.called) {
            let by = if is_native { own.native_part() } else { 1.0 };
            of_trace[own.place] = Some((function, own, by));
        }
        self.load.requests.iter().filter_map(move |request| {
            let (function, called, by) = of_trace[request.function as usize]?;
            let own =
                (called.by_request && request.objective > Span::ZERO).then_some(request.objective);
            Some(Ok(Arrival {
                at: Time(scaled(request.at.0, scale)),
                function,
                work: called
                    .each
                    .execution(request.work)
                    .map_or(Work::Unstated, |takes| {
                        Work::Service(Span(scaled(takes.0, 1.0 / by)))
                    }),
                objective: own,
            }))
        })
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ten years are below 2^59 ns; rounded to within 100 ns of them"
)]
fn scaled(nanos: u64, by: f64) -> u64 {
    if by == 1.0 {
        nanos
    } else {
        libm::round(nanos as f64 / by) as u64
    }
}
