//! A function with requests, with all settings that a run needs.

use policy::Span;

use super::cluster::Cluster;
use super::functions::{FunctionSettings, Functions, Objective, Times};
use super::load::FunctionLoad;
use super::scenario::WhatIfError;
use crate::node::hardware::millis;
use crate::statistics::Percentile;
use crate::traces::Work;

/// Shortest execution time: a service time of zero is below the resolution of traces.
const SHORTEST: Span = Span(1_000);

/// Conversion of a request's work in the trace to its execution time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkConversion {
    /// Every request takes the function's mean.
    Mean,
    /// The service time is multiplied by this factor.
    Service(f64),
    /// Tokens of prompt and answer are multiplied by these times, in milliseconds.
    Tokens([f64; 2]),
}

impl WorkConversion {
    /// Returns the execution time of a request; `None` if it is the function's mean.
    #[must_use]
    pub fn execution(self, work: Work) -> Option<Span> {
        let ms = match (self, work) {
            (Self::Service(by), Work::Service(span)) => span.as_secs_f64() * 1e3 * by,
            (Self::Tokens(per), Work::Tokens { input, output }) => {
                f64::from(input) * per[0] + f64::from(output) * per[1]
            }
            _ => return None,
        };
        Some(millis(ms).max(SHORTEST))
    }
}

/// A function with requests in the window.
#[derive(Clone, Debug, PartialEq)]
pub struct CalledFunction {
    /// Index into [`super::load::Load::functions`].
    pub place: usize,
    /// Name of the function in the trace.
    pub name: String,
    /// Name of the model; empty if the function has a model of its own.
    pub model: String,
    /// Number of requests in the window.
    pub requests: u64,
    /// Size of the weights, in units of 10⁶ bytes.
    pub weights_mb: f64,
    /// Mean execution time with the model resident.
    pub execution: Span,
    /// Mean execution time in a process of its own.
    pub native: Span,
    /// GPU memory of that process, in units of 10⁶ bytes.
    pub footprint_mb: f64,
    /// Objective of the function; the longest of its requests' where they state their own.
    pub objective: Span,
    /// Whether the objectives of the requests take precedence.
    pub by_request: bool,
    /// Percentile of the requests that must be in time.
    pub percentile: Percentile,
    /// Conversion of the trace's service times or tokens.
    pub each: WorkConversion,
    /// Whether the trace's tokens are ignored because the model has no times for them, although the file does not request that.
    pub tokens_unused: bool,
    /// Coefficient of variation of the trace's service times.
    pub varies: Option<f64>,
}

impl CalledFunction {
    /// Returns the ratio of the execution time in a process of its own to `execution`.
    #[must_use]
    pub fn native_part(&self) -> f64 {
        self.native.as_secs_f64() / self.execution.as_secs_f64()
    }
}

/// Resolves a function's settings, key by key: its own, then those of the trace, then the defaults.
///
/// # Errors
/// Returns an error if weights, execution or objective are missing.
pub(super) fn resolve(
    cluster: &Cluster,
    functions: &Functions,
    own: Option<&FunctionSettings>,
    place: usize,
    own_load: &FunctionLoad,
) -> Result<CalledFunction, WhatIfError> {
    let info = &own_load.info;
    let default = &functions.default;
    let lacks = |what: String| WhatIfError::Function {
        function: info.name.clone(),
        what,
    };
    let model_of_trace = info.model.as_deref().and_then(|name| functions.model(name));
    let named = own
        .and_then(|own| own.model)
        .or(model_of_trace)
        .or(default.model);
    let own_weights = own.and_then(|own| own.weights_mb);
    let model = named
        .or_else(|| functions.in_turn(place))
        .map(|at| &functions.models[at]);
    if let (None, None, Some(name)) = (named, model_of_trace, &info.model) {
        let what = format!("there is no model {name:?}: a [[model]] of that name is needed");
        return Err(lacks(what));
    }
    let weights_mb = own_weights
        .or_else(|| model.map(|model| model.weights_mb))
        .or(default.weights_mb)
        .or(info.memory_mb)
        .ok_or_else(|| {
            let what = "its weights are not known: a [[model]], or weights_mb under [default] or [[function]], is needed";
            lacks(what.to_owned())
        })?;
    let times = own
        .and_then(|own| own.times)
        .or(default.times)
        .unwrap_or_default();
    let per_token = model.map_or([0.0; 2], |model| model.per_token_ms);
    let of_tokens = |tokens: [f64; 2]| {
        let ms = tokens[0] * per_token[0] + tokens[1] * per_token[1];
        (ms > 0.0).then(|| millis(ms).max(SHORTEST))
    };
    // Mean of the trace's times, and their conversion.
    let by_service = own_load
        .service()
        .map(|mean| (mean.max(SHORTEST), WorkConversion::Service(1.0)));
    let by_tokens = || {
        Some((
            of_tokens(own_load.mean_tokens()?)?,
            WorkConversion::Tokens(per_token),
        ))
    };
    let of_trace = by_service.or_else(by_tokens);
    if times == Times::Trace && of_trace.is_none() {
        let what = "its work is \"trace\", but the trace has neither service times of it nor tokens that its [[model]] \
                    has a time for (ms_per_input_token, ms_per_output_token)";
        return Err(lacks(what.to_owned()));
    }
    let execution = of_trace
        .filter(|_| times == Times::Trace)
        .map(|own| own.0)
        .or_else(|| own.and_then(|own| own.execution_ms).map(millis))
        .or_else(|| model.and_then(|model| model.execution_ms).map(millis))
        .or_else(|| of_trace.map(|own| own.0))
        .or_else(|| default.execution_ms.map(millis))
        .ok_or_else(|| {
            let what = "its execution is not known: the trace has no service times, so execution_ms of its [[model]], \
                        [[function]] or [default] is needed (for tokens also ms_per_output_token)";
            lacks(what.to_owned())
        })?;
    let execution = execution.max(SHORTEST);
    let each = match of_trace {
        Some((mean, each)) if times != Times::Stated => {
            let by = execution.as_secs_f64() / mean.as_secs_f64();
            match each {
                WorkConversion::Service(_) => WorkConversion::Service(by),
                WorkConversion::Tokens(per) => WorkConversion::Tokens(per.map(|ms| ms * by)),
                WorkConversion::Mean => WorkConversion::Mean,
            }
        }
        _ => WorkConversion::Mean,
    };
    let span = |objective: Objective| {
        let of_execution = execution.as_secs_f64() * 1e3 * objective.factor;
        millis(of_execution.max(objective.ms))
    };
    let own_objective = own.and_then(|own| own.objective).map(span);
    let by_request = own_objective.is_none() && own_load.objective > Span::ZERO;
    let objective = own_objective
        .or_else(|| by_request.then_some(own_load.objective))
        .or(info.objective)
        .or_else(|| default.objective.map(span))
        .ok_or_else(|| {
            let what = "it has no objective: objective_ms or objective_factor under [default] or [[function]] is needed";
            lacks(what.to_owned())
        })?;
    // By the ratio of the model's times, whatever the execution time is.
    let native = model.and_then(|model| {
        let native = model.native_ms?;
        let by = model
            .execution_ms
            .map_or(1.0, |own| execution.as_secs_f64() * 1e3 / own);
        Some(millis(native * by).max(SHORTEST))
    });
    let footprint = model.and_then(|model| model.footprint_mb);
    Ok(CalledFunction {
        place,
        name: info.name.clone(),
        model: model.map(|model| model.name.clone()).unwrap_or_default(),
        requests: own_load.requests,
        weights_mb,
        execution,
        native: native.unwrap_or(execution),
        footprint_mb: footprint.unwrap_or(weights_mb + cluster.node.residue_mb),
        objective,
        by_request,
        percentile: own
            .and_then(|own| own.percentile)
            .or(default.percentile)
            .unwrap_or(Percentile::P98),
        each,
        tokens_unused: each == WorkConversion::Mean
            && times != Times::Stated
            && own_load.tokens.0 > 0,
        varies: own_load.varies(),
    })
}
