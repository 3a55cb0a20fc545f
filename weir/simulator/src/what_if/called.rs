//! A function that is called, with everything that a run needs of it.

use policy::Span;

use super::cluster::Cluster;
use super::functions::{Functions, Goal, Objective, Times};
use super::load::Seen;
use super::scenario::WhatIfError;
use crate::node::hardware::millis;
use crate::statistics::Percentile;
use crate::traces::Work;

/// Shortest execution: a service time of nothing is below what a trace can tell.
const SHORTEST: Span = Span(1_000);

/// How what a trace says of a request becomes its execution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Each {
    /// It does not: every request takes the function's mean.
    Mean,
    /// Service times, times this.
    Service(f64),
    /// Tokens of prompt and answer, each so many ms.
    Tokens([f64; 2]),
}

impl Each {
    /// The execution of a request; none: its function's mean.
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
    /// What the trace's times and tokens do to it.
    pub each: Each,
    /// The trace's tokens are left out, although the file does not ask for that: its model has no times for them.
    pub tokens_unused: bool,
    /// Standard deviation of the trace's service times as a part of their mean.
    pub varies: Option<f64>,
}

impl Called {
    /// What a process of its own takes, in multiples of execution.
    #[must_use]
    pub fn native_part(&self) -> f64 {
        self.native.as_secs_f64() / self.execution.as_secs_f64()
    }
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
    // What the trace says on average, and how it is read.
    let by_service = seen
        .service()
        .map(|mean| (mean.max(SHORTEST), Each::Service(1.0)));
    let by_tokens = || Some((of_tokens(seen.mean_tokens()?)?, Each::Tokens(per_token)));
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
                Each::Service(_) => Each::Service(by),
                Each::Tokens(per) => Each::Tokens(per.map(|ms| ms * by)),
                Each::Mean => Each::Mean,
            }
        }
        _ => Each::Mean,
    };
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
    // By the factor that the model states, whatever the execution is.
    let native = model.and_then(|model| {
        let native = model.native_ms?;
        let by = model
            .execution_ms
            .map_or(1.0, |own| execution.as_secs_f64() * 1e3 / own);
        Some(millis(native * by).max(SHORTEST))
    });
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
        each,
        tokens_unused: each == Each::Mean && times != Times::Stated && seen.tokens.0 > 0,
        varies: seen.varies(),
    })
}
