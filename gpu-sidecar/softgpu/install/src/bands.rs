//! Layout of a ledger's drawing: a band for each resource, with stacked rectangles of one process each.
//!
//! The number of rectangles is bounded. A drawing that would need more shows averages over spans of equal length, which
//! preserve areas; [`Bands::averaged`] is the length.

use std::collections::BTreeMap;

use crate::ledger::{Entry, Ledger};
use crate::names::{LinkKind, Names};
use crate::summary::{LINK, MEMORY, SMS, by_resource, sweep};

/// Largest number of rectangles in a drawing, which a browser renders without delay.
pub const RECTANGLES_MAX: usize = 8_000;
/// Largest and smallest number of spans over which a drawing is averaged.
const COLUMNS: [u64; 2] = [1_000, 60];

/// Kind of a band's amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Thousandths of SMs held.
    Sms,
    /// Bytes of device memory held.
    Memory,
    /// Bytes per second over a link.
    Link,
}

/// An amount held by one process over an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// Index in [`Ledger::processes`].
    pub process: usize,
    /// Begin of the interval, in ns since the start of the ledger.
    pub from: u64,
    /// End of the interval, in ns since the start of the ledger.
    pub to: u64,
    /// Sum of the amounts of the processes stacked below.
    pub base: u64,
    /// Amount that the process held.
    pub amount: u64,
}

/// Use of one resource over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Title, for example `GPU 0: SMs`.
    pub title: String,
    /// Kind of the amounts.
    pub kind: Kind,
    /// Capacity of the resource; the largest amount held if that is more or the capacity is unknown.
    pub capacity: u64,
    /// Amounts held, as stacked rectangles.
    pub rectangles: Vec<Rectangle>,
}

/// Bands of a drawing; see the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bands {
    /// One band for each resource that was used, with those of a GPU together.
    pub bands: Vec<Band>,
    /// Length in ns of the spans over which the drawing is averaged; `None` if it shows every change.
    pub averaged: Option<u64>,
}

impl Bands {
    /// Returns the bands of the selected entries, with at most [`RECTANGLES_MAX`] rectangles, or 60 for each process
    /// and resource if that is more.
    #[must_use]
    pub fn new(ledger: &Ledger, names: &Names) -> Self {
        Self::with_at_most(ledger, names, RECTANGLES_MAX)
    }

    fn with_at_most(ledger: &Ledger, names: &Names, max: usize) -> Self {
        let mut resources: Vec<_> = by_resource(ledger).into_iter().collect();
        resources.sort_by_key(|((kind, number), _)| order(*kind, *number, names));
        let draw = |how: &dyn Fn(&[&Entry]) -> Vec<Rectangle>| {
            let bands = resources
                .iter()
                .map(|((kind, number), entries)| band(*kind, *number, names, how(entries)));
            bands.collect::<Vec<_>>()
        };
        let exact = draw(&|entries| each_change(entries, max));
        let is_bounded = |bands: &[Band]| {
            let number: usize = bands.iter().map(|band| band.rectangles.len()).sum();
            number <= max
        };
        if is_bounded(&exact) {
            return Self {
                bands: exact,
                averaged: None,
            };
        }
        let [mut columns, least] = COLUMNS;
        loop {
            let length = ledger.span().div_ceil(columns).max(1);
            let bands = draw(&|entries| averages(entries, ledger.from, length));
            if is_bounded(&bands) || columns <= least {
                return Self {
                    bands,
                    averaged: Some(length),
                };
            }
            columns = (columns / 2).max(least);
        }
    }
}

/// Returns the sort key of a resource: GPUs and slices by number, each with its SMs, memory and memory traffic; then
/// the links.
fn order(kind: u8, number: u32, names: &Names) -> (u8, u32, u8) {
    if kind != LINK {
        return (0, number, kind);
    }
    match names.link_kind(number) {
        LinkKind::Memory => {
            let others = names.links.iter();
            let before = others.filter(|link| link.kind != LinkKind::Memory).count();
            let unit = number.saturating_sub(u32::try_from(before).unwrap_or(0));
            (0, unit, LINK)
        }
        _ => (1, number, LINK),
    }
}

fn band(kind: u8, number: u32, names: &Names, rectangles: Vec<Rectangle>) -> Band {
    let unit = names.units.get(number as usize);
    let (title, capacity) = match kind {
        SMS => (
            format!("{}: SMs", names.unit(number)),
            unit.map_or(0, |unit| u64::from(unit.sms) * 1_000),
        ),
        MEMORY => (
            format!("{}: memory held", names.unit(number)),
            unit.map_or(0, |unit| unit.memory),
        ),
        _ => {
            let link = names.links.get(number as usize);
            let name = names.link(number);
            let title = match names.link_kind(number) {
                LinkKind::Memory => format!("traffic in {name}"),
                _ => format!("link {name}"),
            };
            (title, link.map_or(0, |link| link.rate))
        }
    };
    let tops = rectangles
        .iter()
        .map(|one| one.base.saturating_add(one.amount));
    Band {
        title,
        kind: match kind {
            SMS => Kind::Sms,
            MEMORY => Kind::Memory,
            _ => Kind::Link,
        },
        capacity: tops.max().unwrap_or(0).max(capacity).max(1),
        rectangles,
    }
}

/// Builder of rectangles from consecutive stacks.
#[derive(Default)]
struct Stacks {
    rectangles: Vec<Rectangle>,
    /// Indices of the last stack's rectangles, by process.
    last: BTreeMap<usize, usize>,
}

impl Stacks {
    /// Appends a stack. A rectangle that continues one of the last stack extends that one.
    fn push(&mut self, from: u64, to: u64, held: impl Iterator<Item = (usize, u64)>) {
        let mut base = 0_u64;
        let mut now = BTreeMap::new();
        for (process, amount) in held {
            let last = self.last.get(&process).copied();
            let last = last.filter(|last| {
                let last = self.rectangles[*last];
                last.to == from && last.base == base && last.amount == amount
            });
            let place = last.unwrap_or(self.rectangles.len());
            match self.rectangles.get_mut(place) {
                Some(last) => last.to = to,
                None => self.rectangles.push(Rectangle {
                    process,
                    from,
                    to,
                    base,
                    amount,
                }),
            }
            now.insert(process, place);
            base = base.saturating_add(amount);
        }
        self.last = now;
    }
}

/// Returns a stack for each interval without changes; stops beyond `max` rectangles.
fn each_change(entries: &[&Entry], max: usize) -> Vec<Rectangle> {
    let mut stacks = Stacks::default();
    sweep(entries.iter().copied(), |from, to, holders| {
        if stacks.rectangles.len() <= max {
            let held = holders
                .iter()
                .map(|(process, (amount, _))| (*process, *amount));
            stacks.push(from, to, held);
        }
    });
    stacks.rectangles
}

/// Returns, by the number of each span of `length` since `begin`, the amount times nanoseconds of each process.
pub(crate) fn column_sums(
    entries: &[&Entry],
    begin: u64,
    length: u64,
) -> BTreeMap<u64, BTreeMap<usize, u128>> {
    let mut columns: BTreeMap<u64, BTreeMap<usize, u128>> = BTreeMap::new();
    for entry in entries {
        let mut from = entry.from.max(begin);
        while from < entry.to {
            let column = (from - begin) / length;
            let end = begin
                .saturating_add((column + 1).saturating_mul(length))
                .min(entry.to);
            let sum = columns.entry(column).or_default();
            *sum.entry(entry.process).or_default() +=
                u128::from(entry.amount) * u128::from(end - from);
            from = end;
        }
    }
    columns
}

/// Returns a stack of averages for each span of this length.
fn averages(entries: &[&Entry], begin: u64, length: u64) -> Vec<Rectangle> {
    let mut stacks = Stacks::default();
    for (column, sums) in column_sums(entries, begin, length) {
        let from = begin + column * length;
        let held = sums.into_iter().map(|(process, sum)| {
            let average = sum.div_ceil(u128::from(length));
            (process, u64::try_from(average).unwrap_or(u64::MAX))
        });
        stacks.push(from, from + length, held);
    }
    stacks.rectangles
}

#[cfg(test)]
mod tests {
    use softgpu_wire::ledger::LineKind;

    use super::*;
    use crate::ledger::Process;

    fn ledger(lines: &[(usize, u64, u64, u64)]) -> Ledger {
        let entries: Vec<_> = lines
            .iter()
            .map(|&(process, amount, from, to)| Entry {
                kind: LineKind::Sms(0),
                process,
                amount,
                from,
                to,
                command: None,
            })
            .collect();
        let process = |pid| Process { pid, unit: 0 };
        Ledger {
            processes: vec![process(41), process(42)],
            names: BTreeMap::new(),
            from: 0,
            to: entries.iter().map(|entry| entry.to).max().unwrap_or(0),
            entries,
        }
    }

    fn flat(bands: &Bands) -> Vec<(usize, u64, u64, u64, u64)> {
        let all = bands.bands.iter().flat_map(|band| &band.rectangles);
        all.map(|one| (one.process, one.from, one.to, one.base, one.amount))
            .collect()
    }

    #[test]
    fn each_change_is_drawn_and_continued_amounts_merge() {
        let ledger = ledger(&[(0, 5, 0, 10), (0, 5, 10, 20), (1, 7, 15, 30)]);
        let bands = Bands::new(&ledger, &Names::default());
        assert_eq!(bands.averaged, None);
        assert_eq!(
            flat(&bands),
            [(0, 0, 20, 0, 5), (1, 15, 20, 5, 7), (1, 20, 30, 0, 7)]
        );
        assert_eq!(bands.bands[0].title, "unit 0: SMs");
        assert_eq!(bands.bands[0].capacity, 12);
    }

    #[test]
    fn averages_of_many_changes_preserve_areas() {
        let lines: Vec<_> = (0..10_000_u64)
            .map(|at| (0, 60_000, at * 100, at * 100 + 50))
            .collect();
        let ledger = ledger(&lines);
        let bands = Bands::with_at_most(&ledger, &Names::default(), 500);
        let length = bands.averaged.unwrap();
        let rectangles = &bands.bands[0].rectangles;
        assert!(rectangles.len() <= 500, "{}", rectangles.len());
        let area: u64 = rectangles
            .iter()
            .map(|one| one.amount * (one.to - one.from))
            .sum();
        let exact = 10_000 * 60_000 * 50;
        assert!(
            area.abs_diff(exact) <= exact / 1_000 + length * 500,
            "{area}"
        );
    }

    #[test]
    fn unused_resources_have_no_band() {
        assert_eq!(Bands::new(&Ledger::default(), &Names::default()).bands, []);
    }
}
