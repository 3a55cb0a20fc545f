//! Result of the validation as a table and as JSON.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use super::super::shares::new_table;
use super::compare::{Compared, Ranking};

/// One compared figure, or one order of two cases.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    case: String,
    what: &'static str,
    #[serde(flatten)]
    compared: Option<Compared>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranking: Option<Ranking>,
}

impl Row {
    pub(super) fn figure(case: &str, what: &'static str, compared: Option<Compared>) -> Self {
        Self {
            case: case.to_owned(),
            what,
            compared,
            ranking: None,
        }
    }

    pub(super) fn ranking(case: &str, what: &'static str, ranking: Option<Ranking>) -> Self {
        Self {
            case: case.to_owned(),
            what,
            compared: None,
            ranking,
        }
    }

    /// Returns whether the row is within bounds; false if it could not be compared.
    pub(super) fn holds(&self) -> bool {
        match (self.compared, self.ranking) {
            (Some(compared), _) => compared.holds,
            (None, Some(ranking)) => ranking != Ranking::Other,
            (None, None) => false,
        }
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.case.clone(), self.what.to_owned()];
        let verdict = if self.holds() { "holds" } else { "no" };
        match (self.compared, self.ranking) {
            (Some(own), _) => {
                let two = |value: f64| format!("{value:.2}");
                cells.extend([two(own.live), two(own.spread), two(own.simulated)]);
                cells.extend([format!("{:+.2}", own.difference)]);
                cells.extend([format!("± {:.2}", own.allowed), verdict.to_owned()]);
            }
            (None, Some(ranking)) => {
                let order = match ranking {
                    Ranking::Same => "same order",
                    Ranking::Other => "other order",
                    Ranking::Open => "live no order",
                };
                cells.extend(std::iter::repeat_n(String::new(), 4));
                cells.extend([order.to_owned(), verdict.to_owned()]);
            }
            (None, None) => {
                cells.extend(std::iter::repeat_n("–".to_owned(), 5));
                cells.push(verdict.to_owned());
            }
        }
        cells
    }
}

/// A disturbed live run, with the reason.
#[derive(Debug, Serialize)]
pub(super) struct Disturbed {
    case: String,
    round: u32,
    why: String,
}

impl Disturbed {
    pub(super) fn new(case: &str, round: u32, why: String) -> Self {
        Self {
            case: case.to_owned(),
            round,
            why,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) scenario: &'static str,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
    pub(super) holds: bool,
    /// The simulation's measured inputs, as text.
    pub(super) measured: String,
    pub(super) rows: Vec<Row>,
    pub(super) disturbed: Vec<Disturbed>,
}

impl Report {
    pub(super) fn text(&self, is_json: bool) -> anyhow::Result<String> {
        if is_json {
            return Ok(serde_json::to_string(self)?);
        }
        let columns = [
            "case",
            "what",
            "live, mean",
            "spread",
            "simulated",
            "difference",
            "allowed",
            "",
        ];
        let rows = self.rows.iter().map(Row::cells).collect();
        let mut text = format!(
            "Scenario {}, {} rounds of {} s, live against simulated.\n{}\n{}\n",
            self.scenario,
            self.rounds,
            self.seconds,
            new_table(&columns, rows, 2),
            self.measured,
        );
        for own in &self.disturbed {
            // Writing to a string cannot fail.
            let _written = writeln!(
                text,
                "Disturbed: {}, round {}: {}.",
                own.case, own.round, own.why
            );
        }
        let missed = self.rows.iter().filter(|row| !row.holds()).count();
        let verdict = match (self.holds, missed) {
            (true, _) => "All hold.".to_owned(),
            (false, 0) => "A live run was incomplete.".to_owned(),
            (false, missed) => format!("{missed} of {} do not hold.", self.rows.len()),
        };
        text.push_str(&verdict);
        Ok(text)
    }

    pub(super) fn code(&self) -> ExitCode {
        if self.holds {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Serialize)]
struct Simulated<'a> {
    case: &'a str,
    what: &'a str,
    simulated: Option<f64>,
}

/// Returns simulated figures alone: case, figure, value.
pub(super) fn simulated(
    rows: &[(String, &'static str, Option<f64>)],
    is_json: bool,
) -> anyhow::Result<String> {
    if is_json {
        let each: Vec<_> = rows
            .iter()
            .map(|(case, what, simulated)| Simulated {
                case,
                what,
                simulated: *simulated,
            })
            .collect();
        return Ok(serde_json::to_string(&each)?);
    }
    let cells = rows.iter().map(|(case, what, value)| {
        let value = value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
        vec![case.clone(), (*what).to_owned(), value]
    });
    let table = new_table(&["case", "what", "simulated"], cells.collect(), 2);
    Ok(table.to_string())
}
