//! Verdicts as a part of the page.

use simulator::report::{Comparison, Tone, VerdictRow, Verdicts};

use super::{Judged, Relation, Row, Rule, Verdict};

impl Judged {
    /// Returns the verdicts as a part of a page: structural claims apart.
    #[must_use]
    pub fn verdicts(&self) -> Verdicts {
        let headline = self.headline();
        let (structural, counted): (Vec<&Row>, Vec<&Row>) = self
            .rows
            .iter()
            .partition(|row| row.rule == Rule::Structural);
        Verdicts {
            headline: [headline.claims(), headline.structural()],
            counts: vec![
                (headline.reproduced, Tone::Good),
                (headline.explained, Tone::Fair),
                (headline.missed, Tone::Poor),
            ],
            counted: counted.into_iter().map(Row::worded).collect(),
            structural: structural.into_iter().map(Row::worded).collect(),
            not_run: self.not_run.clone(),
        }
    }
}

impl Row {
    fn worded(&self) -> VerdictRow {
        VerdictRow {
            id: self.id.clone(),
            metric: self.metric.clone(),
            source: format!(
                "{} {}; rule {}",
                self.paper.name(),
                self.place,
                self.rule.name()
            ),
            ours: self.unit.write(self.ours),
            interval: self.interval().filter(|_| self.low != self.high),
            claimed: self.paper_value(),
            comparison: self.comparison(),
            tone: match self.verdict {
                Verdict::Reproduced => Tone::Good,
                Verdict::Explained => Tone::Fair,
                Verdict::Missed | Verdict::StructuralWrong => Tone::Poor,
                Verdict::StructuralOk => Tone::Plain,
            },
            verdict: self.verdict.name().to_owned(),
            why: self.why.clone(),
        }
    }

    fn comparison(&self) -> Comparison {
        let allowed = match (self.rule, self.relation) {
            (Rule::Order, _) => {
                return Comparison::Seeds {
                    held: self.held.seeds,
                    of: self.held.of,
                };
            }
            (Rule::Value, _) => (0.9, 1.1),
            (Rule::Bound, Relation::AtLeast) => (1.0, f64::INFINITY),
            (Rule::Structural, Relation::UpTo) | (Rule::Bound, _) => (0.0, 1.0),
            (Rule::Structural, _) => (1.0, 1.0),
        };
        let over = |value: f64| value / self.value;
        Comparison::Value {
            ours: over(self.ours),
            interval: self.low.map(over).zip(self.high.map(over)),
            allowed,
        }
    }
}
