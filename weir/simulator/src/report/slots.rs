//! Occupancy of slots over time, from a ledger.

use policy::{Span, Time};

use super::axis::{Axis, Scale};
use super::plot::{LOOKS, Size, Texts, figure, label, moment, rect};
use crate::statistics::Unit;
use markup::{Markup, fit, px};

/// Smallest width of a turn which is drawn by itself.
const NARROWEST: f64 = 1.5;
/// Width of the stripes in which shorter turns are shaded.
const STRIPE: f64 = 3.0;
/// Height of the upper part of a row, for computation; the lower part is for loads, which may overlap with it in time.
const COMPUTE: f64 = 24.0;
const LOAD: f64 = 9.0;

/// Plot of the occupancy of slots over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Slots {
    /// Title of the plot.
    pub title: String,
    /// Start of the window; the axis counts from it.
    pub from: Time,
    /// End of the window.
    pub to: Time,
    /// Names of the slots, from top to bottom.
    pub slots: Vec<String>,
    /// Names of the holders of slots: functions or instances.
    pub holders: Vec<String>,
    /// Turns in any order; those outside the window, or with an index beyond the names, are omitted.
    pub turns: Vec<Turn>,
}

/// Period for which one holder occupied a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Index into [`Slots::slots`].
    pub slot: usize,
    /// Index into [`Slots::holders`].
    pub holder: usize,
    /// Start of the turn.
    pub from: Time,
    /// End of the turn.
    pub to: Time,
    /// Use of the slot.
    pub activity: Activity,
}

/// Use of a slot during a turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activity {
    /// A request is executed.
    Compute,
    /// A model is loaded.
    Load,
}

impl Slots {
    pub(super) fn draw(&self, page: &mut Markup) {
        let summary: Vec<String> = (0..self.slots.len())
            .map(|slot| {
                let (computes, loads) = self.shares(slot);
                format!("{}: {computes}, {loads}.", self.slots[slot])
            })
            .collect();
        let repeat = if self.holders.len() > LOOKS {
            " Colours repeat; a turn names its holder where there is room, and on hover."
        } else {
            ""
        };
        let how = format!(
            "The upper part of a row shows which holder computes on the slot; the hatched lower part, which holder's model is being loaded. Grey stripes are turns too short to be drawn one by one: the darker, the busier.{repeat}"
        );
        let texts = Texts {
            title: &self.title,
            how: &how,
            summary: &summary.join(" "),
        };
        let height = |size: &Size| {
            let rows = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            10.0 + f64::from(rows) * row(size) + 46.0
        };
        figure(
            page,
            texts,
            |page| self.legend(page),
            height,
            |page, size| self.plot(page, size, height(size)),
        );
    }

    fn legend(&self, page: &mut Markup) {
        if self.holders.len() > LOOKS {
            return;
        }
        page.open("ul", &[("class", "keys")]);
        for (look, name) in self.holders.iter().enumerate() {
            page.open("li", &[]);
            let class = format!("swatch look{look}");
            page.open("span", &[("class", &class)]);
            page.close();
            page.text(name);
            page.close();
        }
        page.close();
    }

    /// Returns the turns of a slot in the window, cut to it and ordered by time.
    fn of(&self, slot: usize, activity: Activity) -> Vec<Turn> {
        let mut turns: Vec<Turn> = self
            .turns
            .iter()
            .filter(|turn| turn.slot == slot && turn.activity == activity)
            .filter(|turn| turn.holder < self.holders.len())
            .map(|turn| Turn {
                from: turn.from.max(self.from),
                to: turn.to.min(self.to),
                ..*turn
            })
            .filter(|turn| turn.from < turn.to)
            .collect();
        turns.sort_by_key(|turn| (turn.from, turn.to, turn.holder));
        turns
    }

    /// Returns "computing 61 %" and "loading 12 %", the shares of the window; concurrent turns add up.
    fn shares(&self, slot: usize) -> (String, String) {
        let share = |activity| {
            let turns = self.of(slot, activity);
            let held: u64 = turns.iter().map(|turn| turn.to.since(turn.from).0).sum();
            let share = nanoseconds(Span(held)) / nanoseconds(self.to.since(self.from)).max(1.0);
            format!("{:.0} %", share * 100.0)
        };
        (
            format!("computing {}", share(Activity::Compute)),
            format!("loading {}", share(Activity::Load)),
        )
    }

    fn plot(&self, page: &mut Markup, size: &Size, height: f64) {
        let (left, right) = if size.narrow {
            (2.0, size.width - 8.0)
        } else {
            (120.0, size.width - 16.0)
        };
        let window = nanoseconds(self.to.since(self.from));
        let x = Axis::new(Scale::Linear, (0.0, window), (left, right));
        let bottom = height - 40.0;
        for tick in x.ticks(if size.narrow { 4 } else { 10 }) {
            let at = x.at(tick);
            let path = format!("M{} 6V{}", px(at), px(bottom));
            page.leaf("path", &[("class", "grid"), ("d", &path)]);
            // The first and the last label must not extend beyond the page.
            let class = match at {
                _ if at < left + 12.0 && size.narrow => "start",
                _ if at > right - 12.0 => "end",
                _ => "middle",
            };
            label(page, class, at, bottom + 18.0, &moment(tick));
        }
        label(page, "name end", right, bottom + 36.0, "time");
        let hatch = size.name("hatch");
        page.open(
            "pattern",
            &[
                ("id", &hatch),
                ("width", "5"),
                ("height", "5"),
                ("patternUnits", "userSpaceOnUse"),
                ("patternTransform", "rotate(45)"),
            ],
        );
        page.leaf(
            "rect",
            &[("class", "hatch"), ("width", "2.4"), ("height", "5")],
        );
        page.close();
        let hatch = format!("url(#{hatch})");
        for (slot, name) in self.slots.iter().enumerate() {
            let rows = f64::from(u32::try_from(slot).unwrap_or(u32::MAX));
            let mut top = 10.0 + rows * row(size);
            let (computes, loads) = self.shares(slot);
            if size.narrow {
                let text = format!("{name}: {computes}, {loads}");
                let text = fit(&text, size.width).unwrap_or_default();
                label(page, "strong", left, top + 12.0, &text);
                top += 18.0;
            } else {
                let name = fit(name, left - 12.0).unwrap_or_default();
                label(page, "strong", 0.0, top + 11.0, &name);
                label(page, "how", 0.0, top + 25.0, &computes);
                label(page, "how", 0.0, top + 38.0, &loads);
            }
            let wide = right - left;
            rect(page, "lane", (left, top), (wide, COMPUTE + 2.0 + LOAD));
            let computes = self.of(slot, Activity::Compute);
            self.lane(page, &computes, &x, (top, COMPUTE), None);
            let loads = self.of(slot, Activity::Load);
            let below = (top + COMPUTE + 2.0, LOAD);
            self.lane(page, &loads, &x, below, Some(&hatch));
        }
    }

    /// Draws turns beside each other; short ones share stripes.
    fn lane(
        &self,
        page: &mut Markup,
        turns: &[Turn],
        x: &Axis,
        (top, high): (f64, f64),
        hatch: Option<&str>,
    ) {
        let place = |at: Time| x.at(nanoseconds(at.since(self.from)));
        let short = |turn: &&Turn| place(turn.to) - place(turn.from) < NARROWEST;
        stripes(page, turns.iter().filter(short), &place, (top, high));
        for turn in turns.iter().filter(|turn| !short(turn)) {
            let (from, to) = (place(turn.from), place(turn.to));
            let class = format!("turn look{}", turn.holder % LOOKS);
            let name = &self.holders[turn.holder];
            page.open("g", &[]);
            let span = Unit::Nanoseconds.write(nanoseconds(turn.to.since(turn.from)));
            let at = Unit::Nanoseconds.write(nanoseconds(turn.from.since(self.from)));
            let activity = match turn.activity {
                Activity::Compute => "computes",
                Activity::Load => "loads",
            };
            page.element(
                "title",
                &[],
                &format!("{name} {activity} for {span}, at {at}"),
            );
            rect(page, &class, (from, top), (to - from, high));
            if let Some(hatch) = hatch {
                page.leaf(
                    "rect",
                    &[
                        ("fill", hatch),
                        ("x", &px(from)),
                        ("y", &px(top)),
                        ("width", &px(to - from)),
                        ("height", &px(high)),
                    ],
                );
            } else if let Some(name) = fit(name, to - from - 8.0) {
                let middle = from + (to - from) / 2.0;
                label(page, "inside middle", middle, top + high / 2.0 + 4.5, &name);
            }
            page.close();
        }
    }
}

const fn row(size: &Size) -> f64 {
    if size.narrow { 64.0 } else { 52.0 }
}

/// Draws stripes shaded in four steps by the time that short turns take in each.
fn stripes<'a>(
    page: &mut Markup,
    turns: impl Iterator<Item = &'a Turn>,
    place: &impl Fn(Time) -> f64,
    (top, high): (f64, f64),
) {
    // A short turn may cross the edge of two stripes; its middle decides.
    let mut stripe = (f64::NEG_INFINITY, 0.0);
    for turn in turns {
        let (from, to) = (place(turn.from), place(turn.to));
        let at = libm::floor((from + to) / 2.0 / STRIPE) * STRIPE;
        if at > stripe.0 {
            shade(page, stripe, (top, high));
            stripe = (at, 0.0);
        }
        stripe.1 += to - from;
    }
    shade(page, stripe, (top, high));
}

fn shade(page: &mut Markup, (at, busy): (f64, f64), (top, high): (f64, f64)) {
    if busy > 0.0 {
        let class = match busy / STRIPE {
            share if share < 0.25 => "shade1",
            share if share < 0.5 => "shade2",
            share if share < 0.75 => "shade3",
            _ => "shade4",
        };
        rect(page, class, (at, top), (STRIPE, high));
    }
}

fn nanoseconds(span: Span) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a place on a page")]
    let value = span.0 as f64;
    value
}
