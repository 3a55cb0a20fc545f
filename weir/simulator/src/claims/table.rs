//! All verdicts together: a table for people, rows of JSON for programs.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::{Claims, Evidence, JudgeError, Row, Verdict};

/// How many claims came out how. The headline is the first three; structural claims would hold of any program that
/// adds correctly, so they stand apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Headline {
    /// Their rule holds.
    pub reproduced: usize,
    /// It holds after one named parameter was changed.
    pub explained: usize,
    /// It does not hold.
    pub missed: usize,
    /// Arithmetic that is right.
    pub structural_ok: usize,
    /// Arithmetic that is wrong.
    pub structural_wrong: usize,
    /// Claims that nothing was run for.
    pub not_run: usize,
}

/// The verdicts of a run of the claims.
#[derive(Clone, PartialEq, Debug)]
pub struct Judged {
    /// In the order of the claims.
    pub rows: Vec<Row>,
    /// Claims that nothing was run for, in their order.
    pub not_run: Vec<String>,
}

impl Claims {
    /// Judges every claim that there is evidence for, by id.
    ///
    /// # Errors
    ///
    /// Evidence for a claim that is not there, and what [`Claim::judge`](super::Claim::judge) refuses.
    pub fn judge(&self, evidence: &BTreeMap<String, Evidence>) -> Result<Judged, JudgeError> {
        if let Some(id) = evidence.keys().find(|id| self.get(id).is_none()) {
            return Err(JudgeError::Unknown(id.clone()));
        }
        let mut judged = Judged {
            rows: Vec::with_capacity(evidence.len()),
            not_run: Vec::new(),
        };
        for claim in self.iter() {
            match evidence.get(&claim.id) {
                Some(evidence) => judged.rows.push(claim.judge(evidence)?),
                None => judged.not_run.push(claim.id.clone()),
            }
        }
        Ok(judged)
    }
}

impl Judged {
    /// How many came out how.
    #[must_use]
    pub fn headline(&self) -> Headline {
        let count = |verdict| self.rows.iter().filter(|r| r.verdict == verdict).count();
        Headline {
            reproduced: count(Verdict::Reproduced),
            explained: count(Verdict::Explained),
            missed: count(Verdict::Missed),
            structural_ok: count(Verdict::StructuralOk),
            structural_wrong: count(Verdict::StructuralWrong),
            not_run: self.not_run.len(),
        }
    }

    /// A table, the reasons below it, and the headline.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header([
            "claim", "paper", "where", "rule", "said", "ours", "95 %", "verdict",
        ]);
        for row in &self.rows {
            table.add_row([
                row.id.clone(),
                row.paper.name().to_owned(),
                row.place.clone(),
                row.rule.name().to_owned(),
                row.said(),
                row.unit.write(row.ours),
                row.interval().unwrap_or_else(|| "–".to_owned()),
                row.verdict.name().to_owned(),
            ]);
        }
        for column in table.column_iter_mut().skip(4).take(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{table}\n");
        for row in &self.rows {
            text.push_str(&format!("{}  {}: {}\n", row.id, row.metric, row.why));
        }
        text.push_str(&self.headline().sentence());
        text.push('\n');
        if !self.not_run.is_empty() {
            text.push_str(&format!("Not run: {}.\n", self.not_run.join(", ")));
        }
        text
    }

    /// One JSON object on a line for each row.
    ///
    /// # Errors
    ///
    /// Never for rows that [`Claims::judge`] made.
    pub fn json_rows(&self) -> Result<String, serde_json::Error> {
        let mut text = String::new();
        for row in &self.rows {
            text.push_str(&serde_json::to_string(row)?);
            text.push('\n');
        }
        Ok(text)
    }
}

impl Headline {
    /// "12 of 18 claims reproduced, 3 explained, 3 missed. Structural, counted apart: 5 of 5 as they must be."
    #[must_use]
    pub fn sentence(&self) -> String {
        format!("{} {}", self.claims(), self.structural())
    }

    /// The headline.
    pub(crate) fn claims(&self) -> String {
        let claims = self.reproduced + self.explained + self.missed;
        format!(
            "{} of {claims} claims reproduced, {} explained, {} missed.",
            self.reproduced, self.explained, self.missed
        )
    }

    /// What is not in it.
    pub(crate) fn structural(&self) -> String {
        let structural = self.structural_ok + self.structural_wrong;
        format!(
            "Structural, counted apart: {} of {structural} as they must be.",
            self.structural_ok
        )
    }
}

impl Row {
    /// The paper's value with its relation and unit.
    #[must_use]
    pub fn said(&self) -> String {
        format!("{}{}", self.relation.sign(), self.unit.write(self.value))
    }

    /// The interval in the unit; `None` with one seed.
    #[must_use]
    pub fn interval(&self) -> Option<String> {
        Some(self.unit.write_range(self.low?, self.high?))
    }
}
