//! What becomes of a call of the program.

use crate::cuda::{Code, SUCCESS};

/// The driver's own function with the program's own arguments, called at most once unless an operation states otherwise.
pub type Call<'a> = &'a dyn Fn() -> Code;

/// The driver's own function with the program's own arguments, and what it has written.
pub type CallFor<'a, T> = &'a dyn Fn() -> Result<T, Code>;

/// Outcome of an operation for a call of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome<T = Code> {
    /// The operation is done, with this result; the driver was called as far as it takes.
    Done(T),
    /// The call is to be passed to the driver unchanged.
    Pass(Reason),
    /// The call fails with an error of this library's.
    Fail(Code),
}

/// Reason for which a call is passed to the driver unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Weir does not control the process.
    Inactive,
    /// The driver calls its own exported function within a launch or touch that has passed.
    Nested,
    /// The stream captures: nothing runs.
    Capturing,
    /// The arguments are invalid, and the driver reports the error.
    Invalid,
    /// The stream is measured up to the operation, which itself is not.
    Measured,
    /// The memory is not this library's.
    Foreign,
}

impl From<Result<(), Code>> for Outcome {
    fn from(result: Result<(), Code>) -> Self {
        match result {
            Ok(()) => Self::Done(SUCCESS),
            Err(code) => Self::Fail(code),
        }
    }
}

impl Outcome {
    /// Returns the program's result, after a call of the driver if the operation has made none.
    #[inline]
    pub fn or_call(self, call: Call<'_>) -> Code {
        match self {
            Self::Done(code) | Self::Fail(code) => code,
            Self::Pass(_) => call(),
        }
    }
}

impl<T> Outcome<T> {
    /// Returns the outcome of an operation that is done or has failed.
    pub fn of(result: Result<T, Code>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(code) => Self::Fail(code),
        }
    }

    /// Returns the program's result: a value of the operation is passed to `write`, and an operation without one calls the driver.
    pub fn write_or_call(self, call: Call<'_>, write: impl FnOnce(T)) -> Code {
        match self {
            Self::Done(value) => {
                write(value);
                SUCCESS
            }
            Self::Pass(_) => call(),
            Self::Fail(code) => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_a_passed_call_reaches_the_driver() {
        let calls = Cell::new(0);
        let call = || {
            calls.set(calls.get() + 1);
            7
        };
        assert_eq!(Outcome::Done(0).or_call(&call), 0);
        assert_eq!(Outcome::Fail(2).or_call(&call), 2);
        assert_eq!(calls.get(), 0);
        assert_eq!(Outcome::Pass(Reason::Inactive).or_call(&call), 7);
        assert_eq!(calls.get(), 1);
    }

    #[test]
    fn only_a_value_is_written() {
        let written = Cell::new(0);
        let call = || 7;
        let code = Outcome::Done(5).write_or_call(&call, |value| written.set(value));
        assert_eq!((code, written.get()), (SUCCESS, 5));
        for outcome in [Outcome::<i32>::Fail(2), Outcome::Pass(Reason::Invalid)] {
            let code = outcome.write_or_call(&call, |_| panic!("there is no value"));
            assert!(code == 2 || code == 7);
        }
    }
}
