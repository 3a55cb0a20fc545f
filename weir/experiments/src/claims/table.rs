//! All verdicts together: a table for people, rows of JSON for programs.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::{Claims, Evidence, JudgeError, Row, Verdict};

/// Number of claims by verdict. The headline is made of the first three; structural claims would hold of any program which
/// adds correctly, so they are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Headline {
    /// Claims with a rule that holds.
    pub reproduced: usize,
    /// Claims with a rule that holds after one named parameter was changed.
    pub explained: usize,
    /// Claims with a rule that does not hold.
    pub missed: usize,
    /// Structural claims that hold.
    pub structural_ok: usize,
    /// Structural claims that do not hold.
    pub structural_wrong: usize,
    /// Claims without a run.
    pub not_run: usize,
}

/// Verdicts on the claims of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Judged {
    /// One row for each judged claim, in the order of the claims.
    pub rows: Vec<Row>,
    /// Ids of the claims without a run, in their order.
    pub not_run: Vec<String>,
}

impl Claims {
    /// Judges every claim with evidence; `evidence` is keyed by claim id.
    ///
    /// # Errors
    ///
    /// Returns an error for evidence under an unknown id, and the errors of [`Claim::judge`](super::Claim::judge).
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
    /// Counts the claims by verdict.
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

    /// Returns a table, the reasons below it, and the headline.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header([
            "claim", "paper", "where", "rule", "claimed", "ours", "95 %", "verdict",
        ]);
        for row in &self.rows {
            table.add_row([
                row.id.clone(),
                row.paper.name().to_owned(),
                row.place.clone(),
                row.rule.name().to_owned(),
                row.paper_value(),
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

    /// Returns one line for each row, a JSON object each.
    ///
    /// # Errors
    ///
    /// Never for rows made by [`Claims::judge`].
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
    /// Returns the headline as text, such as "12 of 18 claims reproduced, 3 explained, 3 missed. Structural, counted apart: 5
    /// of 5 as they must be."
    #[must_use]
    pub fn sentence(&self) -> String {
        format!("{} {}", self.claims(), self.structural())
    }

    /// Returns the part of the sentence about claims which are not structural.
    pub(crate) fn claims(&self) -> String {
        let claims = self.reproduced + self.explained + self.missed;
        format!(
            "{} of {claims} claims reproduced, {} explained, {} missed.",
            self.reproduced, self.explained, self.missed
        )
    }

    /// Returns the part of the sentence about structural claims.
    pub(crate) fn structural(&self) -> String {
        let structural = self.structural_ok + self.structural_wrong;
        format!(
            "Structural, counted apart: {} of {structural} as they must be.",
            self.structural_ok
        )
    }
}

impl Row {
    /// Returns the paper's value with its relation and unit.
    #[must_use]
    pub fn paper_value(&self) -> String {
        format!("{}{}", self.relation.sign(), self.unit.write(self.value))
    }

    /// Returns the 95 % interval in the unit; `None` with one seed.
    #[must_use]
    pub fn interval(&self) -> Option<String> {
        Some(self.unit.write_range(self.low?, self.high?))
    }
}
