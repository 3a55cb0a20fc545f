//! The papers' experiments: which runs they are made of, and what comes of them.
//!
//! An experiment is a file of `weir/simulator/experiments`: what is run, at which loads, under which rules. Each runs over
//! seeds with the same arrivals for all rules, and gives tables and figures for people, and evidence for
//! [claims](crate::claims), whose rules were settled beforehand.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::claims::Evidence;
use crate::node::RunError;
use crate::report::Section;

/// How far an experiment is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Runs that are done …
    pub done: u32,
    /// … of so many.
    pub of: u32,
    /// Events of virtual time so far.
    pub events: u64,
}

/// What came of an experiment.
#[derive(Debug, Default)]
pub struct Findings {
    /// For people.
    pub sections: Vec<Section>,
    /// For claims, by their ids.
    pub evidence: BTreeMap<String, Evidence>,
    /// It was told to stop: what is there is what was done by then.
    pub stopped: bool,
}

/// Why an experiment cannot be run.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// There is none of that name.
    #[error("there is no experiment {found:?}; allowed: {allowed}")]
    Unknown {
        /// What was asked for.
        found: String,
        /// Those that there are.
        allowed: String,
    },
    /// Its file is wrong.
    #[error("experiment {id}: {why}")]
    File {
        /// Which.
        id: String,
        /// Why.
        why: String,
    },
    /// A run came to nothing.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// An experiment that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// How it is asked for.
    pub id: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
}

/// All experiments, in the order in which they are run.
#[must_use]
pub fn all() -> Vec<Listed> {
    Vec::new()
}

/// Runs an experiment over so many seeds. `watch` is told how far it is, and stops it by false.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    id: &str,
    seeds: u32,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Findings, ExperimentError> {
    let _more = (seeds, watch);
    Err(ExperimentError::Unknown {
        found: id.to_owned(),
        allowed: String::new(),
    })
}
