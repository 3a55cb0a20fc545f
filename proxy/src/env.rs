//! Environment variables as set by Knative: access, formats, and error reporting.
//!
//! The formats are those of the library with which Knative's own queue-proxy reads its settings: a required
//! variable must be set (a string may be empty), booleans have Go's spellings, integers are decimal.

use std::fmt::Display;
use std::str::FromStr;

/// A source of environment variables: the process environment, or a map in tests.
pub trait Environment {
    /// Returns the value of a variable, or `None` if it is not set.
    fn get(&self, name: &str) -> Option<String>;
}

/// The environment of this process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }
}

impl Environment for std::collections::BTreeMap<&str, String> {
    fn get(&self, name: &str) -> Option<String> {
        Self::get(self, name).cloned()
    }
}

/// A missing or invalid variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A required variable that is not set. The message is Knative's, since scripts search for it.
    #[error("required key {0} missing value")]
    Missing(&'static str),
    /// A variable with an invalid value.
    #[error("{name}={value:?}: {why}")]
    Invalid {
        /// Name of the variable.
        name: &'static str,
        /// Rejected value of the variable.
        value: String,
        /// What is wrong with the value, or which values are allowed.
        why: String,
    },
}

/// Reader that collects the problems of all variables, so that they are reported at once.
#[derive(Debug)]
pub struct Reader<'a, E> {
    environment: &'a E,
    problems: Vec<Problem>,
}

impl<'a, E: Environment> Reader<'a, E> {
    /// Creates a reader of `environment` without problems.
    pub const fn new(environment: &'a E) -> Self {
        Self {
            environment,
            problems: Vec::new(),
        }
    }

    /// Returns the problems in the order in which the variables were read.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Records the value of a variable as invalid, for the caller's own checks.
    pub fn invalid(&mut self, name: &'static str, value: impl Into<String>, why: impl Display) {
        self.problems.push(Problem::Invalid {
            name,
            value: value.into(),
            why: why.to_string(),
        });
    }

    /// Reads a required string, which may be empty. Returns the empty string and records a problem if it is not set.
    pub fn required(&mut self, name: &'static str) -> String {
        self.environment.get(name).unwrap_or_else(|| {
            self.problems.push(Problem::Missing(name));
            String::new()
        })
    }

    /// Reads an optional string. Returns the empty string if it is not set.
    pub fn optional(&self, name: &str) -> String {
        self.environment.get(name).unwrap_or_default()
    }

    /// Reads a required whole number. Returns the default and records a problem if it is not set or malformed.
    pub fn required_number<T: FromStr + Default>(&mut self, name: &'static str) -> T {
        match self.environment.get(name) {
            Some(value) => self.number(name, &value),
            None => {
                self.problems.push(Problem::Missing(name));
                T::default()
            }
        }
    }

    /// Reads a whole number. Returns the default if it is not set or empty, and records a problem if it is malformed.
    pub fn optional_number<T: FromStr + Default>(&mut self, name: &'static str) -> T {
        match self.environment.get(name) {
            Some(value) if !value.is_empty() => self.number(name, &value),
            _ => T::default(),
        }
    }

    /// Reads a boolean in one of Go's spellings. Returns `false` if it is not set or empty, and records a problem for
    /// another spelling.
    pub fn optional_bool(&mut self, name: &'static str) -> bool {
        let value = self.optional(name);
        match value.as_str() {
            "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
            "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
            _ => {
                self.invalid(
                    name,
                    value,
                    "allowed: 1 t T TRUE true True 0 f F FALSE false False",
                );
                false
            }
        }
    }

    fn number<T: FromStr + Default>(&mut self, name: &'static str, value: &str) -> T {
        value.parse().unwrap_or_else(|_| {
            self.invalid(name, value, "allowed: a whole decimal number");
            T::default()
        })
    }
}
