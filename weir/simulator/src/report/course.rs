//! Values over the time of a run: a line for each series, or areas on top of each other.

use super::axis::{Axis, Scale};
use super::plot::{Frame, LOOKS, Size, Texts, figure, key, label, line, moment};
use crate::statistics::Unit;
use markup::{Markup, px};

/// Largest number of lines that a plot shows; further ones are omitted.
const LINES_MAX: usize = 24;

/// Plot of values over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Course {
    /// Title of the plot.
    pub title: String,
    /// Explanation of how to read the plot.
    pub how: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Whether each line is stacked on those before.
    pub is_stack: bool,
    /// Length of the time axis, in seconds from 0.
    pub seconds: f64,
    /// Values marked by a horizontal line.
    pub marks: Vec<f64>,
    /// Series in the order of the legend; in a stack, from bottom to top.
    pub lines: Vec<Series>,
}

/// One line of the plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Times in seconds, ascending, each with its value; a value which is not finite is a gap.
    pub points: Vec<(f64, f64)>,
}

impl Course {
    fn shown(&self) -> &[Series] {
        &self.lines[..self.lines.len().min(LINES_MAX)]
    }

    pub(super) fn draw(&self, page: &mut Markup) {
        let lines = self.stacked();
        let summary: Vec<String> = self.shown().iter().map(|own| self.summary(own)).collect();
        let texts = Texts {
            title: &self.title,
            how: &self.how,
            summary: &summary.join(" "),
        };
        let height = |size: &Size| if size.narrow { 240.0 } else { 260.0 };
        let keys = |page: &mut Markup| {
            page.open("ul", &[("class", "keys")]);
            for (look, own) in self.shown().iter().enumerate() {
                page.open("li", &[]);
                key(page, look % LOOKS);
                let last = last(own).map_or_else(|| "–".to_owned(), |value| self.unit.write(value));
                page.text(&format!("{}: {last}", own.name));
                page.close();
            }
            let left = self.lines.len().saturating_sub(LINES_MAX);
            if left > 0 {
                page.element("li", &[], &format!("and {left} more that are not shown"));
            }
            page.close();
        };
        figure(page, texts, keys, height, |page, size| {
            self.plot(page, size, height(size), &lines);
        });
    }

    fn summary(&self, own: &Series) -> String {
        let most = own
            .points
            .iter()
            .map(|point| point.1)
            .filter(|value| value.is_finite());
        let most = most.fold(f64::NEG_INFINITY, f64::max);
        let last = last(own).map_or_else(|| "–".to_owned(), |value| self.unit.write(value));
        format!(
            "{}: {last} at the end, {} at most.",
            own.name,
            self.unit.write(most)
        )
    }

    /// Returns the lines as drawn, with the values of a stack accumulated.
    fn stacked(&self) -> Vec<Series> {
        let mut below: Vec<(f64, f64)> = Vec::new();
        let mut all = Vec::new();
        for own in self.shown() {
            if !self.is_stack {
                all.push(own.clone());
                continue;
            }
            let raised = own.points.iter().map(|&(at, value)| {
                let base = below
                    .iter()
                    .find(|point| point.0 == at)
                    .map_or(0.0, |point| point.1);
                let value = if value.is_finite() { value } else { 0.0 };
                (at, base + value)
            });
            let raised: Vec<_> = raised.collect();
            for point in &raised {
                match below.iter_mut().find(|known| known.0 == point.0) {
                    Some(known) => known.1 = point.1,
                    None => below.push(*point),
                }
            }
            all.push(Series {
                name: own.name.clone(),
                points: raised,
            });
        }
        all
    }

    fn plot(&self, page: &mut Markup, size: &Size, height: f64, lines: &[Series]) {
        let values = || {
            lines
                .iter()
                .flat_map(|own| &own.points)
                .map(|point| point.1)
        };
        let finite = || values().filter(|value| value.is_finite());
        let most = finite()
            .chain(self.marks.iter().copied())
            .fold(f64::NEG_INFINITY, f64::max);
        if finite().next().is_none() {
            label(page, "", 0.0, 30.0, "There are no values.");
            return;
        }
        let least = finite().fold(0.0, f64::min);
        let (left, right) = if size.narrow {
            (64.0, size.width - 8.0)
        } else {
            (90.0, size.width - 16.0)
        };
        let (top, bottom) = (26.0, height - 46.0);
        let x = Axis::new(Scale::Linear, (0.0, self.seconds), (left, right));
        let y = Axis::new(
            Scale::Linear,
            (
                least,
                if most > least {
                    most * 1.05
                } else {
                    least + 1.0
                },
            ),
            (bottom, top),
        );
        let frame = Frame {
            x,
            y,
            left,
            right,
            top,
            bottom,
            x_name: "time",
            y_name: self.unit.name(),
        };
        let times = x.ticks(if size.narrow { 4 } else { 10 });
        let times: Vec<_> = times.into_iter().map(|at| (at, moment(at * 1e9))).collect();
        let ticks: Vec<_> = y
            .ticks(5)
            .into_iter()
            .map(|value| (value, self.unit.write(value)))
            .collect();
        frame.draw(page, &times, &ticks);
        for mark in &self.marks {
            let path = format!("M{} {}H{}", px(left), px(y.at(*mark)), px(right));
            page.leaf("path", &[("class", "mark"), ("d", &path)]);
        }
        // Drawn in reverse, so that of coinciding lines, as in a stack with nothing on top, the first is visible.
        for (look, own) in lines.iter().enumerate().rev() {
            line(page, look, &path(own, &x, &y));
        }
    }
}

fn last(own: &Series) -> Option<f64> {
    own.points
        .iter()
        .rev()
        .map(|point| point.1)
        .find(|value| value.is_finite())
}

fn path(own: &Series, x: &Axis, y: &Axis) -> String {
    let mut path = String::new();
    let mut is_open = false;
    for (at, value) in &own.points {
        if !value.is_finite() {
            is_open = false;
            continue;
        }
        let step = if is_open { 'L' } else { 'M' };
        path.push_str(&format!("{step}{} {}", px(x.at(*at)), px(y.at(*value))));
        // The short dash makes a single point visible.
        if !is_open {
            path.push_str("h0.1");
        }
        is_open = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(is_stack: bool) -> Course {
        let series = |name: &str, values: [f64; 3]| Series {
            name: name.to_owned(),
            points: (0..3).map(f64::from).zip(values).collect(),
        };
        Course {
            title: "t".to_owned(),
            how: String::new(),
            unit: Unit::Plain,
            is_stack,
            seconds: 2.0,
            marks: vec![4.0],
            lines: vec![
                series("<a>", [1.0, f64::NAN, 3.0]),
                series("b", [1.0, 1.0, 1.0]),
            ],
        }
    }

    #[test]
    fn stacked_lines_add_up_and_gaps_add_no_height() {
        let stacked = course(true).stacked();
        let values: Vec<_> = stacked[1].points.iter().map(|point| point.1).collect();
        assert_eq!(values, [2.0, 1.0, 4.0]);
        assert_eq!(course(false).stacked()[1].points[0].1, 1.0);
    }

    #[test]
    fn a_gap_breaks_the_line_and_names_are_escaped() {
        let mut page = Markup::default();
        course(false).draw(&mut page);
        let text = page.finish();
        assert!(
            text.contains("&lt;a&gt;: 3") && !text.contains("<a>"),
            "{text}"
        );
        let first = text.split("class=\"line look0\" d=\"").nth(2).unwrap();
        let path = first.split('"').next().unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
        let mut page = Markup::default();
        let none = Course {
            lines: Vec::new(),
            ..course(false)
        };
        none.draw(&mut page);
        assert!(page.finish().contains("There are no values."));
    }
}
