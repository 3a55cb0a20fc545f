//! The environment as Knative sets it: names, formats, and what happens when one is wrong.
//!
//! Formats are those of the library that Knative's own queue-proxy reads its settings with: a required
//! variable must be set (a string may be empty), booleans are Go's spellings, integers are decimal.

use std::fmt::Display;
use std::str::FromStr;

/// Where variables come from; a map in tests, the process environment otherwise.
pub trait Environment {
    /// The value of a variable, if it is set.
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

/// What is wrong with one variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A required variable is not set. The words are upstream's: scripts look for them.
    #[error("required key {0} missing value")]
    Missing(&'static str),
    /// A value cannot be used.
    #[error("{name}={value:?}: {why}")]
    Invalid {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        why: String,
    },
}

/// Reads variables and keeps every problem, so that all are reported at once.
#[derive(Debug)]
pub struct Reader<'a, E> {
    environment: &'a E,
    problems: Vec<Problem>,
}

impl<'a, E: Environment> Reader<'a, E> {
    /// A reader without problems yet.
    pub const fn new(environment: &'a E) -> Self {
        Self {
            environment,
            problems: Vec::new(),
        }
    }

    /// The problems so far, in the order they were met.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// A value that cannot be used, found by the caller.
    pub fn invalid(&mut self, name: &'static str, value: impl Into<String>, why: impl Display) {
        self.problems.push(Problem::Invalid {
            name,
            value: value.into(),
            why: why.to_string(),
        });
    }

    /// A required string; empty is allowed.
    pub fn required(&mut self, name: &'static str) -> String {
        self.environment.get(name).unwrap_or_else(|| {
            self.problems.push(Problem::Missing(name));
            String::new()
        })
    }

    /// A string that may be absent.
    pub fn optional(&self, name: &str) -> String {
        self.environment.get(name).unwrap_or_default()
    }

    /// A required number.
    pub fn required_number<T: FromStr + Default>(&mut self, name: &'static str) -> T {
        match self.environment.get(name) {
            Some(value) => self.number(name, &value),
            None => {
                self.problems.push(Problem::Missing(name));
                T::default()
            }
        }
    }

    /// A number that may be absent or empty.
    pub fn optional_number<T: FromStr + Default>(&mut self, name: &'static str) -> T {
        match self.environment.get(name) {
            Some(value) if !value.is_empty() => self.number(name, &value),
            _ => T::default(),
        }
    }

    /// A boolean that may be absent or empty: Go's spellings.
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
            self.invalid(name, value, "a whole decimal number is needed");
            T::default()
        })
    }
}
