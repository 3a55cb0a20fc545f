//! Claims beside our results: a bar for our value, a whisker for its interval, a line for the claimed value.

use super::axis::{Axis, Scale};
use super::plot::{label, rect};
use markup::{Markup, px};

const WIDE: f64 = 300.0;
const HIGH: f64 = 34.0;
/// Right end of a bar's scale, as a multiple of the claimed value.
const MOST: f64 = 2.0;
/// Width of the bar of counts, in pixels.
const COUNTS_WIDE: f64 = 960.0;

/// Colour and symbol of a verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// The claim holds.
    Good,
    /// The claim holds under a named condition.
    Fair,
    /// The claim does not hold.
    Poor,
    /// The claim holds and is not counted.
    Plain,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Poor => "poor",
            Self::Plain => "plain",
        }
    }

    /// Returns the symbol, so that a verdict is not shown by colour alone.
    const fn mark(self) -> &'static str {
        match self {
            Self::Good | Self::Plain => "✓",
            Self::Fair => "≈",
            Self::Poor => "✗",
        }
    }
}

/// Drawing of our number beside the claimed one.
#[derive(Clone, PartialEq, Debug)]
pub enum Comparison {
    /// Our value, in multiples of the claimed one.
    Value {
        /// Mean over seeds.
        ours: f64,
        /// Ends of the 95 % interval; `None` with one seed.
        interval: Option<(f64, f64)>,
        /// Range in which the interval, or its worse end, has to be.
        allowed: (f64, f64),
    },
    /// Seeds in which an order held, and number of all seeds.
    Seeds {
        /// Number of seeds in which it held.
        held: usize,
        /// Number of seeds.
        of: usize,
    },
}

/// A claim with its verdict, worded.
#[derive(Clone, PartialEq, Debug)]
pub struct VerdictRow {
    /// Identifier of the claim.
    pub id: String,
    /// Description of the number.
    pub metric: String,
    /// Source of the claim and the rule of judgement.
    pub source: String,
    /// Our value with its unit.
    pub ours: String,
    /// The 95 % interval with its unit, where it differs from the value.
    pub interval: Option<String>,
    /// The claimed value with its relation and unit.
    pub claimed: String,
    /// Drawing of the numbers.
    pub comparison: Comparison,
    /// Colour and symbol of the verdict.
    pub tone: Tone,
    /// Name of the verdict.
    pub verdict: String,
    /// Reason for the verdict, in one sentence.
    pub why: String,
}

/// Verdicts on claims: those which count, then structural ones, which are exact.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdicts {
    /// Numbers of verdicts as text, for claims which count and for structural ones.
    pub headline: [String; 2],
    /// Numbers of verdicts which are drawn as one bar, in order.
    pub counts: Vec<(usize, Tone)>,
    /// Claims which count in the headline.
    pub counted: Vec<VerdictRow>,
    /// Claims about memory and geometry.
    pub structural: Vec<VerdictRow>,
    /// Claims which were not run.
    pub not_run: Vec<String>,
}

impl Verdicts {
    pub(super) fn draw(&self, page: &mut Markup) {
        page.open("div", &[("class", "claims")]);
        self.draw_headline(page);
        list(page, &self.counted);
        if !self.structural.is_empty() {
            page.element("h3", &[], "Structural claims");
            page.element(
                "p",
                &[("class", "how")],
                "Memory and geometry: no time passes in them, so they must be exact, and they are not counted above.",
            );
            list(page, &self.structural);
        }
        if !self.not_run.is_empty() {
            let text = format!("Not run: {}.", self.not_run.join(", "));
            page.element("p", &[("class", "how")], &text);
        }
        page.close();
    }

    /// Draws the numbers of verdicts, as text and as one bar.
    fn draw_headline(&self, page: &mut Markup) {
        let [counted, structural] = &self.headline;
        page.element("p", &[("class", "headline")], counted);
        page.element("p", &[("class", "how")], structural);
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
        let all: usize = self.counts.iter().map(|(number, _)| number).sum();
        let all = count(all).max(1.0);
        let mut x = 0.0;
        for &(number, tone) in &self.counts {
            let wide = COUNTS_WIDE * count(number) / all;
            if number > 0 {
                rect(page, tone.class(), (x, 0.0), (wide - 2.0, 14.0));
            }
            x += wide;
        }
        page.close();
        page.element(
            "p",
            &[("class", "how")],
            "Bars show our value divided by the paper's, which is the upright line; the whisker is the 95 % interval over seeds. The shaded range is where the interval, or its worse end, has to be. Squares are seeds: filled where the order holds.",
        );
    }
}

fn list(page: &mut Markup, rows: &[VerdictRow]) {
    page.open("ol", &[("class", "verdicts")]);
    for row in rows {
        row.draw(page);
    }
    page.close();
}

impl VerdictRow {
    fn draw(&self, page: &mut Markup) {
        page.open("li", &[]);
        page.open("div", &[("class", "claim")]);
        page.open("p", &[]);
        page.element("strong", &[], &self.id);
        page.text(" ");
        page.text(&self.metric);
        page.close();
        page.element("p", &[("class", "how")], &self.source);
        page.close();
        page.open("div", &[("class", "sizes")]);
        self.bar(page);
        page.open("p", &[]);
        page.element("strong", &[], &self.ours);
        if let Some(interval) = &self.interval {
            page.text(" ");
            page.element("span", &[("class", "range")], interval);
        }
        page.element(
            "span",
            &[("class", "stated")],
            &format!("paper: {}", self.claimed),
        );
        page.close();
        page.close();
        let class = format!("verdict {}", self.tone.class());
        page.open("div", &[("class", "outcome")]);
        let verdict = format!("{} {}", self.tone.mark(), self.verdict);
        page.element("p", &[("class", &class)], &verdict);
        page.element("p", &[("class", "how")], &self.why);
        page.close();
        page.close();
    }

    fn bar(&self, page: &mut Markup) {
        let view = format!("0 0 {} {}", px(WIDE), px(HIGH));
        // Hidden from screen readers: the numbers are also given as text.
        page.open(
            "svg",
            &[
                ("class", "bar"),
                ("viewBox", &view),
                ("aria-hidden", "true"),
            ],
        );
        let colour = format!("bar {}", self.tone.class());
        match self.comparison {
            Comparison::Seeds { held, of } => draw_seeds(page, &colour, held, of),
            Comparison::Value {
                ours,
                interval,
                allowed,
            } => draw_value(page, &colour, ours, interval, allowed),
        }
        page.close();
    }
}

fn draw_value(
    page: &mut Markup,
    colour: &str,
    ours: f64,
    interval: Option<(f64, f64)>,
    (from, to): (f64, f64),
) {
    let x = Axis::new(Scale::Linear, (0.0, MOST), (1.0, WIDE - 12.0));
    rect(
        page,
        "lane",
        (x.at(0.0), 4.0),
        (x.at(MOST) - x.at(0.0), 26.0),
    );
    let to = to.min(MOST);
    rect(
        page,
        "allowed",
        (x.at(from), 4.0),
        (x.at(to) - x.at(from), 26.0),
    );
    rect(
        page,
        colour,
        (x.at(0.0), 11.0),
        (x.at(ours) - x.at(0.0), 12.0),
    );
    if let Some((low, high)) = interval {
        let (low, high) = (x.at(low), x.at(high));
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

/// Draws one square for each seed, up to 20.
fn draw_seeds(page: &mut Markup, colour: &str, held: usize, of: usize) {
    let shown = of.min(20);
    let step = f64::min(
        22.0,
        (WIDE - 4.0) / f64::from(u32::try_from(shown.max(1)).unwrap_or(1)),
    );
    for seed in 0..shown {
        // With more seeds than squares, the same share of squares is filled.
        let class = if seed * of < held * shown {
            colour
        } else {
            "empty"
        };
        let x = 2.0 + step * f64::from(u32::try_from(seed).unwrap_or(0));
        rect(page, class, (x, 9.0), (step - 5.0, 16.0));
    }
}
