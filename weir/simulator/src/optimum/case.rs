//! A small case of the pool problem: all of it known beforehand.

use policy::{Span, Time};
use thiserror::Error;

/// A case has at most this many requests: sets of them are words.
pub const REQUESTS_MAX: usize = 64;

/// A case has at most this many functions.
pub const FUNCTIONS_MAX: usize = 32;

/// A case has at most this many slots.
pub const SLOTS_MAX: usize = 4;

/// A request takes less than this: three days, in ns, so that sums stay far from the end of the clock.
pub const TAKES_MAX: u64 = 1 << 48;

/// A request arrives before this, in ns.
pub const ARRIVAL_MAX: u64 = 1 << 62;

/// A function and its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// What its model takes of a slot, in bytes. More than a slot has: its requests can never run.
    pub bytes: u64,
    /// A request whose model is there.
    pub execution: Span,
    /// A request that brings its model; at least `execution`.
    pub swapped: Span,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Index into [`Case::functions`].
    pub function: usize,
    /// It cannot begin before.
    pub arrival: Time,
    /// It is in time if it ends by then.
    pub deadline: Time,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    slots: usize,
    memory: u64,
    functions: Vec<Function>,
    requests: Vec<Request>,
}

/// Why there is no such case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CaseError {
    /// None, or too many.
    #[error("{0} slots are not 1 to {SLOTS_MAX}")]
    Slots(usize),
    /// Too many.
    #[error("{0} functions are more than {FUNCTIONS_MAX}")]
    Functions(usize),
    /// Too many.
    #[error("{0} requests are more than {REQUESTS_MAX}")]
    Requests(usize),
    /// A load cannot make a request shorter.
    #[error("function {0} takes less time with a load than without")]
    Swapped(usize),
    /// Too long.
    #[error("a request of function {0} takes more than {TAKES_MAX} ns")]
    Long(usize),
    /// Too late.
    #[error("request {0} arrives later than {ARRIVAL_MAX} ns")]
    Late(usize),
    /// No such function.
    #[error("request {request} is of function {function}, which is not there")]
    NoFunction {
        /// Whose request.
        request: usize,
        /// Which function.
        function: usize,
    },
    /// Requests stand in the order of arrival, so that ties go by index.
    #[error("request {0} arrives before the one that it follows")]
    Order(usize),
}

impl Case {
    /// Like slots with `memory` bytes for models each; requests by arrival.
    ///
    /// # Errors
    /// See [`CaseError`].
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
            return Err(CaseError::Swapped(at));
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

    /// How many slots there are.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// What models may take of each slot, in bytes.
    #[must_use]
    pub const fn memory(&self) -> u64 {
        self.memory
    }

    /// The functions.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The requests, by arrival.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// What a set of models takes, in bytes.
    pub(super) fn bytes(&self, models: u32) -> u64 {
        members(u64::from(models))
            .map(|function| self.functions[function].bytes)
            .fold(0, u64::saturating_add)
    }
}

/// The members of a set, ascending.
pub(super) fn members(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let member = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (member < 64).then_some(member as usize)
    })
}
