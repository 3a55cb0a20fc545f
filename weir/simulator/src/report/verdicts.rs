//! Claims beside what came out: a bar for ours, a whisker for its interval, a line for the paper's value.

use super::axis::{Axis, Scale};
use super::markup::{Markup, px};
use super::plot::{label, rect};
use crate::claims::{Headline, Judged, Relation, Row, Rule, Verdict};

const WIDE: f64 = 300.0;
const HIGH: f64 = 34.0;
/// The paper's value is in the middle.
const MOST: f64 = 2.0;

impl Judged {
    pub(super) fn draw(&self, page: &mut Markup) {
        let headline = self.headline();
        page.open("div", &[("class", "claims")]);
        headline.draw(page);
        let structural = |row: &&Row| row.rule == Rule::Structural;
        self.list(page, self.rows.iter().filter(|row| !structural(row)));
        if self.rows.iter().any(|row| structural(&row)) {
            page.element("h3", &[], "Structural claims");
            page.element(
                "p",
                &[("class", "how")],
                "Memory and geometry: no time passes in them, so they must be exact, and they do not count above.",
            );
            self.list(page, self.rows.iter().filter(structural));
        }
        if !self.not_run.is_empty() {
            let text = format!("Not run: {}.", self.not_run.join(", "));
            page.element("p", &[("class", "how")], &text);
        }
        page.close();
    }

    fn list<'a>(&self, page: &mut Markup, rows: impl Iterator<Item = &'a Row>) {
        page.open("ol", &[("class", "verdicts")]);
        for row in rows {
            row.draw(page);
        }
        page.close();
    }
}

impl Headline {
    /// How many of how many, as numbers and as one bar.
    fn draw(&self, page: &mut Markup) {
        let parts = [
            (self.reproduced, Verdict::Reproduced),
            (self.explained, Verdict::Explained),
            (self.missed, Verdict::Missed),
        ];
        page.element("p", &[("class", "headline")], &self.claims());
        page.element("p", &[("class", "how")], &self.structural());
        page.open(
            "svg",
            &[
                ("class", "share"),
                ("viewBox", "0 0 960 14"),
                ("preserveAspectRatio", "none"),
                ("aria-hidden", "true"),
            ],
        );
        let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let all = count(self.reproduced + self.explained + self.missed).max(1.0);
        let mut x = 0.0;
        for (number, verdict) in parts {
            let wide = 960.0 * count(number) / all;
            if number > 0 {
                rect(page, class(verdict), (x, 0.0), (wide - 2.0, 14.0));
            }
            x += wide;
        }
        page.close();
        page.element(
            "p",
            &[("class", "how")],
            "Bars show ours over the paper's value, which is the upright line; the whisker is the 95 % interval over seeds. Shaded is where the interval, or its worse end, has to be. Squares are seeds: filled where the order holds.",
        );
    }
}

const fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "good",
        Verdict::Explained => "fair",
        Verdict::Missed | Verdict::StructuralWrong => "poor",
        Verdict::StructuralOk => "plain",
    }
}

/// A verdict is never told by colour alone.
const fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced | Verdict::StructuralOk => "✓",
        Verdict::Explained => "≈",
        Verdict::Missed | Verdict::StructuralWrong => "✗",
    }
}

impl Row {
    fn draw(&self, page: &mut Markup) {
        page.open("li", &[]);
        page.open("div", &[("class", "claim")]);
        page.open("p", &[]);
        page.element("strong", &[], &self.id);
        page.text(" ");
        page.text(&self.metric);
        page.close();
        let place = format!(
            "{} {}; rule {}",
            self.paper.name(),
            self.place,
            self.rule.name()
        );
        page.element("p", &[("class", "how")], &place);
        page.close();
        page.open("div", &[("class", "sizes")]);
        self.bar(page);
        page.open("p", &[]);
        page.element("strong", &[], &self.unit.write(self.ours));
        if let (Some(interval), false) = (self.interval(), self.low == self.high) {
            page.text(" ");
            page.element("span", &[("class", "range")], &interval);
        }
        page.element(
            "span",
            &[("class", "said")],
            &format!("paper: {}", self.said()),
        );
        page.close();
        page.close();
        let class = format!("verdict {}", class(self.verdict));
        page.open("div", &[("class", "outcome")]);
        let verdict = format!("{} {}", mark(self.verdict), self.verdict.name());
        page.element("p", &[("class", &class)], &verdict);
        page.element("p", &[("class", "how")], &self.why);
        page.close();
        page.close();
    }

    fn bar(&self, page: &mut Markup) {
        let view = format!("0 0 {} {}", px(WIDE), px(HIGH));
        // The numbers stand beside it as text.
        page.open(
            "svg",
            &[
                ("class", "bar"),
                ("viewBox", &view),
                ("aria-hidden", "true"),
            ],
        );
        if self.rule == Rule::Order {
            self.seeds(page);
        } else {
            self.sizes(page);
        }
        page.close();
    }

    fn sizes(&self, page: &mut Markup) {
        let x = Axis::new(Scale::Linear, (0.0, MOST), (1.0, WIDE - 12.0));
        let over = |value: f64| value / self.value;
        let (from, to) = match (self.rule, self.relation) {
            (Rule::Value, _) => (0.9, 1.1),
            (Rule::Bound, Relation::AtLeast) => (1.0, MOST),
            (Rule::Structural, Relation::UpTo) | (Rule::Bound, _) => (0.0, 1.0),
            (Rule::Structural | Rule::Order, _) => (1.0, 1.0),
        };
        rect(
            page,
            "lane",
            (x.at(0.0), 4.0),
            (x.at(MOST) - x.at(0.0), 26.0),
        );
        rect(
            page,
            "allowed",
            (x.at(from), 4.0),
            (x.at(to) - x.at(from), 26.0),
        );
        let ours = over(self.ours);
        let colour = format!("bar {}", class(self.verdict));
        rect(
            page,
            &colour,
            (x.at(0.0), 11.0),
            (x.at(ours) - x.at(0.0), 12.0),
        );
        if let (Some(low), Some(high)) = (self.low, self.high) {
            let (low, high) = (x.at(over(low)), x.at(over(high)));
            let path = format!("M{0} 17H{1}M{0} 12V22M{1} 12V22", px(low), px(high));
            page.leaf("path", &[("class", "whisker"), ("d", &path)]);
        }
        let paper = px(x.at(1.0));
        page.leaf(
            "path",
            &[("class", "paper"), ("d", &format!("M{paper} 1V33"))],
        );
        if ours > MOST {
            label(page, "beyond", WIDE - 10.0, 21.5, "›");
        }
    }

    /// One square a seed.
    fn seeds(&self, page: &mut Markup) {
        let colour = format!("bar {}", class(self.verdict));
        let shown = self.held.of.min(20);
        let step = f64::min(
            22.0,
            (WIDE - 4.0) / f64::from(u32::try_from(shown.max(1)).unwrap_or(1)),
        );
        for seed in 0..shown {
            // Of more seeds than fit, the share.
            let held = seed * self.held.of < self.held.seeds * shown;
            let class = if held { colour.as_str() } else { "empty" };
            let x = 2.0 + step * f64::from(u32::try_from(seed).unwrap_or(0));
            rect(page, class, (x, 9.0), (step - 5.0, 16.0));
        }
    }
}
