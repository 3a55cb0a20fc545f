//! Who held which slot when, from a ledger.

use policy::{Span, Time};

use super::axis::{Axis, Scale};
use super::markup::{Markup, fit, px};
use super::plot::{LOOKS, Size, Words, figure, label, moment, rect};
use crate::statistics::Unit;

/// A turn narrower than this is not drawn by itself.
const NARROWEST: f64 = 1.5;
/// Turns too short to be drawn are shaded in stripes of this width.
const STRIPE: f64 = 3.0;
/// Of a row: what is computed above, what is loaded below, since both can be at the same time.
const COMPUTE: f64 = 24.0;
const LOAD: f64 = 9.0;

/// Slots over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Slots {
    /// What the plot shows.
    pub title: String,
    /// The first moment of the window; the axis counts from here.
    pub from: Time,
    /// The last.
    pub to: Time,
    /// Names of the slots.
    pub slots: Vec<String>,
    /// Names of those who hold them: functions or instances.
    pub holders: Vec<String>,
    /// In any order; what is outside the window, or of a slot or holder without a name, is left out.
    pub turns: Vec<Turn>,
}

/// One entry of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Which slot, by its place in [`Slots::slots`].
    pub slot: usize,
    /// Who, by its place in [`Slots::holders`].
    pub holder: usize,
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// For what.
    pub doing: Doing,
}

/// What a slot is held for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    /// A request computes.
    Compute,
    /// A model comes.
    Load,
}

impl Slots {
    pub(super) fn draw(&self, page: &mut Markup) {
        let seen: Vec<String> = (0..self.slots.len())
            .map(|slot| {
                let (computes, loads) = self.shares(slot);
                format!("{}: {computes}, {loads}.", self.slots[slot])
            })
            .collect();
        let repeat = if self.holders.len() > LOOKS {
            " Colours repeat; a turn names its holder where there is room, and when it is pointed at."
        } else {
            ""
        };
        let how = format!(
            "Above, who computes on the slot; hatched below, whose model is being loaded. Grey stripes are turns too short to be drawn one by one: the darker, the busier.{repeat}"
        );
        let words = Words {
            title: &self.title,
            how: &how,
            seen: &seen.join(" "),
        };
        let height = |size: &Size| {
            let rows = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            10.0 + f64::from(rows) * row(size) + 46.0
        };
        figure(
            page,
            words,
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

    /// Turns of a slot in the window, cut to it, by time.
    fn of(&self, slot: usize, doing: Doing) -> Vec<Turn> {
        let mut turns: Vec<Turn> = self
            .turns
            .iter()
            .filter(|turn| turn.slot == slot && turn.doing == doing)
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

    /// "computing 61 %" and "loading 12 %" of the window; where several are at the same time, they add up.
    fn shares(&self, slot: usize) -> (String, String) {
        let share = |doing| {
            let turns = self.of(slot, doing);
            let held: u64 = turns.iter().map(|turn| turn.to.since(turn.from).0).sum();
            let share = nanoseconds(Span(held)) / nanoseconds(self.to.since(self.from)).max(1.0);
            format!("{:.0} %", share * 100.0)
        };
        (
            format!("computing {}", share(Doing::Compute)),
            format!("loading {}", share(Doing::Load)),
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
            // The first and last do not leave the page.
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
            let computes = self.of(slot, Doing::Compute);
            self.lane(page, &computes, &x, (top, COMPUTE), None);
            let loads = self.of(slot, Doing::Load);
            let below = (top + COMPUTE + 2.0, LOAD);
            self.lane(page, &loads, &x, below, Some(&hatch));
        }
    }

    /// Turns beside each other; those too short share stripes.
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
            let doing = match turn.doing {
                Doing::Compute => "computes",
                Doing::Load => "loads",
            };
            page.element("title", &[], &format!("{name} {doing} for {span}, at {at}"));
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

/// Shades as busy as the short turns in each stripe, in four steps.
fn stripes<'a>(
    page: &mut Markup,
    turns: impl Iterator<Item = &'a Turn>,
    place: &impl Fn(Time) -> f64,
    (top, high): (f64, f64),
) {
    // A short turn is in one stripe, or across the edge of two: its middle decides.
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
