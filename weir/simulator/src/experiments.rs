//! The papers' experiments: which runs they are made of, and what comes of them.
//!
//! An experiment is a file of `weir/simulator/experiments`: what is run, at which loads, under which rules. Each runs over
//! seeds with the same arrivals for all rules, and gives tables and figures for people, and evidence for
//! [claims](crate::claims), whose rules were settled beforehand.

mod best;
mod evidence;
mod fast;
mod matrix;
mod page;
mod rows;
mod spec;

use std::collections::BTreeMap;

use thiserror::Error;

pub(crate) use rows::Case;
pub use rows::Row;

use self::matrix::Matrix;
use self::spec::Spec;

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
    /// One figure each; none of those that have claims alone.
    pub rows: Vec<Row>,
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
    /// A run of GPUs whose SMs are shared came to nothing.
    #[error(transparent)]
    Shared(#[from] crate::shared::run::RunError),
}

/// An experiment that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// How it is asked for.
    pub id: &'static str,
    /// What it is, in a line.
    pub about: String,
}

/// Name and file of each, in the order in which they are run.
const FILES: [(&str, &str); 6] = [
    (
        "torpor-node",
        include_str!("../experiments/torpor-node.toml"),
    ),
    (
        "torpor-low-rates",
        include_str!("../experiments/torpor-low-rates.toml"),
    ),
    (
        "torpor-balance",
        include_str!("../experiments/torpor-balance.toml"),
    ),
    (
        "torpor-heavy-light",
        include_str!("../experiments/torpor-heavy-light.toml"),
    ),
    (
        "torpor-cluster",
        include_str!("../experiments/torpor-cluster.toml"),
    ),
    (
        "torpor-memory",
        include_str!("../experiments/torpor-memory.toml"),
    ),
];

/// All experiments, in the order in which they are run.
///
/// # Panics
/// Never: a test reads the files.
#[must_use]
pub fn all() -> Vec<Listed> {
    let each = FILES.iter().map(|(id, text)| Listed {
        id,
        about: spec(id, text)
            .expect("the files of the crate are right")
            .about,
    });
    let others = [(fast::ID, fast::ABOUT), (best::ID, best::ABOUT)];
    let others = others.map(|(id, about)| Listed {
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

/// Runs an experiment over so many seeds. `watch` is told how far it is, and stops it by false.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(
    id: &str,
    seeds: u32,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Findings, ExperimentError> {
    match id {
        fast::ID => return fast::run(seeds, watch),
        best::ID => return best::run(seeds, watch),
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
    fn every_file_is_right_and_its_evidence_is_of_claims_that_there_are() {
        let claims = Claims::of_papers();
        for (id, text) in FILES {
            let spec = spec(id, text).unwrap();
            assert!(crate::generate::preset(&spec.preset).is_ok(), "{id}");
            assert!(spec.functions.is_sorted() && !spec.rules.is_empty(), "{id}");
            for evidence in &spec.evidence {
                assert!(claims.get(&evidence.claim).is_some(), "{}", evidence.claim);
            }
        }
        assert_eq!(all().len(), FILES.len() + 2);
    }

    #[test]
    fn an_experiment_is_the_same_each_time_and_stops_when_told() {
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
