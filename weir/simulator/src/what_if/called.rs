//! A function that is called, with everything that a run needs of it.

use policy::Span;

use super::cluster::Cluster;
use super::functions::{Functions, Goal, Objective};
use super::load::Seen;
use super::scenario::WhatIfError;
use crate::node::hardware::millis;
use crate::statistics::Percentile;

/// A function that is called.
#[derive(Clone, Debug, PartialEq)]
pub struct Called {
    /// Its place in [`super::load::Load::functions`].
    pub place: usize,
    /// Its name in the trace.
    pub name: String,
    /// Its model's name; empty: it has a model of its own.
    pub model: String,
    /// Requests in the window.
    pub requests: u64,
    /// Bytes of weights over 10⁶.
    pub weights_mb: f64,
    /// Execution with the model resident.
    pub execution: Span,
    /// The same in a process of its own.
    pub native: Span,
    /// What that process takes of a GPU, over 10⁶ bytes.
    pub footprint_mb: f64,
    /// Within which it is to be answered; the longest of its requests' where they state it themselves.
    pub objective: Span,
    /// Its requests' own objectives count.
    pub by_request: bool,
    /// How many of its requests.
    pub percentile: Percentile,
    /// Standard deviation of the trace's service times as a part of their mean.
    pub varies: Option<f64>,
}

/// Key by key: the function's own settings, then what the trace says, then those of all.
///
/// # Errors
/// It lacks weights, execution or objective.
pub(super) fn resolve(
    cluster: &Cluster,
    functions: &Functions,
    own: Option<&Goal>,
    place: usize,
    seen: &Seen,
) -> Result<Called, WhatIfError> {
    let info = &seen.info;
    let default = &functions.default;
    let lacks = |what: String| WhatIfError::Function {
        function: info.name.clone(),
        what,
    };
    let of_trace = info.model.as_deref().and_then(|name| functions.model(name));
    let named = own.and_then(|own| own.model).or(of_trace).or(default.model);
    let own_weights = own.and_then(|own| own.weights_mb);
    let model = named
        .or_else(|| functions.in_turn(place))
        .map(|at| &functions.models[at]);
    if let (None, None, Some(name)) = (named, of_trace, &info.model) {
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
    let of_tokens = |tokens: [f64; 2]| {
        let [input, output] = model?.per_token_ms;
        let ms = tokens[0] * input + tokens[1] * output;
        (ms > 0.0).then(|| millis(ms))
    };
    let execution = own
        .and_then(|own| own.execution_ms)
        .or_else(|| model.and_then(|model| model.execution_ms))
        .map(millis)
        .or_else(|| seen.service())
        .or_else(|| seen.mean_tokens().and_then(of_tokens))
        .or_else(|| default.execution_ms.map(millis))
        .ok_or_else(|| {
            let what = "its execution is not known: the trace has no service times, so execution_ms of its [[model]], \
                        [[function]] or [default] is needed (for tokens also ms_per_output_token)";
            lacks(what.to_owned())
        })?;
    // A service time of nothing is below what a trace can tell.
    let execution = execution.max(Span(1_000));
    let span = |objective: Objective| {
        let of_execution = execution.as_secs_f64() * 1e3 * objective.factor;
        millis(of_execution.max(objective.ms))
    };
    let own_objective = own.and_then(|own| own.objective).map(span);
    let by_request = own_objective.is_none() && seen.objective > Span::ZERO;
    let objective = own_objective
        .or_else(|| by_request.then_some(seen.objective))
        .or(info.objective)
        .or_else(|| default.objective.map(span))
        .ok_or_else(|| {
            let what = "it has no objective: objective_ms or objective_factor under [default] or [[function]] is needed";
            lacks(what.to_owned())
        })?;
    let native = model.and_then(|model| model.native_ms).map(millis);
    let footprint = model.and_then(|model| model.footprint_mb);
    Ok(Called {
        place,
        name: info.name.clone(),
        model: model.map(|model| model.name.clone()).unwrap_or_default(),
        requests: seen.requests,
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
        varies: seen.varies(),
    })
}
