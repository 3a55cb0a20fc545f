//! Statistics of the server: what it has computed, and with what lag.

use std::collections::{BTreeMap, HashMap, VecDeque};

use device::ledger::{Entry, ProcessId, Resource};
use device::{Span, Time};
use serde_json::json;
use softgpu_wire::clock;

/// Histogram of spans, with eight classes for each power of two.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    counts: Vec<u64>,
    count: u64,
    max: Span,
}

const CLASSES: usize = 8;

impl Default for Spans {
    fn default() -> Self {
        Self {
            counts: vec![0; 64 * CLASSES],
            count: 0,
            max: Span::ZERO,
        }
    }
}

impl Spans {
    pub(crate) fn add(&mut self, span: Span) {
        self.counts[class(span.0)] += 1;
        self.count += 1;
        self.max = self.max.max(span);
    }

    /// Returns the quantile of this many thousandths: at most an eighth above the exact value, or at most 8 ns where that is
    /// below 8 ns. Zero without spans.
    fn quantile(&self, thousandths: u64) -> Span {
        let rank = (self.count * thousandths).div_ceil(1000).max(1);
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && self.count > 0 {
                return Span(end_of(class)).min(self.max);
            }
        }
        Span::ZERO
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "count": self.count,
            "p50_ns": self.quantile(500).0,
            "p99_ns": self.quantile(990).0,
            "max_ns": self.max.0,
        })
    }
}

fn class(value: u64) -> usize {
    let value = value.max(8);
    let power = value.ilog2();
    let fine = (value >> (power - 3)) & 7;
    power as usize * CLASSES + usize::try_from(fine).unwrap_or_default()
}

/// Returns the largest value of a class.
fn end_of(class: usize) -> u64 {
    let (power, fine) = (class / CLASSES, (class % CLASSES) as u64);
    if power < 3 {
        return 8;
    }
    let end = (u128::from(8 + fine + 1) << (power - 3)) - 1;
    u64::try_from(end).unwrap_or(u64::MAX)
}

/// Busy time of a unit.
#[derive(Clone, Debug, Default)]
struct Busy {
    /// Most recent busy intervals, at most [`STRETCHES`], disjoint and in ascending order. A further one is joined with those
    /// that end at its begin or later.
    stretches: VecDeque<(Time, Time)>,
    nanoseconds: u64,
}

/// Number of intervals kept. An entry that began before all of them counts forgotten ones twice.
const STRETCHES: usize = 4096;

/// Busy time of a unit at its last query.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at: Time,
    sms: u64,
    memory: u64,
    answer: [u64; 2],
}

/// Counters of the server; see the [module](self).
#[derive(Debug)]
pub(crate) struct Statistics {
    /// Time of publication minus time due, for everything a client waited for.
    pub(crate) lag: Spans,
    /// Time by which late commands arrived behind the timeline.
    pub(crate) late: Spans,
    pub(crate) commands: u64,
    pub(crate) faults: u64,
    /// Number of clients disconnected because of a malformed message or ring.
    pub(crate) nonsense: u64,
    /// Number of processes which have called each unsupported function.
    pub(crate) unsupported: BTreeMap<String, u64>,
    /// Number of processes which have launched each kernel whose result is not computed.
    pub(crate) modelled: BTreeMap<String, u64>,
    pub(crate) ledger_is_broken: bool,
    /// Set when processes or memory changed, so that the loop soon runs again.
    pub(crate) has_news: bool,
    first_memory_link: u32,
    sms: Vec<Busy>,
    memory: Vec<Busy>,
    samples: Vec<Sample>,
    millisms_ns: HashMap<ProcessId, u64>,
    since: Time,
    /// Stolen time of the machine's cores when the server started, in nanoseconds.
    steal_before: u64,
}

/// Shortest length of a utilization sample.
const SAMPLE: Span = Span::from_millis(100);

impl Statistics {
    /// Creates counters for this many units and links; the last links are the units' own memory.
    pub(crate) fn new(units: usize, links: usize) -> Self {
        Self {
            first_memory_link: u32::try_from(links.saturating_sub(units)).unwrap_or(u32::MAX),
            lag: Spans::default(),
            late: Spans::default(),
            commands: 0,
            faults: 0,
            nonsense: 0,
            unsupported: BTreeMap::new(),
            modelled: BTreeMap::new(),
            ledger_is_broken: false,
            has_news: false,
            sms: vec![Busy::default(); units],
            memory: vec![Busy::default(); units],
            samples: vec![
                Sample {
                    at: clock::now(),
                    ..Sample::default()
                };
                units
            ],
            millisms_ns: HashMap::new(),
            since: clock::now(),
            steal_before: steal(),
        }
    }

    /// Counts an entry of the ledger.
    pub(crate) fn count(&mut self, entry: &Entry) {
        match entry.resource {
            Resource::Sms { unit } => {
                let used = self.millisms_ns.entry(entry.process).or_default();
                *used = used.saturating_add(entry.amount.saturating_mul(entry.span().0));
                busy(&mut self.sms, unit, entry);
            }
            // The last links are the units' own memory.
            Resource::Link { link } => {
                if let Some(unit) = link.checked_sub(self.first_memory_link) {
                    busy(&mut self.memory, unit, entry);
                }
            }
            Resource::Memory { .. } => {}
        }
    }

    /// Returns the SM-nanoseconds of a process, in thousandths of SMs.
    pub(crate) fn millisms_ns(&self, process: ProcessId) -> u64 {
        self.millisms_ns.get(&process).copied().unwrap_or(0)
    }

    /// Removes processes that are gone.
    pub(crate) fn forget(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.millisms_ns.retain(|process, _| is_there(*process));
    }

    /// Returns the busy time of a unit's SMs and memory, in millionths of the last sample.
    pub(crate) fn utilisation(&mut self, unit: u32) -> [u64; 2] {
        let unit = unit as usize;
        let (Some(sample), Some(sms), Some(memory)) = (
            self.samples.get_mut(unit),
            self.sms.get(unit),
            self.memory.get(unit),
        ) else {
            return [0, 0];
        };
        let now = clock::now();
        let span = now.since(sample.at);
        if span >= SAMPLE {
            let part =
                |busy: u64| (u128::from(busy) * 1_000_000 / u128::from(span.0)).min(1_000_000);
            let part = |busy| u64::try_from(part(busy)).unwrap_or(1_000_000);
            sample.answer = [
                part(sms.nanoseconds - sample.sms),
                part(memory.nanoseconds - sample.memory),
            ];
            (sample.at, sample.sms, sample.memory) = (now, sms.nanoseconds, memory.nanoseconds);
        }
        sample.answer
    }

    pub(crate) fn json(&self, clients: usize, scale: (u32, u32)) -> String {
        let statistics = json!({
            "clients": clients,
            "commands": self.commands,
            "faults": self.faults,
            "lag": self.lag.json(),
            "late": self.late.json(),
            "ledger_is_whole": !self.ledger_is_broken,
            "nonsense": self.nonsense,
            "run_delay_ns": run_delay(),
            "scale": {"bytes": scale.1, "time": scale.0},
            "steal_ns": steal().saturating_sub(self.steal_before),
            "unsupported": self.unsupported,
            "modelled": self.modelled,
            "uptime_ns": clock::now().since(self.since).0,
        });
        statistics.to_string()
    }
}

fn busy(of: &mut [Busy], unit: u32, entry: &Entry) {
    let Some(busy) = of.get_mut(unit as usize) else {
        return;
    };
    let (mut from, mut to) = (entry.from, entry.to);
    while let Some(&(begin, end)) = busy.stretches.back() {
        if end < from {
            break;
        }
        busy.stretches.pop_back();
        busy.nanoseconds -= end.since(begin).0;
        (from, to) = (from.min(begin), to.max(end));
    }
    busy.nanoseconds += to.since(from).0;
    busy.stretches.push_back((from, to));
    if busy.stretches.len() > STRETCHES {
        busy.stretches.pop_front();
    }
}

/// Returns the time in ns for which this process was runnable but did not run.
fn run_delay() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let second = text.split_whitespace().nth(1);
    second.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns the time in ns for which the machine's cores were stolen by its host.
fn steal() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks = line
        .split_whitespace()
        .nth(8)
        .and_then(|word| word.parse::<u64>().ok());
    // The kernel counts in ticks of 1/100 s.
    ticks.unwrap_or(0) * 10_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_exceed_exact_ones_by_at_most_an_eighth() {
        let mut spans = Spans::default();
        assert_eq!(spans.quantile(500), Span::ZERO);
        for n in 1..=10_000 {
            spans.add(Span(n * 100));
        }
        for (thousandths, exact) in [(500, 500_000), (990, 990_000), (1000, 1_000_000)] {
            let found = spans.quantile(thousandths).0;
            assert!(
                found >= exact && found <= exact + exact / 8 + 1,
                "{found} for {exact}"
            );
        }
        spans.add(Span(u64::MAX));
        assert_eq!(spans.quantile(1000), Span(u64::MAX));
    }

    #[test]
    fn overlapping_intervals_are_counted_once() {
        let mut busy_of = vec![Busy::default()];
        let entry = |from, to| Entry {
            resource: Resource::Sms { unit: 0 },
            process: ProcessId(0),
            work: None,
            amount: 1,
            from: Time(from),
            to: Time(to),
        };
        for (from, to) in [(0, 10), (5, 12), (6, 8), (20, 30), (30, 31)] {
            busy(&mut busy_of, 0, &entry(from, to));
        }
        assert_eq!(busy_of[0].nanoseconds, 23);
        // An interval that spans all earlier ones and ends last.
        busy(&mut busy_of, 0, &entry(0, 100));
        assert_eq!(busy_of[0].nanoseconds, 100);
    }
}
