//! Results as one HTML page which can be opened, kept and printed without other files.
//!
//! The page has no scripts and fetches nothing (its own policy forbids it); drawings are inline. Every drawing is
//! included twice, for wide and for narrow pages; the style shows one. All text is escaped, also in attributes. The same
//! [`Report`] gives the same bytes, including its date, which the caller provides.
//!
//! | part | content |
//! |---|---|
//! | [`Figure`] | a key figure with its unit |
//! | [`Table`] | rows of values with units |
//! | [`Latencies`] | the share of requests answered within a latency, against objectives |
//! | [`Attainment`] | a share over load, one line for each policy, with bands over seeds |
//! | [`Slots`] | occupancy of slots over time, with loads hatched |
//! | [`Busy`] | the busy share of each slot over a whole run |
//! | [`Course`] | values over the time of a run |
//! | [`Verdicts`] | claims beside our results |

mod attainment;
mod axis;
mod busy;
mod course;
mod latencies;
mod plot;
mod slots;
mod table;
mod verdicts;

use crate::statistics::Unit;
use markup::Markup;

pub use attainment::{Attainment, Line};
pub use busy::Busy;
pub use course::{Course, Series};
pub use latencies::{Curve, Latencies};
pub use slots::{Activity, Slots, Turn};
pub use table::{Cell, Column, Table};
pub use verdicts::{Comparison, Tone, VerdictRow, Verdicts};

/// Largest number of seeds that are listed one by one.
const SEEDS: usize = 12;

/// Content of a page; see the [module](self).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Title of the page.
    pub title: String,
    /// Answers shown first and prominently: a sentence, and an explanation which may be empty.
    pub answer: Vec<(String, String)>,
    /// Description of the scenario, in a sentence.
    pub scenario: String,
    /// Date as formatted by the caller; omitted if empty.
    pub date: String,
    /// Seeds of the runs.
    pub seeds: Vec<u64>,
    /// Parameters as pairs of name and text.
    pub parameters: Vec<(String, String)>,
    /// Sections with the results, in order.
    pub sections: Vec<Section>,
    /// Origin of the figures, shown in the footer; if empty, the footer explains virtual time.
    pub footer: String,
}

/// Part of the page under a heading of its own.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Section {
    /// Heading of the section.
    pub title: String,
    /// Introductory text; may be empty.
    pub text: String,
    /// Figures, tables and plots, in order.
    pub parts: Vec<Part>,
}

/// Element of a section; see the [module](self).
#[derive(Clone, PartialEq, Debug)]
pub enum Part {
    /// Key figures, side by side.
    Figures(Vec<Figure>),
    /// A table of values with units.
    Table(Table),
    /// A table which is collapsed behind a line of this text.
    Folded(String, Table),
    /// Distributions of latencies, as curves.
    Latencies(Latencies),
    /// Shares over load, one line for each policy.
    Attainment(Attainment),
    /// Occupancy of slots over time.
    Slots(Slots),
    /// Busy shares of slots.
    Busy(Busy),
    /// Values over the time of a run.
    Course(Course),
    /// Verdicts on claims.
    Verdicts(Verdicts),
}

/// A key figure with its name and unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Name of the figure.
    pub name: String,
    /// Value of the figure, in `unit`.
    pub value: f64,
    /// Unit of the value.
    pub unit: Unit,
    /// Remark shown beside the figure; may be empty.
    pub note: String,
}

impl Report {
    /// Returns the page as HTML.
    #[must_use]
    pub fn html(&self) -> String {
        let mut page = Markup::page();
        page.open("html", &[("lang", "en")]);
        self.head(&mut page);
        page.open("body", &[]);
        self.top(&mut page);
        page.open("main", &[]);
        for section in &self.sections {
            section.draw(&mut page);
        }
        page.close();
        page.open("footer", &[]);
        let simulated = "Virtual time: Weir's own decisions, driven by events. The same scenario and seeds give the same page on every machine, except for its date.";
        let text = if self.footer.is_empty() {
            simulated
        } else {
            &self.footer
        };
        page.element("p", &[], text);
        page.finish()
    }

    fn head(&self, page: &mut Markup) {
        page.open("head", &[]);
        page.leaf("meta", &[("charset", "utf-8")]);
        let view = [
            ("name", "viewport"),
            ("content", "width=device-width, initial-scale=1"),
        ];
        page.leaf("meta", &view);
        // Whatever text a name of the scenario contains, the page fetches and runs nothing.
        let policy = [
            ("http-equiv", "Content-Security-Policy"),
            ("content", "default-src 'none'; style-src 'unsafe-inline'"),
        ];
        page.leaf("meta", &policy);
        page.element("title", &[], &self.title);
        page.style(include_str!("report/style.css"));
        page.close();
    }

    fn top(&self, page: &mut Markup) {
        page.open("header", &[("class", "top")]);
        page.element("h1", &[], &self.title);
        for (sentence, more) in &self.answer {
            page.open("div", &[("class", "answer")]);
            page.element("p", &[("class", "sentence")], sentence);
            if !more.is_empty() {
                page.element("p", &[], more);
            }
            page.close();
        }
        page.element("p", &[("class", "scenario")], &self.scenario);
        page.open("dl", &[("class", "facts")]);
        if !self.date.is_empty() {
            fact(page, "date", &self.date);
        }
        if !self.seeds.is_empty() {
            fact(page, "seeds", &self.seeds());
        }
        for (name, value) in &self.parameters {
            fact(page, name, value);
        }
        page.close();
        page.close();
    }

    /// Formats the seeds: "7", "20250707 to 20250716 (10)", or a list.
    fn seeds(&self) -> String {
        let neighbours = self
            .seeds
            .windows(2)
            .all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        match self.seeds.as_slice() {
            [] => String::new(),
            [one] => one.to_string(),
            [first, .., last] if neighbours => {
                format!("{first} to {last} ({})", self.seeds.len())
            }
            seeds => {
                let shown: Vec<_> = seeds.iter().take(SEEDS).map(u64::to_string).collect();
                let more = seeds.len() - shown.len();
                let shown = shown.join(", ");
                if more > 0 {
                    format!("{shown} and {more} more")
                } else {
                    shown
                }
            }
        }
    }
}

fn fact(page: &mut Markup, name: &str, value: &str) {
    // Long values get a row of their own.
    let long = value.chars().count() > 40;
    page.open("div", if long { &[("class", "wide-fact")] } else { &[] });
    page.element("dt", &[], name);
    page.element("dd", &[], value);
    page.close();
}

impl Section {
    fn draw(&self, page: &mut Markup) {
        page.open("section", &[]);
        page.element("h2", &[], &self.title);
        if !self.text.is_empty() {
            page.element("p", &[], &self.text);
        }
        for part in &self.parts {
            match part {
                Part::Figures(figures) => draw_figures(page, figures),
                Part::Table(table) => table.draw(page),
                Part::Folded(summary, table) => {
                    page.open("details", &[]);
                    page.element("summary", &[], summary);
                    table.draw(page);
                    page.close();
                }
                Part::Latencies(latencies) => latencies.draw(page),
                Part::Attainment(attainment) => attainment.draw(page),
                Part::Slots(slots) => slots.draw(page),
                Part::Busy(busy) => busy.draw(page),
                Part::Course(course) => course.draw(page),
                Part::Verdicts(verdicts) => verdicts.draw(page),
            }
        }
        page.close();
    }
}

fn draw_figures(page: &mut Markup, figures: &[Figure]) {
    page.open("ul", &[("class", "figures")]);
    for figure in figures {
        page.open("li", &[]);
        page.element("span", &[("class", "how")], &figure.name);
        page.element("strong", &[], &figure.unit.write(figure.value));
        if !figure.note.is_empty() {
            page.element("span", &[("class", "how")], &figure.note);
        }
        page.close();
    }
    page.close();
}
