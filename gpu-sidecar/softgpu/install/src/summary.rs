//! A ledger in figures: for each process, for each GPU or slice, for each link.

use std::collections::BTreeMap;

use softgpu_wire::ledger::What;

use crate::ledger::{Entry, Ledger};
use crate::names::{LinkKind, Names};

/// What a process held of a GPU or slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSummary {
    /// Its number in the system.
    pub pid: u32,
    /// The GPU or slice.
    pub unit: u32,
    /// SM-nanoseconds, in thousandths of SMs.
    pub millisms_ns: u128,
    /// Time in which it held any SM, in ns.
    pub busy_ns: u64,
    /// Time of that in which another process held some as well, in ns.
    pub shared_ns: u64,
    /// Bytes over links to and from GPUs. Over PCIe from one GPU to another they are counted at both; switches are not.
    pub link_bytes: u64,
    /// Bytes that it read or wrote of device memory by copies and sets within it.
    pub memory_traffic: u64,
    /// Device memory at most, in bytes.
    pub memory_peak: u64,
}

/// How a GPU or slice was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitSummary {
    /// Its number.
    pub unit: u32,
    /// SM-nanoseconds, in thousandths of SMs.
    pub millisms_ns: u128,
    /// Time in which any SM was held, in ns.
    pub busy_ns: u64,
    /// Time of that in which at least two processes held some, in ns.
    pub overlap_ns: u64,
    /// SMs held at once at most, in thousandths.
    pub millisms_peak: u64,
    /// Device memory held at most, in bytes.
    pub memory_peak: u64,
}

/// How a link was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSummary {
    /// Its number.
    pub link: u32,
    /// Bytes that crossed it.
    pub bytes: u64,
    /// Time in which any did, in ns.
    pub busy_ns: u64,
}

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How long the selected time is, in ns.
    pub span_ns: u64,
    /// Processes that held something, in the order in which they came.
    pub processes: Vec<ProcessSummary>,
    /// GPUs and slices of which something was held.
    pub units: Vec<UnitSummary>,
    /// Links that were used.
    pub links: Vec<LinkSummary>,
}

/// Thousandths of SMs times nanoseconds, as SMs times seconds.
#[must_use]
pub fn sm_seconds(millisms_ns: u128) -> f64 {
    millisms_ns as f64 / 1e12
}

/// A part of a whole, 0 of an empty one.
#[must_use]
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// What each process holds of one thing at a time: how much, in how many pieces.
pub(crate) type Holders = BTreeMap<usize, (u64, u32)>;

/// Goes through all times at which something of what these entries are about changes, and hands on what was held from the
/// one to the next. Times at which nothing is held are left out.
pub(crate) fn sweep<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    mut each: impl FnMut(u64, u64, &Holders),
) {
    let mut changes: Vec<(u64, bool, usize, u64)> = Vec::new();
    for entry in entries {
        changes.push((entry.from, true, entry.process, entry.amount));
        changes.push((entry.to, false, entry.process, entry.amount));
    }
    changes.sort_unstable();
    let mut holders = Holders::new();
    let mut since = 0;
    for (at, is_begin, process, amount) in changes {
        if at > since && !holders.is_empty() {
            each(since, at, &holders);
        }
        since = at;
        let held = holders.entry(process).or_default();
        if is_begin {
            *held = (held.0.saturating_add(amount), held.1 + 1);
        } else {
            *held = (held.0.saturating_sub(amount), held.1.saturating_sub(1));
        }
        if held.1 == 0 {
            holders.remove(&process);
        }
    }
}

/// The entries of each thing.
pub(crate) fn by_thing(ledger: &Ledger) -> BTreeMap<(u8, u32), Vec<&Entry>> {
    let mut things: BTreeMap<_, Vec<&Entry>> = BTreeMap::new();
    for entry in &ledger.entries {
        let thing = match entry.what {
            What::Sms(unit) => (SMS, unit),
            What::Memory(unit) => (MEMORY, unit),
            What::Link(link) => (LINK, link),
            What::Process(_) => continue,
        };
        things.entry(thing).or_default().push(entry);
    }
    things
}

pub(crate) const SMS: u8 = 0;
pub(crate) const MEMORY: u8 = 1;
pub(crate) const LINK: u8 = 2;

fn bytes(entry: &Entry) -> u128 {
    u128::from(entry.amount) * u128::from(entry.to - entry.from)
}

fn whole_bytes(byte_ns: u128) -> u64 {
    u64::try_from((byte_ns + 500_000_000) / 1_000_000_000).unwrap_or(u64::MAX)
}

impl Summary {
    /// That of what was selected of a ledger.
    #[must_use]
    pub fn new(ledger: &Ledger, names: &Names) -> Self {
        let mut processes: Vec<_> = ledger
            .processes
            .iter()
            .map(|process| ProcessSummary {
                pid: process.pid,
                unit: process.unit,
                ..ProcessSummary::default()
            })
            .collect();
        let mut has = vec![false; processes.len()];
        let mut crossed = vec![(0_u128, 0_u128); processes.len()];
        let mut units: BTreeMap<u32, UnitSummary> = BTreeMap::new();
        let mut links = Vec::new();
        for ((kind, number), entries) in by_thing(ledger) {
            for entry in &entries {
                has[entry.process] = true;
            }
            if kind == LINK {
                links.push(link(number, &entries));
                let kind = names.link_kind(number);
                for entry in entries {
                    let (link, memory) = &mut crossed[entry.process];
                    match kind {
                        LinkKind::Host | LinkKind::NvLink => *link += bytes(entry),
                        LinkKind::Memory => *memory += bytes(entry),
                        LinkKind::Switch => {}
                    }
                }
                continue;
            }
            let unit = units.entry(number).or_insert_with(|| UnitSummary {
                unit: number,
                ..UnitSummary::default()
            });
            sweep(entries.into_iter(), |from, to, holders| {
                if kind == SMS {
                    count_sms(unit, &mut processes, to - from, holders);
                } else {
                    unit.memory_peak = unit.memory_peak.max(sum_of(holders));
                    for (&process, &(amount, _)) in holders {
                        let peak = &mut processes[process].memory_peak;
                        *peak = amount.max(*peak);
                    }
                }
            });
        }
        for (process, (link, memory)) in processes.iter_mut().zip(crossed) {
            process.link_bytes = whole_bytes(link);
            process.memory_traffic = whole_bytes(memory);
        }
        let mut has = has.into_iter();
        processes.retain(|_| has.next().unwrap_or(false));
        Self {
            span_ns: ledger.span(),
            processes,
            units: units.into_values().collect(),
            links,
        }
    }
}

fn count_sms(
    unit: &mut UnitSummary,
    processes: &mut [ProcessSummary],
    span: u64,
    holders: &Holders,
) {
    let is_shared = holders.len() > 1;
    let sum = sum_of(holders);
    for (&process, &(amount, _)) in holders {
        let of = &mut processes[process];
        of.millisms_ns += u128::from(amount) * u128::from(span);
        of.busy_ns += span;
        of.shared_ns += if is_shared { span } else { 0 };
    }
    unit.millisms_ns += u128::from(sum) * u128::from(span);
    unit.busy_ns += span;
    unit.overlap_ns += if is_shared { span } else { 0 };
    unit.millisms_peak = unit.millisms_peak.max(sum);
}

fn sum_of(holders: &Holders) -> u64 {
    let amounts = holders.values().map(|(amount, _)| *amount);
    amounts.fold(0, u64::saturating_add)
}

fn link(number: u32, entries: &[&Entry]) -> LinkSummary {
    let mut busy_ns = 0;
    sweep(entries.iter().copied(), |from, to, _| busy_ns += to - from);
    LinkSummary {
        link: number,
        bytes: whole_bytes(entries.iter().map(|entry| bytes(entry)).sum()),
        busy_ns,
    }
}

#[cfg(test)]
mod tests {
    use softgpu_wire::config::Config;
    use softgpu_wire::place;

    use super::*;
    use crate::ledger::Select;
    use crate::ledger::tests::{line, write};

    #[test]
    fn overlaps_shares_and_peaks_are_those_of_the_lines() {
        let folder = tempfile::tempdir().unwrap();
        let gb = 1_000_000_000;
        write(
            &folder.path().join(place::LEDGER),
            &[
                line(What::Process(0), 0, 41, 0, 0),
                line(What::Process(0), 1, 42, 0, 0),
                // Two streams of one process are no overlap.
                line(What::Sms(0), 0, 10_000, 0, 100),
                line(What::Sms(0), 0, 5_000, 50, 100),
                line(What::Sms(0), 1, 20_000, 80, 180),
                line(What::Memory(0), 0, 700, 0, 100),
                line(What::Memory(0), 1, 300, 90, 200),
                // To GPU 0, and its own memory.
                line(What::Link(0), 0, 3 * gb, 0, 10),
                line(What::Link(2), 1, 4 * gb, 0, 10),
            ],
        );
        let names = Names::new(folder.path(), &Config::default()).unwrap();
        let ledger = Ledger::read(folder.path(), &Select::default()).unwrap();
        let summary = Summary::new(&ledger, &names);
        let [one, other] = summary.processes[..] else {
            panic!("{summary:?}");
        };
        assert_eq!(one.millisms_ns, 10_000 * 100_000 + 5_000 * 50_000);
        assert_eq!((one.busy_ns, one.shared_ns), (100_000, 20_000));
        assert_eq!((one.link_bytes, one.memory_traffic), (30_000, 0));
        assert_eq!((other.busy_ns, other.shared_ns), (100_000, 20_000));
        assert_eq!((other.link_bytes, other.memory_traffic), (0, 40_000));
        assert_eq!((one.memory_peak, other.memory_peak), (700, 300));
        let [unit] = summary.units[..] else {
            panic!("{summary:?}");
        };
        assert_eq!((unit.busy_ns, unit.overlap_ns), (180_000, 20_000));
        assert_eq!((unit.millisms_peak, unit.memory_peak), (35_000, 1_000));
        assert_eq!(summary.span_ns, 200_000);
        assert_eq!(summary.links.len(), 2);
        assert_eq!(summary.links[0].bytes, 30_000);
        assert!((sm_seconds(one.millisms_ns) - 1.25e-3).abs() < 1e-12);
        assert!((share(1, 4) - 0.25).abs() < f64::EPSILON && share(1, 0) == 0.0);
    }
}
