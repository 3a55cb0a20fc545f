//! The whole result as one page that anybody can open, keep and print.
//!
//! One HTML file: no script, nothing fetched (its own policy forbids it), drawings in the page itself. Every drawing is
//! there twice, for wide and for narrow pages; the style shows one. All text is escaped, also in attributes. The same
//! [`Report`] gives the same bytes, its date among them, which is the caller's.
//!
//! | part | what |
//! |---|---|
//! | [`Figure`] | a number that matters, with its unit |
//! | [`Table`] | rows, by unit |
//! | [`Latencies`] | the share of requests answered within a latency, against objectives |
//! | [`Attainment`] | a share over load, one line a policy, with bands over seeds |
//! | [`Slots`] | who held which slot when, loads hatched |
//! | [`Busy`] | the busy share of each slot over a whole run |
//! | [`Course`] | values over the time of a run |
//! | [`Judged`] | the papers' claims beside ours |

mod attainment;
mod axis;
mod busy;
mod course;
mod latencies;
mod markup;
mod plot;
mod slots;
mod table;
mod verdicts;

use crate::claims::Judged;
use crate::statistics::Unit;
use markup::Markup;

pub use attainment::{Attainment, Line};
pub use busy::Busy;
pub use course::{Course, Series};
pub use latencies::{Curve, Latencies};
pub use slots::{Doing, Slots, Turn};
pub use table::{Cell, Column, Table};

/// Seeds are told one by one up to so many.
const SEEDS: usize = 12;

/// See the [module](self).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// The page's name.
    pub title: String,
    /// What came of it, before everything else: sentences that stand out, each with what there is to add.
    pub answer: Vec<(String, String)>,
    /// What was run, in a sentence.
    pub scenario: String,
    /// When, as the caller writes it.
    pub date: String,
    /// Under which seeds.
    pub seeds: Vec<u64>,
    /// With which parameters, by name, as they are written.
    pub parameters: Vec<(String, String)>,
    /// What came of it.
    pub sections: Vec<Section>,
    /// Where the figures are from; empty: virtual time.
    pub footer: String,
}

/// A part of the page under a title of its own.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Section {
    /// Its title.
    pub title: String,
    /// What to know before; may be empty.
    pub text: String,
    /// What it shows, in order.
    pub parts: Vec<Part>,
}

/// Something to show; see the [module](self).
#[derive(Clone, PartialEq, Debug)]
pub enum Part {
    /// Numbers that matter, side by side.
    Figures(Vec<Figure>),
    /// Rows.
    Table(Table),
    /// Rows that are folded away behind a line of this text, until they are asked for.
    Folded(String, Table),
    /// Latencies.
    Latencies(Latencies),
    /// A share over load.
    Attainment(Attainment),
    /// Who held which slot.
    Slots(Slots),
    /// How busy slots were.
    Busy(Busy),
    /// Values over time.
    Course(Course),
    /// Claims.
    Claims(Judged),
}

/// A number that matters.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: Unit,
    /// What to know beside it; may be empty.
    pub note: String,
}

impl Report {
    /// The page.
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
        let simulated = "Virtual time: Weir's own decisions, driven by events. The same scenario and seeds give the same page on every machine, but for its date.";
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
        // Whatever a name of the scenario holds, the page fetches and runs nothing.
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

    /// "7", "20250707 to 20250716 (10)", or all of them.
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
    // What is long has a row of its own.
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
                Part::Claims(judged) => judged.draw(page),
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
