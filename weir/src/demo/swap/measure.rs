//! What the device's ledger shows of a run: where models were, when kernels ran, and what waited meanwhile.

use std::collections::BTreeMap;

use softgpu::ledger::{Entry, Ledger};
use softgpu_wire::ledger::LineKind;

/// A stretch of time, in ns.
pub(super) type Stretch = (u64, u64);

/// A request that was computed; times in ns since the begin of the ledger.
#[derive(Debug, Clone, Copy)]
pub(super) struct Computation {
    pub(super) function: usize,
    /// Time at which it was due to be sent.
    pub(super) due: u64,
    /// Time at which its server had read it, and at which the answer was made.
    pub(super) read: u64,
    pub(super) answered: u64,
    /// PID of its server.
    pub(super) pid: u32,
}

/// An instance of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Server {
    pub(super) function: usize,
    /// Number of its GPU.
    pub(super) gpu: u32,
    /// Size of its model on the device, scaled, in bytes.
    pub(super) bytes: u64,
}

/// Measurements of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measurement {
    /// Number of models which came to a device.
    pub(super) loads: u64,
    /// Number of requests whose model came for them.
    pub(super) swapped: u64,
    /// Share of the GPUs' time in which no kernel ran, although a request waited whose model was there.
    pub(super) idle_while_waiting: f64,
    /// Variance of the shares of time in which kernels ran on each GPU, divided by the largest (M2.20).
    pub(super) load_variance: f64,
    /// Number of kernels that began while one of another process ran on the same GPU.
    pub(super) overlaps: u64,
    /// Of each function: time and number of requests whose model was there, from the first kernel to the end of the last one, and of those whose
    /// model came for them, from the creation of its first memory; in ns.
    pub(super) times: BTreeMap<usize, [(u64, u64); 2]>,
}

/// One process's part of the ledger.
#[derive(Debug, Default)]
struct Track {
    kernels: Vec<Stretch>,
    /// Memory held: stretch, and bytes.
    memory: Vec<(Stretch, u64)>,
    /// Copies to the device: stretch, and bytes.
    copies: Vec<(Stretch, u64)>,
}

/// A stay of a model on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stay {
    /// Time at which its first memory was created.
    begin: u64,
    /// Time at which all of it had been copied.
    complete: u64,
    end: u64,
}

/// Evaluates the ledger of a run within `span`. `servers`: by PID.
pub(super) fn measure(
    ledger: &Ledger,
    span: Stretch,
    gpus: u32,
    servers: &BTreeMap<u32, Server>,
    requests: &[Computation],
) -> Measurement {
    let tracks = tracks(ledger, gpus);
    let stays: BTreeMap<u32, Vec<Stay>> = servers
        .iter()
        .map(|(pid, server)| {
            let stays = tracks.get(pid).map(|track| track.stays(server.bytes));
            (*pid, stays.unwrap_or_default())
        })
        .collect();
    let is_within = |at: u64| span.0 <= at && at < span.1;
    let begun = |stays: &Vec<Stay>| stays.iter().filter(|stay| is_within(stay.begin)).count();
    let loads = stays.values().map(begun).sum::<usize>();
    let mut times: BTreeMap<usize, [(u64, u64); 2]> = BTreeMap::new();
    let mut swapped = 0;
    for request in requests {
        let Some(track) = tracks.get(&request.pid) else {
            continue;
        };
        let load = stays
            .get(&request.pid)
            .into_iter()
            .flatten()
            .find(|stay| (request.due..request.answered).contains(&stay.begin));
        swapped += u64::from(load.is_some());
        if let Some((first, last)) = track.ran_within((request.read, request.answered)) {
            let begin = load.map_or(first, |stay| stay.begin);
            let own = &mut times.entry(request.function).or_default()[usize::from(load.is_some())];
            *own = (own.0 + last.saturating_sub(begin), own.1 + 1);
        }
    }
    let mut kernels: BTreeMap<u32, Vec<(u64, u64, usize)>> = BTreeMap::new();
    for entry in &ledger.entries {
        if let LineKind::Sms(gpu) = entry.kind
            && is_within(entry.from)
        {
            let own = kernels.entry(gpu).or_default();
            own.push((entry.from, entry.to, entry.process));
        }
    }
    let mut idle = 0;
    let mut shares = Vec::new();
    let length = span.1.saturating_sub(span.0).max(1);
    for gpu in 0..gpus {
        let own = kernels.get(&gpu).into_iter().flatten();
        let ran = union(
            own.map(|(from, to, _)| (*from, (*to).min(span.1)))
                .collect(),
        );
        shares.push(float(ran.iter().map(|(from, to)| to - from).sum()) / float(length));
        let mut waits = Vec::new();
        for request in requests {
            let of_function = servers
                .iter()
                .filter(|(_, server)| server.function == request.function && server.gpu == gpu);
            for stay in of_function.flat_map(|(pid, _)| &stays[pid]) {
                let (from, to) = (request.due.max(stay.complete), request.read.min(stay.end));
                if from < to {
                    waits.push((from, to));
                }
            }
        }
        idle += without(&union(waits), &ran);
    }
    Measurement {
        loads: loads as u64,
        swapped,
        idle_while_waiting: float(idle) / (float(length) * f64::from(gpus)),
        load_variance: variance(&shares),
        overlaps: kernels.into_values().map(overlaps_of).sum(),
        times,
    }
}

/// Returns the tracks of all processes, by PID.
fn tracks(ledger: &Ledger, gpus: u32) -> BTreeMap<u32, Track> {
    let mut tracks: BTreeMap<u32, Track> = BTreeMap::new();
    for entry in &ledger.entries {
        let pid = ledger.processes[entry.process].pid;
        let track = tracks.entry(pid).or_default();
        let stretch = (entry.from, entry.to);
        match entry.kind {
            LineKind::Sms(_) => track.kernels.push(stretch),
            LineKind::Memory(_) => track.memory.push((stretch, entry.amount)),
            // Links to and from each GPU have the first numbers, in turn.
            LineKind::Link(link) if link < 2 * gpus && link % 2 == 0 => {
                track.copies.push((stretch, bytes(entry)));
            }
            LineKind::Link(_) | LineKind::Process(_) => {}
        }
    }
    for track in tracks.values_mut() {
        track.kernels.sort_unstable();
        track.memory.sort_unstable();
        track.copies.sort_unstable();
    }
    tracks
}

fn bytes(entry: &Entry) -> u64 {
    let bytes = u128::from(entry.amount) * u128::from(entry.to - entry.from) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn float(number: u64) -> f64 {
    number as f64
}

impl Track {
    /// Returns the stays of a model of this size on the device.
    fn stays(&self, bytes: u64) -> Vec<Stay> {
        // What the process holds without its model: at first, its context.
        let amounts = self.memory.iter().map(|(_, amount)| *amount);
        let least = amounts.filter(|amount| *amount > 0).min().unwrap_or(0);
        let mut stays: Vec<Stay> = Vec::new();
        let mut is_there = false;
        let mut rises_at = 0;
        // Whether the next larger amount is the first of a stay: nothing of the model is there, or no more than what is kept on the device for its moves.
        let mut is_low = true;
        let mut before = (0, 0);
        for &((from, to), amount) in &self.memory {
            if is_low && amount > before.1 || from > before.0 {
                rises_at = from;
            }
            is_low = amount <= least || amount < before.1 || is_low && amount == before.1;
            before = (to, amount);
            let is_here = amount.saturating_sub(least) >= bytes / 2;
            match stays.last_mut() {
                Some(stay) if is_here && is_there => stay.end = to,
                _ if is_here => stays.push(Stay {
                    begin: rises_at,
                    complete: from,
                    end: to,
                }),
                _ => {}
            }
            is_there = is_here;
        }
        for stay in &mut stays {
            let first = self
                .copies
                .partition_point(|((from, _), _)| *from < stay.begin);
            let mut copied = 0;
            for ((_, to), own) in &self.copies[first..] {
                copied += own;
                if copied >= bytes / 10 * 9 || *to > stay.end {
                    stay.complete = (*to).max(stay.complete).min(stay.end);
                    break;
                }
            }
        }
        stays
    }

    /// Returns the begin of the first kernel and the end of the last one that ran within a span.
    fn ran_within(&self, span: Stretch) -> Option<Stretch> {
        let first = self.kernels.partition_point(|(from, _)| *from < span.0);
        let own = self.kernels[first..].iter();
        let own = own.take_while(|(_, to)| *to <= span.1);
        let begin = self.kernels.get(first).filter(|(_, to)| *to <= span.1)?.0;
        Some((begin, own.map(|(_, to)| *to).max()?))
    }
}

/// Returns stretches as disjoint ones, in order.
fn union(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_unstable();
    let mut disjoint: Vec<Stretch> = Vec::with_capacity(stretches.len());
    for (from, to) in stretches {
        match disjoint.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => disjoint.push((from, to)),
        }
    }
    disjoint
}

/// Returns the length of what is in `stretches` and not in `others`, both disjoint and in order.
fn without(stretches: &[Stretch], others: &[Stretch]) -> u64 {
    let mut left = 0;
    let mut at = 0;
    for &(from, to) in stretches {
        while others.get(at).is_some_and(|other| other.1 <= from) {
            at += 1;
        }
        let mut begin = from;
        for other in others[at..].iter().take_while(|other| other.0 < to) {
            left += other.0.saturating_sub(begin);
            begin = begin.max(other.1);
        }
        left += to.saturating_sub(begin);
    }
    left
}

/// Returns the variance of shares, each divided by the largest.
fn variance(shares: &[f64]) -> f64 {
    let largest = shares.iter().copied().fold(0.0, f64::max);
    if largest <= 0.0 {
        return 0.0;
    }
    let count = float(shares.len() as u64);
    let mean = shares.iter().map(|share| share / largest).sum::<f64>() / count;
    let squares = shares.iter().map(|share| (share / largest - mean).powi(2));
    squares.sum::<f64>() / count
}

/// Returns the number of kernels, as (begin, end, process), that begin before the end of one of another process.
fn overlaps_of(mut kernels: Vec<(u64, u64, usize)>) -> u64 {
    kernels.sort_unstable();
    let mut overlaps = 0;
    // The process whose kernel ends last, its end, and the latest end of any other.
    let (mut last, mut ends, mut others_end) = (usize::MAX, 0, 0);
    for (from, to, process) in kernels {
        let before = if process == last { others_end } else { ends };
        overlaps += u64::from(from < before);
        if process == last {
            ends = ends.max(to);
        } else if to >= ends {
            (others_end, ends, last) = (ends, to, process);
        } else {
            others_end = others_end.max(to);
        }
    }
    overlaps
}

#[cfg(test)]
mod tests {
    use softgpu::ledger::Process;

    use super::*;

    #[test]
    fn kernels_of_one_process_overlap_nothing_and_those_of_two_do() {
        assert_eq!(overlaps_of(vec![(0, 5, 1), (2, 4, 1), (5, 6, 2)]), 0);
        assert_eq!(overlaps_of(vec![(0, 5, 1), (4, 6, 2), (6, 7, 1)]), 1);
        // The first ends last.
        assert_eq!(
            overlaps_of(vec![(0, 9, 1), (1, 2, 2), (3, 4, 2), (9, 10, 2)]),
            2
        );
        assert_eq!(overlaps_of(vec![(0, 9, 1), (1, 8, 2), (5, 6, 1)]), 2);
    }

    #[test]
    fn a_model_is_there_from_its_last_byte_to_the_release_of_its_memory() {
        let track = Track {
            kernels: vec![(10, 20), (22, 30), (60, 65)],
            memory: vec![
                ((0, 5), 8),
                ((5, 40), 108),
                ((40, 41), 58),
                ((41, 50), 28),
                ((50, 51), 29),
                ((51, 52), 58),
                ((52, 90), 108),
            ],
            copies: vec![((6, 9), 100), ((51, 55), 60), ((55, 60), 40)],
        };
        let stay = |begin, complete, end| Stay {
            begin,
            complete,
            end,
        };
        assert_eq!(track.stays(100), [stay(5, 9, 41), stay(50, 60, 90)]);
        assert_eq!(track.ran_within((9, 31)), Some((10, 30)));
        assert_eq!(track.ran_within((31, 40)), None);
    }

    #[test]
    fn lengths_are_those_of_what_is_in_none_of_the_others() {
        let all = union(vec![(8, 20), (0, 5), (4, 6), (30, 31)]);
        assert_eq!(all, [(0, 6), (8, 20), (30, 31)]);
        assert_eq!(without(&all, &[]), 19);
        assert_eq!(without(&all, &[(2, 9), (15, 16), (19, 40)]), 2 + 6 + 3);
        assert_eq!(without(&[], &all), 0);
    }

    #[test]
    fn the_variance_is_that_of_shares_of_the_largest() {
        assert!((variance(&[0.2, 0.4]) - 0.0625).abs() < 1e-9);
        assert!(variance(&[0.3, 0.3, 0.3]).abs() < 1e-9);
        assert!(variance(&[0.0, 0.0]).abs() < 1e-9);
    }

    /// Two GPUs with a process each; the second process's model comes for its request.
    #[test]
    fn a_slot_idles_while_the_request_of_a_model_that_is_there_waits() {
        let entry = |kind, process, amount, from, to| Entry {
            kind,
            process,
            amount,
            from,
            to,
            command: None,
        };
        let ledger = Ledger {
            processes: vec![Process { pid: 7, unit: 0 }, Process { pid: 8, unit: 1 }],
            entries: vec![
                entry(LineKind::Memory(0), 0, 10, 0, 10),
                entry(LineKind::Memory(0), 0, 110, 10, 1_000),
                entry(LineKind::Memory(1), 1, 10, 0, 500),
                entry(LineKind::Link(2), 1, 1_000_000_000, 500, 600),
                entry(LineKind::Memory(1), 1, 110, 500, 1_000),
                entry(LineKind::Sms(0), 0, 1, 300, 400),
                entry(LineKind::Sms(1), 1, 1, 600, 700),
            ],
            ..Ledger::default()
        };
        let server = |function, gpu| Server {
            function,
            gpu,
            bytes: 100,
        };
        let servers = BTreeMap::from([(7, server(0, 0)), (8, server(1, 1))]);
        let request = |function, pid, due, read, answered| Computation {
            function,
            due,
            read,
            answered,
            pid,
        };
        let requests = [request(0, 7, 200, 290, 410), request(1, 8, 450, 590, 710)];
        let measured = measure(&ledger, (100, 1_100), 2, &servers, &requests);
        assert_eq!(
            (measured.loads, measured.swapped, measured.overlaps),
            (1, 1, 0)
        );
        // 90 of 2,000 GPU-ns: the second one's model was not there while it waited.
        assert!((measured.idle_while_waiting - 0.045).abs() < 1e-9);
        assert!(measured.load_variance.abs() < 1e-9);
        let times = [[(100, 1), (0, 0)], [(0, 0), (200, 1)]];
        assert_eq!(
            measured.times,
            BTreeMap::from([(0, times[0]), (1, times[1])])
        );
    }
}
