//! The busy share of each slot over a whole run, from a [`Timeline`].

use policy::Span;

use super::axis::{Axis, Scale};
use super::plot::{Size, Texts, figure, label, moment, rect};
use crate::statistics::{Timeline, Unit};
use markup::{Markup, fit, px};

/// Plot of busy shares over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Busy {
    /// Title of the plot.
    pub title: String,
    /// Names of the slots, in the timeline's order.
    pub slots: Vec<String>,
    /// Busy time by slot and bin.
    pub timeline: Timeline,
}

const ROW: f64 = 58.0;
const HIGH: f64 = 40.0;

impl Busy {
    pub(super) fn draw(&self, page: &mut Markup) {
        let summary: Vec<String> = (0..self.rows())
            .map(|slot| format!("{}: {} on average.", self.slots[slot], self.mean(slot)))
            .collect();
        let wide = Unit::Nanoseconds.write(nanoseconds(self.timeline.width()));
        let how = format!("Each step is {wide}; a full row is a slot that is always busy.");
        let texts = Texts {
            title: &self.title,
            how: &how,
            summary: &summary.join(" "),
        };
        let height = |size: &Size| {
            let rows = f64::from(u32::try_from(self.rows()).unwrap_or(u32::MAX));
            10.0 + rows * (ROW + if size.narrow { 10.0 } else { 0.0 }) + 40.0
        };
        figure(
            page,
            texts,
            |_| {},
            height,
            |page, size| {
                self.plot(page, size, height(size));
            },
        );
    }

    fn rows(&self) -> usize {
        self.slots.len().min(self.timeline.slots())
    }

    fn mean(&self, slot: usize) -> String {
        let passed = self.timeline.until().since(self.timeline.begin());
        let share = nanoseconds(self.timeline.total(slot)) / nanoseconds(passed).max(1.0);
        format!("{:.0} %", share * 100.0)
    }

    fn plot(&self, page: &mut Markup, size: &Size, height: f64) {
        let (left, right) = if size.narrow {
            (2.0, size.width - 8.0)
        } else {
            (120.0, size.width - 16.0)
        };
        let passed = nanoseconds(self.timeline.until().since(self.timeline.begin()));
        let x = Axis::new(Scale::Linear, (0.0, passed), (left, right));
        let bottom = height - 40.0;
        for tick in x.ticks(if size.narrow { 4 } else { 10 }) {
            let at = x.at(tick);
            let path = format!("M{} 6V{}", px(at), px(bottom));
            page.leaf("path", &[("class", "grid"), ("d", &path)]);
            let class = match at {
                _ if at < left + 12.0 && size.narrow => "start",
                _ if at > right - 12.0 => "end",
                _ => "middle",
            };
            label(page, class, at, bottom + 18.0, &moment(tick));
        }
        label(page, "name end", right, bottom + 36.0, "time");
        for slot in 0..self.rows() {
            let row = f64::from(u32::try_from(slot).unwrap_or(u32::MAX));
            let name = &self.slots[slot];
            let mean = format!("{} busy", self.mean(slot));
            let top = if size.narrow {
                let top = 10.0 + row * (ROW + 10.0);
                let text = fit(&format!("{name}: {mean}"), size.width).unwrap_or_default();
                label(page, "strong", left, top + 12.0, &text);
                top + 18.0
            } else {
                let top = 10.0 + row * ROW;
                let name = fit(name, left - 12.0).unwrap_or_default();
                label(page, "strong", 0.0, top + 16.0, &name);
                label(page, "how", 0.0, top + 32.0, &mean);
                top
            };
            rect(page, "lane", (left, top), (right - left, HIGH));
            let y = Axis::new(Scale::Linear, (0.0, 1.0), (top + HIGH, top));
            page.leaf(
                "path",
                &[
                    ("class", "area look0"),
                    ("d", &self.area(slot, &x, &y, top + HIGH)),
                ],
            );
        }
    }

    fn area(&self, slot: usize, x: &Axis, y: &Axis, floor: f64) -> String {
        let wide = nanoseconds(self.timeline.width());
        let mut path = format!("M{} {}", px(x.at(0.0)), px(floor));
        let mut end = 0.0;
        for bin in 0..self.timeline.len() {
            let share = self.timeline.share(slot, bin).unwrap_or(0.0);
            end += wide;
            path.push_str(&format!("V{}H{}", px(y.at(share)), px(x.at(end))));
        }
        path.push_str(&format!("V{}Z", px(floor)));
        path
    }
}

fn nanoseconds(span: Span) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a place on a page")]
    let value = span.0 as f64;
    value
}
