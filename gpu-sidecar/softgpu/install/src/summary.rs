//! Figures of a ledger: by process, by GPU or slice, and by link.

use std::collections::BTreeMap;

use softgpu_wire::ledger::LineKind;

use crate::ledger::{Entry, Ledger};
use crate::names::{LinkKind, Names};

/// Use of a GPU or slice by a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSummary {
    /// Process ID of the operating system.
    pub pid: u32,
    /// Number of the GPU or slice.
    pub unit: u32,
    /// SM-nanoseconds, in thousandths of SMs.
    pub millisms_ns: u128,
    /// Time in which the process held any SM, in ns.
    pub busy_ns: u64,
    /// Part of that time in which another process held some as well, in ns.
    pub shared_ns: u64,
    /// Bytes over links to and from GPUs. Copies over PCIe between GPUs count at both; switches do not count.
    pub link_bytes: u64,
    /// Bytes read and written in device memory by copies and memsets within it.
    pub memory_traffic: u64,
    /// Largest amount of device memory held, in bytes.
    pub memory_peak: u64,
}

/// Use of a GPU or slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitSummary {
    /// Number of the GPU or slice.
    pub unit: u32,
    /// SM-nanoseconds, in thousandths of SMs.
    pub millisms_ns: u128,
    /// Time in which any SM was held, in ns.
    pub busy_ns: u64,
    /// Part of that time in which at least two processes held some, in ns.
    pub overlap_ns: u64,
    /// Largest number of SMs held at once, in thousandths.
    pub millisms_peak: u64,
    /// Largest amount of device memory held at once, in bytes.
    pub memory_peak: u64,
}

/// Use of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSummary {
    /// Number of the link.
    pub link: u32,
    /// Bytes transferred over the link.
    pub bytes: u64,
    /// Time in which any were transferred, in ns.
    pub busy_ns: u64,
}

/// Sums over the selected interval of a ledger; see the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Length of the selected interval in ns.
    pub span_ns: u64,
    /// Processes that held something, in order of appearance.
    pub processes: Vec<ProcessSummary>,
    /// GPUs and slices of which something was held.
    pub units: Vec<UnitSummary>,
    /// Links that were used.
    pub links: Vec<LinkSummary>,
}

/// Converts thousandths of SMs times nanoseconds to SMs times seconds.
#[must_use]
pub fn sm_seconds(millisms_ns: u128) -> f64 {
    millisms_ns as f64 / 1e12
}

/// Returns a part as a fraction of a whole; 0 if the whole is 0.
#[must_use]
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// Amount that each process holds of one resource, and the number of entries it consists of.
pub(crate) type Holders = BTreeMap<usize, (u64, u32)>;

/// Calls `each` for every interval between two changes of these entries, with the amounts held. Intervals in which
/// nothing is held are skipped.
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

/// Groups the entries by resource.
pub(crate) fn by_resource(ledger: &Ledger) -> BTreeMap<(u8, u32), Vec<&Entry>> {
    let mut resources: BTreeMap<_, Vec<&Entry>> = BTreeMap::new();
    for entry in &ledger.entries {
        let resource = match entry.kind {
            LineKind::Sms(unit) => (SMS, unit),
            LineKind::Memory(unit) => (MEMORY, unit),
            LineKind::Link(link) => (LINK, link),
            LineKind::Process(_) => continue,
        };
        resources.entry(resource).or_default().push(entry);
    }
    resources
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
    /// Returns the figures of the selected entries.
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
        for ((kind, number), entries) in by_resource(ledger) {
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
                        LinkKind::Switch | LinkKind::Staging => {}
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
    use softgpu_wire::softgpu_dir;

    use super::*;
    use crate::ledger::Selection;
    use crate::ledger::tests::{line, write};

    #[test]
    fn overlaps_shares_and_peaks_follow_from_the_lines() {
        let folder = tempfile::tempdir().unwrap();
        let gb = 1_000_000_000;
        write(
            &folder.path().join(softgpu_dir::LEDGER),
            &[
                line(LineKind::Process(0), 0, 41, 0, 0),
                line(LineKind::Process(0), 1, 42, 0, 0),
                // Two streams of one process do not overlap.
                line(LineKind::Sms(0), 0, 10_000, 0, 100),
                line(LineKind::Sms(0), 0, 5_000, 50, 100),
                line(LineKind::Sms(0), 1, 20_000, 80, 180),
                line(LineKind::Memory(0), 0, 700, 0, 100),
                line(LineKind::Memory(0), 1, 300, 90, 200),
                // To GPU 0, and in its own memory.
                line(LineKind::Link(0), 0, 3 * gb, 0, 10),
                line(LineKind::Link(4), 1, 4 * gb, 0, 10),
            ],
        );
        let names = Names::new(folder.path(), &Config::default()).unwrap();
        let ledger = Ledger::read(folder.path(), &Selection::default()).unwrap();
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
