//! What every reader and generator gives.

use policy::{Span, Time};

use super::Quantiles;
use crate::statistics::Percentile;

/// What is known of a function. Its id is its index in [`Workload::functions`].
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionInfo {
    /// Unique in its workload.
    pub name: String,
    /// The model it runs.
    pub model: Option<String>,
    /// Within which its requests are to be answered, unless they say otherwise.
    pub objective: Option<Span>,
    /// How many of its requests are to be, where that is set.
    pub percentile: Option<Percentile>,
    /// Its mean rate, requests a minute, where it was set and not observed.
    pub per_minute: Option<f64>,
    /// Its memory, or that of its model's weights, in 10⁶ bytes; of its whole app where a trace states only that.
    pub memory_mb: Option<f64>,
    /// How long its requests run.
    pub service: Option<Quantiles>,
}

impl FunctionInfo {
    /// A function of which nothing else is known.
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

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Not stated: the function's model decides.
    Unstated,
    /// Time of execution.
    Service(Span),
    /// Tokens of a language model.
    Tokens {
        /// Of the prompt.
        input: u32,
        /// Of the answer.
        output: u32,
    },
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrives.
    pub at: Time,
    /// Index into [`Workload::functions`].
    pub function: u32,
    /// What it asks for.
    pub work: Work,
    /// Its own objective, before that of its function.
    pub objective: Option<Span>,
}

/// Functions, and their requests in the order of time.
///
/// `A` is an iterator of `Result<Arrival, TraceError>`. After an error it gives nothing more.
#[derive(Clone, Debug)]
pub struct Workload<A> {
    /// All functions, also those that are never called.
    pub functions: Vec<FunctionInfo>,
    /// All requests, lazily.
    pub arrivals: A,
}
