//! Cumulative distribution of latencies: the share of requests answered within each.

use policy::Span;

use super::axis::{Axis, Scale};
use super::plot::{Frame, LOOKS, Size, Texts, figure, key, label, line};
use crate::statistics::{Histogram, Percentile, Unit};
use markup::{Markup, px};

/// Number of the slowest curves that are highlighted if there are more curves than looks.
const SLOWEST: usize = 3;

/// Latencies of one function, class or policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    name: String,
    /// Latencies, each with the number of requests answered within it.
    steps: Vec<(Span, u64)>,
    count: u64,
    objective: Option<Span>,
    at: [Option<Span>; 3],
}

/// Plot of several curves, against the percentile to which their objectives refer.
#[derive(Clone, PartialEq, Debug)]
pub struct Latencies {
    /// Title of the plot.
    pub title: String,
    /// Percentile of the latencies that must be within the objective.
    pub percentile: Percentile,
    /// Curves in the order of the legend; of more than eight, the three slowest are highlighted.
    pub curves: Vec<Curve>,
}

impl Curve {
    /// Creates a curve from a histogram. `objective` is the latency which its requests should keep.
    #[must_use]
    pub fn new(name: impl Into<String>, histogram: &Histogram, objective: Option<Span>) -> Self {
        let of = [Percentile::P50, Percentile::P98, Percentile::P99];
        Self {
            name: name.into(),
            steps: histogram.steps().collect(),
            count: histogram.count(),
            objective,
            at: of.map(|percentile| histogram.percentile(percentile)),
        }
    }

    fn share(&self, reached: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
        let share = reached as f64 / self.count.max(1) as f64;
        share
    }

    /// Returns the latency at a percentile; `None` if there are no requests.
    fn latency(&self, percentile: Percentile) -> Option<Span> {
        let rank = percentile.rank(self.count);
        let mut steps = self.steps.iter();
        steps.find(|(_, n)| *n >= rank).map(|(latency, _)| *latency)
    }
}

fn nanoseconds(span: Span) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a place on a page")]
    let value = span.0 as f64;
    value
}

fn written(span: Option<Span>) -> String {
    span.map_or_else(
        || "–".to_owned(),
        |span| Unit::Nanoseconds.write(nanoseconds(span)),
    )
}

impl Latencies {
    pub(super) fn draw(&self, page: &mut Markup) {
        let looks = self.looks();
        let kept = self.percentile_name();
        let how = format!(
            "Further left is faster. The scale widens towards 100 % to show the tail. A vertical mark at {kept} is an objective: a line which crosses {kept} to the left of its mark meets it."
        );
        let summary: Vec<String> = self
            .curves
            .iter()
            .zip(&looks)
            .filter(|(_, look)| look.is_some())
            .map(|(curve, _)| {
                let (half, tail) = (curve.at[0], curve.latency(self.percentile));
                format!(
                    "{}: half of the requests within {}, {kept} within {}.",
                    curve.name,
                    written(half),
                    written(tail)
                )
            })
            .collect();
        let texts = Texts {
            title: &self.title,
            how: &how,
            summary: &summary.join(" "),
        };
        let height = |size: &Size| if size.narrow { 330.0 } else { 420.0 };
        figure(
            page,
            texts,
            |page| self.legend(page, &looks),
            height,
            |page, size| self.plot(page, size, height(size), &looks),
        );
    }

    fn percentile_name(&self) -> String {
        let percent = f64::from(self.percentile.thousandths()) / 1000.0;
        Unit::Percent.write(percent).replace(".0 %", " %")
    }

    /// Returns the look of each curve; `None` for curves that are drawn in grey.
    fn looks(&self) -> Vec<Option<usize>> {
        if self.curves.len() <= LOOKS {
            return (0..self.curves.len()).map(Some).collect();
        }
        let mut order: Vec<usize> = (0..self.curves.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(self.curves[at].latency(self.percentile)));
        let mut looks = vec![None; self.curves.len()];
        for (look, &at) in order.iter().take(SLOWEST).enumerate() {
            looks[at] = Some(look);
        }
        looks
    }

    fn legend(&self, page: &mut Markup, looks: &[Option<usize>]) {
        page.open("div", &[("class", "scroll"), ("tabindex", "0")]);
        page.open("table", &[("class", "keys")]);
        page.open("thead", &[]);
        page.open("tr", &[]);
        for name in ["", "requests", "p50", "p98", "p99", "objective"] {
            let class = if name.is_empty() { "text" } else { "number" };
            page.element("th", &[("scope", "col"), ("class", class)], name);
        }
        page.close();
        page.close();
        page.open("tbody", &[]);
        for (curve, look) in self.curves.iter().zip(looks) {
            let Some(look) = look else { continue };
            page.open("tr", &[]);
            page.open("th", &[("scope", "row"), ("class", "text")]);
            key(page, *look);
            page.text(&curve.name);
            page.close();
            #[expect(clippy::cast_precision_loss, reason = "a count on a page")]
            let count = Unit::Count.write(curve.count as f64);
            let [half, tail, last] = curve.at.map(written);
            for text in [count, half, tail, last, written(curve.objective)] {
                page.element("td", &[("class", "number")], &text);
            }
            page.close();
        }
        page.close();
        page.close();
        page.close();
        let others = looks.iter().filter(|look| look.is_none()).count();
        if others > 0 {
            let text = format!(
                "The slowest {SLOWEST} of {} by name; the other {others} in grey.",
                looks.len()
            );
            page.element("p", &[("class", "how")], &text);
        }
    }

    fn plot(&self, page: &mut Markup, size: &Size, height: f64, looks: &[Option<usize>]) {
        let filled = || self.curves.iter().filter(|curve| curve.count > 0);
        let ends = |curve: &Curve| Some((curve.steps.first()?.0, curve.steps.last()?.0));
        let objectives = filled().filter_map(|curve| curve.objective);
        let least = filled().filter_map(ends).map(|(least, _)| least).min();
        let most = filled().filter_map(ends).map(|(_, most)| most);
        let most = most.chain(objectives).max();
        let (Some(least), Some(most)) = (least, most) else {
            label(page, "", 0.0, 20.0, "No request was answered.");
            return;
        };
        let count = filled().map(|curve| curve.count).max().unwrap_or(1);
        #[expect(clippy::cast_precision_loss, reason = "a place on a page")]
        let top_share = 1.0 - 1.0 / count.clamp(100, 100_000) as f64;
        let (left, right, top) = (58.0, size.width - 14.0, 34.0);
        let bottom = height - 52.0;
        // A little room on both sides.
        let values = (
            nanoseconds(least).max(1.0) * 0.93,
            nanoseconds(most).max(1.0) * 1.05,
        );
        let frame = Frame {
            x: Axis::new(Scale::Decades, values, (left, right)),
            y: Axis::new(Scale::Nines, (0.0, top_share), (bottom, top)),
            left,
            right,
            top,
            bottom,
            x_name: "latency",
            y_name: "requests answered within it",
        };
        let most_ticks = if size.narrow { 4 } else { 9 };
        let ticks = |values: Vec<f64>, unit: Unit| {
            let named = values
                .into_iter()
                .map(|v| (v, unit.write(v).replace(".0 %", " %")));
            named.collect::<Vec<_>>()
        };
        frame.draw(
            page,
            &ticks(frame.x.ticks(most_ticks), Unit::Nanoseconds),
            &ticks(frame.y.ticks(9), Unit::Share),
        );
        let kept = f64::from(self.percentile.thousandths()) / 100_000.0;
        let at = frame.y.at(kept);
        let path = format!("M{} {}H{}", px(left), px(at), px(right));
        page.leaf("path", &[("class", "mark"), ("d", &path)]);
        label(
            page,
            "strong end",
            left - 8.0,
            at + 4.5,
            &self.percentile_name(),
        );
        // Highlighted curves are drawn last, above the others.
        for (curve, look) in self.curves.iter().zip(looks) {
            if look.is_none() {
                let path = curve.path(&frame);
                page.leaf("path", &[("class", "line many"), ("d", &path)]);
            }
        }
        for (curve, look) in self.curves.iter().zip(looks) {
            let Some(look) = *look else { continue };
            line(page, look, &curve.path(&frame));
        }
        self.objectives(page, &frame, at, size);
    }

    /// Draws a mark for each distinct objective at the height of the percentile, with labels if they are few.
    fn objectives(&self, page: &mut Markup, frame: &Frame<'_>, at: f64, size: &Size) {
        let mut objectives: Vec<Span> = self.curves.iter().filter_map(|c| c.objective).collect();
        objectives.sort_unstable();
        objectives.dedup();
        let few = objectives.len() <= if size.narrow { 2 } else { 4 };
        for objective in objectives {
            let x = frame.x.at(nanoseconds(objective));
            let path = format!("M{} {}V{}", px(x), px(at - 10.0), px(at + 10.0));
            page.leaf("path", &[("class", "objective"), ("d", &path)]);
            if few {
                let near_end = x > frame.right - 40.0;
                let class = if near_end { "halo end" } else { "halo middle" };
                let text = Unit::Nanoseconds.write(nanoseconds(objective));
                label(page, class, x, at + 25.0, &text);
            }
        }
    }
}

impl Curve {
    /// Returns the curve as a path, omitting steps smaller than a pixel.
    fn path(&self, frame: &Frame<'_>) -> String {
        let Some(&(first, _)) = self.steps.first() else {
            return String::new();
        };
        let (mut x, mut y) = (frame.x.at(nanoseconds(first)), frame.bottom);
        let mut path = format!("M{} {}", px(x), px(y));
        let last = self.steps.len() - 1;
        for (at, &(latency, reached)) in self.steps.iter().enumerate() {
            let next_x = frame.x.at(nanoseconds(latency));
            let next_y = frame.y.at(self.share(reached));
            if at < last && (next_x - x) < 1.0 && (y - next_y) < 1.0 {
                continue;
            }
            path.push_str(&format!("H{}V{}", px(next_x), px(next_y)));
            (x, y) = (next_x, next_y);
        }
        path
    }
}
