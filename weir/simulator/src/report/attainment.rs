//! A share over load: one line for each policy, with its 95 % band over seeds.

use super::axis::{Axis, Scale};
use super::plot::{Frame, LOOKS, Size, Texts, figure, key, label, line};
use super::table::{Cell, Column, Table};
use crate::statistics::{Interval, Unit};
use markup::{Markup, px};

/// Plot of shares over load.
#[derive(Clone, PartialEq, Debug)]
pub struct Attainment {
    /// Title of the plot.
    pub title: String,
    /// Name of the load, such as "functions on the node".
    pub load_name: String,
    /// Unit of the load.
    pub load_unit: Unit,
    /// Name of the share, such as "functions that keep their objective".
    pub share_name: String,
    /// Share marked for comparison, with its label.
    pub mark: Option<(f64, String)>,
    /// Load that is highlighted, with its label.
    pub chosen: Option<(f64, String)>,
    /// One line for each policy.
    pub lines: Vec<Line>,
}

/// Points of one policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Name of the policy.
    pub name: String,
    /// Loads in ascending order, each with the share over seeds, from 0 to 1.
    pub points: Vec<(f64, Interval)>,
}

impl Attainment {
    pub(super) fn draw(&self, page: &mut Markup) {
        let summary: Vec<String> = self
            .lines
            .iter()
            .filter_map(|line| self.summary(line))
            .collect();
        let texts = Texts {
            title: &self.title,
            how: "The band around a line is the 95 % interval over seeds.",
            summary: &summary.join(" "),
        };
        let height = |size: &Size| if size.narrow { 320.0 } else { 400.0 };
        figure(
            page,
            texts,
            |page| {
                page.open("ul", &[("class", "keys")]);
                for (look, line) in self.lines.iter().enumerate() {
                    page.open("li", &[]);
                    key(page, look);
                    page.text(&line.name);
                    page.close();
                }
                page.close();
            },
            height,
            |page, size| self.plot(page, size, height(size)),
        );
        page.open("details", &[]);
        page.element("summary", &[], "The values");
        self.values().draw(page);
        page.close();
    }

    fn summary(&self, line: &Line) -> Option<String> {
        let (first, last) = (line.points.first()?, line.points.last()?);
        let format_point = |(load, share): &(f64, Interval)| {
            format!(
                "{} at {}",
                Unit::Share.write(share.mean),
                self.load_unit.write(*load)
            )
        };
        Some(format!(
            "{}: {}, {}.",
            line.name,
            format_point(first),
            format_point(last)
        ))
    }

    fn values(&self) -> Table {
        let mut loads: Vec<f64> = self.points().map(|(load, _)| load).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let mut columns = vec![Column::number(&self.load_name)];
        columns.extend(self.lines.iter().map(|line| Column::number(&line.name)));
        let row = |&load: &f64| {
            let mut cells = vec![Cell::Number(load, self.load_unit)];
            cells.extend(self.lines.iter().map(|line| {
                let point = line.points.iter().find(|(at, _)| *at == load);
                point.map_or(Cell::Nothing, |(_, share)| {
                    Cell::Interval(*share, Unit::Share)
                })
            }));
            cells
        };
        Table {
            title: format!("{}, mean and 95 % interval", self.share_name),
            columns,
            rows: loads.iter().map(row).collect(),
        }
    }

    fn points(&self) -> impl Iterator<Item = (f64, Interval)> {
        self.lines
            .iter()
            .flat_map(|line| line.points.iter().copied())
    }

    fn plot(&self, page: &mut Markup, size: &Size, height: f64) {
        let loads = || self.points().map(|(load, _)| load);
        let (least, most) = (
            loads().fold(f64::INFINITY, f64::min),
            loads().fold(f64::NEG_INFINITY, f64::max),
        );
        if least > most {
            label(page, "", 0.0, 20.0, "Nothing was run.");
            return;
        }
        let (left, right, top) = (58.0, size.width - 20.0, 34.0);
        let bottom = height - 52.0;
        let frame = Frame {
            x: Axis::new(Scale::Linear, (least, most), (left, right)),
            y: Axis::new(Scale::Linear, (0.0, 1.0), (bottom, top)),
            left,
            right,
            top,
            bottom,
            x_name: &self.load_name,
            y_name: &self.share_name,
        };
        let x_ticks: Vec<_> = self
            .ticks(&frame)
            .into_iter()
            .map(|load| (load, Unit::Plain.write(load)))
            .collect();
        let y_ticks: Vec<_> = frame
            .y
            .ticks(5)
            .into_iter()
            .map(|share| (share, format!("{:.0} %", share.abs() * 100.0)))
            .collect();
        frame.draw(page, &x_ticks, &y_ticks);
        if let Some((share, _)) = &self.mark {
            let y = frame.y.at(*share);
            let path = format!("M{} {}H{}", px(left), px(y), px(right));
            page.leaf("path", &[("class", "mark"), ("d", &path)]);
        }
        if let Some((load, _)) = &self.chosen {
            let x = px(frame.x.at(*load));
            let path = format!("M{x} {}V{}", px(top - 6.0), px(bottom));
            page.leaf("path", &[("class", "objective"), ("d", &path)]);
        }
        for (look, line) in self.lines.iter().enumerate() {
            band(page, look, line, &frame);
        }
        for (look, of) in self.lines.iter().enumerate() {
            let mut path = String::new();
            for (at, (load, share)) in of.points.iter().enumerate() {
                let letter = if at == 0 { 'M' } else { 'L' };
                let (x, y) = (frame.x.at(*load), frame.y.at(share.mean));
                path.push_str(&format!("{letter}{} {}", px(x), px(y)));
            }
            line(page, look, &path);
            for (load, share) in &of.points {
                self.dot(page, look, &frame, (*load, share), &of.name);
            }
        }
        if let Some((load, name)) = &self.chosen {
            // On the side of the line that has more room.
            let x = frame.x.at(*load);
            let is_left = x > f64::midpoint(left, right);
            let (class, x) = if is_left {
                ("halo end", x - 7.0)
            } else {
                ("halo", x + 7.0)
            };
            label(page, class, x, bottom - 10.0, name);
        }
        if let Some((share, name)) = &self.mark {
            // Above the line the label would overlap the lines of shares near one.
            let y = frame.y.at(*share);
            let y = if *share > 0.9 { y + 17.0 } else { y - 7.0 };
            label(page, "halo", left + 6.0, y, name);
        }
    }

    /// Returns the loads that were run if their labels fit beside each other, otherwise round ones.
    fn ticks(&self, frame: &Frame<'_>) -> Vec<f64> {
        const APART: f64 = 44.0;
        let mut loads: Vec<f64> = self.points().map(|(load, _)| load).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let apart = |pair: &[f64]| frame.x.at(pair[1]) - frame.x.at(pair[0]) >= APART;
        if loads.windows(2).all(apart) {
            loads
        } else {
            frame.x.ticks(4)
        }
    }

    fn dot(
        &self,
        page: &mut Markup,
        look: usize,
        frame: &Frame<'_>,
        (load, share): (f64, &Interval),
        name: &str,
    ) {
        let (x, y) = (px(frame.x.at(load)), px(frame.y.at(share.mean)));
        let class = format!("dot look{}", look % LOOKS);
        page.open(
            "circle",
            &[("class", &class), ("cx", &x), ("cy", &y), ("r", "4")],
        );
        let text = format!(
            "{name}, {}: {} ({})",
            self.load_unit.write(load),
            Unit::Share.write(share.mean),
            Unit::Share.write_range(share.low.max(0.0), share.high.min(1.0))
        );
        page.element("title", &[], &text);
        page.close();
    }
}

/// Draws the interval as an area; the axis clamps shares to 0 and 1.
fn band(page: &mut Markup, look: usize, line: &Line, frame: &Frame<'_>) {
    let upper = line.points.iter().map(|(load, share)| (*load, share.high));
    let lower = line.points.iter().map(|(load, share)| (*load, share.low));
    let mut path = String::new();
    for (at, (load, share)) in upper.chain(lower.rev()).enumerate() {
        let letter = if at == 0 { 'M' } else { 'L' };
        let (x, y) = (frame.x.at(load), frame.y.at(share));
        path.push_str(&format!("{letter}{} {}", px(x), px(y)));
    }
    path.push('Z');
    let class = format!("band look{}", look % LOOKS);
    page.leaf("path", &[("class", &class), ("d", &path)]);
}
