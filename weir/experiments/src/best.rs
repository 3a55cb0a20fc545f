//! Distance from the best possible: small cases, each also solved offline with all arrivals known.

use std::collections::BTreeMap;

use super::{ExperimentError, Findings, Progress};
use crate::optimum::{Distance, Loads, Settings, distance};
use simulator::report::{Cell, Column, Part, Section, Table};
use simulator::statistics::Unit;

pub(super) const ID: &str = "distance";
pub(super) const ABOUT: &str =
    "requests in time relative to the optimum with all arrivals known, on small cases of two GPUs";

/// Number of cases for each seed of the other experiments.
const CASES: u64 = 10;
/// Offered load, as a multiple of what two GPUs can execute with their models resident.
const LOADS: [f64; 4] = [0.6, 1.0, 1.5, 2.5];

pub(super) fn run(
    seeds: u32,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Findings, ExperimentError> {
    let cases = CASES * u64::from(seeds.max(1));
    let kinds = [
        (
            Loads::FromHost,
            "loads from the host alone: the optimum is exact",
        ),
        (
            Loads::FastestPath,
            "the real node; the optimum is one for an easier node, so these are lower bounds",
        ),
    ];
    let mut progress = Progress {
        done: 0,
        of: 8,
        events: 0,
    };
    let mut tables = Vec::new();
    let mut stopped = false;
    'all: for (loads, title) in kinds {
        let mut rows = Vec::new();
        for load in LOADS {
            let settings = Settings {
                loads,
                ..Settings::torpor(load)
            };
            let found = distance(&settings, 0..cases).map_err(|error| ExperimentError::File {
                id: ID.to_owned(),
                why: error.to_string(),
            })?;
            rows.push(row(load, &found));
            progress.done += 1;
            if !watch(progress) {
                stopped = progress.done < progress.of;
                tables.push(table(title, rows));
                break 'all;
            }
        }
        tables.push(table(title, rows));
    }
    let section = Section {
        title: ID.to_owned(),
        text: format!(
            "{ABOUT}. {cases} cases for each load; online over optimum, means with 95 % intervals."
        ),
        parts: tables.into_iter().map(Part::Table).collect(),
    };
    Ok(Findings {
        rows: Vec::new(),
        sections: vec![section],
        evidence: BTreeMap::new(),
        stopped,
    })
}

fn row(load: f64, found: &Distance) -> Vec<Cell> {
    let mut cells = vec![
        Cell::Number(load, Unit::Ratio),
        Cell::Number(found.hit_rate(found.requests.found), Unit::Share),
    ];
    for own in &found.policies {
        cells.push(Cell::Interval(own.requests.ratio, Unit::Share));
    }
    cells
}

fn table(title: &str, rows: Vec<Vec<Cell>>) -> Table {
    let names = crate::optimum::Online::ALL.map(crate::optimum::Online::name);
    let columns = ["load", "optimum in time"].into_iter().chain(names);
    Table {
        title: title.to_owned(),
        columns: columns.map(Column::number).collect(),
        rows,
    }
}
