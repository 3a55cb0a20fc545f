//! A small case of the pool problem, with all requests known beforehand.

use policy::{Span, Time};
use thiserror::Error;

/// Largest number of requests of a case: sets of requests are 64-bit words.
pub const REQUESTS_MAX: usize = 64;

/// Largest number of functions of a case: sets of models are 32-bit words.
pub const FUNCTIONS_MAX: usize = 32;

/// Largest number of slots of a case.
pub const SLOTS_MAX: usize = 4;

/// Exclusive bound on the duration of a request, in nanoseconds: three days, so that sums cannot overflow the clock.
pub const TAKES_MAX: u64 = 1 << 48;

/// Exclusive bound on the arrival time of a request, in nanoseconds.
pub const ARRIVAL_MAX: u64 = 1 << 62;

/// A function and its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Size of the model in bytes. If it exceeds a slot's memory, the function's requests can never run.
    pub bytes: u64,
    /// Duration of a request with the model resident.
    pub execution: Span,
    /// Duration of a request that loads the model; at least `execution`.
    pub swapped: Span,
}

/// A request of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Index into [`Case::functions`].
    pub function: usize,
    /// Earliest time at which the request can begin.
    pub arrival: Time,
    /// Latest time at which the request can end in time.
    pub deadline: Time,
}

/// Slots, functions and requests of a small case; see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    slots: usize,
    memory: u64,
    functions: Vec<Function>,
    requests: Vec<Request>,
}

/// Error in the description of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CaseError {
    /// There are no slots, or more than [`SLOTS_MAX`].
    #[error("{0} slots: allowed: 1 to {SLOTS_MAX}")]
    Slots(usize),
    /// There are more than [`FUNCTIONS_MAX`] functions.
    #[error("{0} functions: allowed: at most {FUNCTIONS_MAX}")]
    Functions(usize),
    /// There are more than [`REQUESTS_MAX`] requests.
    #[error("{0} requests: allowed: at most {REQUESTS_MAX}")]
    Requests(usize),
    /// A request of the function with a load ([`Function::swapped`]) is shorter than one without ([`Function::execution`]).
    #[error("function {0} takes less time with a load than without")]
    SwappedBelowExecution(usize),
    /// A request lasts [`TAKES_MAX`] or longer.
    #[error("a request of function {0} takes {TAKES_MAX} ns or longer")]
    Long(usize),
    /// A request arrives at [`ARRIVAL_MAX`] or later.
    #[error("request {0} arrives at {ARRIVAL_MAX} ns or later")]
    Late(usize),
    /// A request refers to a function that does not exist.
    #[error("request {request} refers to function {function}, which does not exist")]
    NoFunction {
        /// Index of the request.
        request: usize,
        /// Index of the function.
        function: usize,
    },
    /// Requests are not in the order of arrival, which ties by index require.
    #[error("request {0} arrives before the one that it follows")]
    Order(usize),
}

impl Case {
    /// Creates a case with equal slots of `memory` bytes for models each. Requests must be ordered by arrival.
    ///
    /// # Errors
    /// Returns a [`CaseError`] if a number or a time exceeds its bound, or if requests are out of order.
    pub fn new(
        slots: usize,
        memory: u64,
        functions: Vec<Function>,
        requests: Vec<Request>,
    ) -> Result<Self, CaseError> {
        if slots == 0 || slots > SLOTS_MAX {
            return Err(CaseError::Slots(slots));
        }
        if functions.len() > FUNCTIONS_MAX {
            return Err(CaseError::Functions(functions.len()));
        }
        if requests.len() > REQUESTS_MAX {
            return Err(CaseError::Requests(requests.len()));
        }
        if let Some(at) = functions.iter().position(|own| own.swapped < own.execution) {
            return Err(CaseError::SwappedBelowExecution(at));
        }
        let long = |own: &Function| own.swapped.0 >= TAKES_MAX;
        if let Some(at) = functions.iter().position(long) {
            return Err(CaseError::Long(at));
        }
        for (at, request) in requests.iter().enumerate() {
            let function = request.function;
            if function >= functions.len() {
                let request = at;
                return Err(CaseError::NoFunction { request, function });
            }
            if request.arrival.0 >= ARRIVAL_MAX {
                return Err(CaseError::Late(at));
            }
            if at > 0 && requests[at - 1].arrival > request.arrival {
                return Err(CaseError::Order(at));
            }
        }
        Ok(Self {
            slots,
            memory,
            functions,
            requests,
        })
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the memory of each slot for models, in bytes.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        self.memory
    }

    /// Returns the functions, which requests refer to by index.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the requests in the order of arrival.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Returns the memory that a set of models takes, in bytes.
    pub(super) fn bytes(&self, models: u32) -> u64 {
        members(u64::from(models))
            .map(|function| self.functions[function].bytes)
            .fold(0, u64::saturating_add)
    }
}

/// Returns the members of a set in ascending order.
pub(super) fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let member = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (member < 64).then_some(member as usize)
    })
}
