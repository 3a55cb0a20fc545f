//! The papers' experiments: the runs of which they consist, their results, and verdicts on the papers' claims.
//!
//! An experiment on a pool of GPUs is a file of `specs`: workload, loads and rules. Each experiment runs over seeds, with the same
//! arrivals for all rules, and yields tables and figures for people, and evidence for [`claims`] with rules that were fixed
//! beforehand. The runs themselves are the [`simulator`]'s.
//!
//! | module | content |
//! |---|---|
//! | [`claims`] | the papers' claims and the verdicts on them |
//! | [`optimum`] | small cases solved with all arrivals known: the distance of decisions to the best possible |
//! | [`shares`] | the statements of FaST-GShare, each as a function from a seed to its number |
//! | [`routing`] | rules of choosing an instance, early or late |
//!
//! Deliberately absent: users' own questions, which are `simulator::what_if`'s. Start reading in [`claims`].
//!
//! # Examples
//!
//! ```
//! let claims = experiments::claims::Claims::of_papers();
//! let claim = claims.get("T02").expect("a claim of Torpor");
//! assert_eq!(claim.paper_value(), "≥ 80.0 %");
//! assert!(experiments::all().iter().any(|it| it.id == "torpor-node"));
//! ```
#![forbid(unsafe_code)]

mod best;
pub mod claims;
mod evidence;
mod fast;
mod matrix;
pub mod optimum;
mod order;
mod page;
pub mod routing;
mod rows;
pub mod shares;
mod spec;

use std::collections::BTreeMap;

use thiserror::Error;

pub(crate) use rows::Case;
pub use rows::{FigureRow, OrderRow, Row};

use self::matrix::Matrix;
use self::spec::Spec;

use crate::claims::Evidence;
use simulator::node::RunError;
use simulator::report::Section;

/// Progress of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Number of runs completed.
    pub done: u32,
    /// Number of runs in all.
    pub of: u32,
    /// Events of virtual time processed so far, in all runs.
    pub events: u64,
}

/// Results of an experiment.
#[derive(Debug, Default)]
pub struct Findings {
    /// Sections of the page and of the terminal's output.
    pub sections: Vec<Section>,
    /// One row for each figure; empty for experiments which only yield evidence or tables.
    pub rows: Vec<Row>,
    /// Evidence for claims, by claim id.
    pub evidence: BTreeMap<String, Evidence>,
    /// Whether the experiment was interrupted; the results then cover only the runs completed by then.
    pub stopped: bool,
}

/// Error in the set-up or in a run of an experiment.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// No experiment has this name.
    #[error("there is no experiment {found:?}; allowed: {allowed}")]
    Unknown {
        /// Name that was requested.
        found: String,
        /// Names of all experiments, separated by commas.
        allowed: String,
    },
    /// The experiment's file is invalid.
    #[error("experiment {id}: {why}")]
    File {
        /// Name of the experiment.
        id: String,
        /// Reason, as reported by the parser or the workload's check.
        why: String,
    },
    /// A run of nodes failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A run of GPUs with shared SMs failed.
    #[error(transparent)]
    Shared(#[from] simulator::shared::run::RunError),
}

/// Name and description of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExperimentInfo {
    /// Name by which the experiment is requested.
    pub id: &'static str,
    /// Description in one line.
    pub about: String,
}

/// Name and file of each experiment on pools of GPUs, in the order in which they are run.
const FILES: [(&str, &str); 6] = [
    ("torpor-node", include_str!("../specs/torpor-node.toml")),
    (
        "torpor-low-rates",
        include_str!("../specs/torpor-low-rates.toml"),
    ),
    (
        "torpor-balance",
        include_str!("../specs/torpor-balance.toml"),
    ),
    (
        "torpor-heavy-light",
        include_str!("../specs/torpor-heavy-light.toml"),
    ),
    (
        "torpor-cluster",
        include_str!("../specs/torpor-cluster.toml"),
    ),
    ("torpor-memory", include_str!("../specs/torpor-memory.toml")),
];

/// Returns all experiments in the order in which they are run.
///
/// # Panics
/// Never: a test reads the files.
#[must_use]
pub fn all() -> Vec<ExperimentInfo> {
    let each = FILES.iter().map(|(id, text)| ExperimentInfo {
        id,
        about: spec(id, text)
            .expect("the files of the crate are valid")
            .about,
    });
    let others = [
        (fast::ID, fast::ABOUT),
        (best::ID, best::ABOUT),
        (order::ID, order::ABOUT),
    ];
    let others = others.map(|(id, about)| ExperimentInfo {
        id,
        about: about.to_owned(),
    });
    each.chain(others).collect()
}

fn spec(id: &str, text: &str) -> Result<Spec, ExperimentError> {
    toml::from_str(text).map_err(|error| ExperimentError::File {
        id: id.to_owned(),
        why: error.to_string(),
    })
}

/// Runs an experiment over `seeds` seeds. `watch` is called with the progress, and stops the run by returning false.
///
/// # Errors
/// Returns an [`ExperimentError`] if there is no such experiment, its file is invalid, or a run fails.
pub fn run(
    id: &str,
    seeds: u32,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Findings, ExperimentError> {
    match id {
        fast::ID => return fast::run(seeds, watch),
        best::ID => return best::run(seeds, watch),
        order::ID => return order::run(seeds, watch),
        _ => {}
    }
    let Some((id, text)) = FILES.iter().find(|(own, _)| *own == id) else {
        let names: Vec<_> = all().iter().map(|listed| listed.id).collect();
        return Err(ExperimentError::Unknown {
            found: id.to_owned(),
            allowed: names.join(", "),
        });
    };
    let spec = spec(id, text)?;
    let matrix = Matrix::run(id, &spec, seeds, watch)?;
    Ok(Findings {
        sections: vec![page::section(id, &spec, &matrix)],
        rows: rows::of(id, &spec, &matrix),
        evidence: evidence::of(&spec, &matrix),
        stopped: matrix.stopped,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claims;

    #[test]
    fn every_file_is_valid_and_its_evidence_names_existing_claims() {
        let claims = Claims::of_papers();
        for (id, text) in FILES {
            let spec = spec(id, text).unwrap();
            assert!(simulator::generate::preset(&spec.preset).is_ok(), "{id}");
            assert!(spec.functions.is_sorted() && !spec.rules.is_empty(), "{id}");
            for evidence in &spec.evidence {
                assert!(claims.get(&evidence.claim).is_some(), "{}", evidence.claim);
            }
        }
        assert_eq!(all().len(), FILES.len() + 3);
    }

    #[test]
    fn an_experiment_is_repeatable_and_stops_on_request() {
        let run = || run("torpor-balance", 2, &mut |_| true).unwrap();
        let (one, other) = (run(), run());
        assert_eq!(one.evidence, other.evidence);
        assert_eq!(one.sections, other.sections);
        assert_eq!(one.evidence["T10"].run.by_seed.len(), 2);
        let stopped = super::run("torpor-balance", 10, &mut |progress| progress.done < 3).unwrap();
        assert!(stopped.stopped);
        assert_eq!(stopped.evidence["T10"].run.by_seed.len(), 1);
    }
}
