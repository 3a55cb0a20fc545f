//! Types that all readers and generators produce.

use policy::{Span, Time};

use super::Quantiles;
use crate::statistics::Percentile;

/// Properties of a function. Its id is its index in [`Workload::functions`].
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionInfo {
    /// Name, unique in the workload.
    pub name: String,
    /// Name of the model that the function runs.
    pub model: Option<String>,
    /// Time within which requests are to be answered, unless they state their own.
    pub objective: Option<Span>,
    /// Percentile of the requests that must meet the objective, if set.
    pub percentile: Option<Percentile>,
    /// Mean rate in requests a minute, if it was set and not observed.
    pub per_minute: Option<f64>,
    /// Memory of the function or of its model's weights, in 10⁶ bytes; of the whole app where a trace states only that.
    pub memory_mb: Option<f64>,
    /// Distribution of the requests' service times.
    pub service: Option<Quantiles>,
}

impl FunctionInfo {
    /// Creates a function without other properties.
    #[must_use]
    pub const fn named(name: String) -> Self {
        Self {
            name,
            model: None,
            objective: None,
            percentile: None,
            per_minute: None,
            memory_mb: None,
            service: None,
        }
    }
}

/// Work that a request states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Not stated: the function's model determines it.
    Unstated,
    /// Execution time of the request.
    Service(Span),
    /// Numbers of tokens for a language model.
    Tokens {
        /// Number of tokens in the prompt.
        input: u32,
        /// Number of tokens in the answer.
        output: u32,
    },
}

/// A request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival time, from the start of the workload.
    pub at: Time,
    /// Index into [`Workload::functions`].
    pub function: u32,
    /// Work of the request.
    pub work: Work,
    /// Objective of the request, which takes precedence over that of its function.
    pub objective: Option<Span>,
}

/// Functions, and their requests in the order of time.
///
/// `A` is an iterator of `Result<Arrival, TraceError>`. After an error it yields nothing more.
#[derive(Clone, Debug)]
pub struct Workload<A> {
    /// All functions, including those without requests.
    pub functions: Vec<FunctionInfo>,
    /// Lazy iterator over all requests.
    pub arrivals: A,
}
