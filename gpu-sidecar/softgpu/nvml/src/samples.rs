//! Utilization of a unit by process, between two samples.

use std::collections::{BTreeMap, VecDeque};

use device::Time;
use softgpu_wire::message::ProcessLine;

/// Shortest time between two samples, in nanoseconds.
const PERIOD: u64 = 100_000_000;
/// Largest number of samples kept, the latest ones.
const SAMPLES_MAX: usize = 120;

/// Share of a process in a unit between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) pid: u32,
    /// Time of the later sample, in microseconds since 1970.
    pub(crate) time: u64,
    /// Share of all the unit's SMs, in percent.
    pub(crate) percent: u32,
}

/// Samples of one unit.
#[derive(Debug, Default)]
pub(crate) struct History {
    last: Option<(Time, BTreeMap<u32, u64>)>,
    shares: VecDeque<Vec<Share>>,
}

impl History {
    /// Takes a sample at `now`, which is `micros` in wall-clock time, of a unit with `sms` SMs. Shares are known from
    /// the second sample on.
    pub(crate) fn sample(&mut self, now: Time, micros: u64, sms: u32, lines: &[ProcessLine]) {
        if let Some((before, _)) = &self.last
            && now.0.saturating_sub(before.0) < PERIOD
        {
            return;
        }
        let used = lines.iter().map(|line| (line.pid, line.millisms_ns));
        let used: BTreeMap<_, _> = used.collect();
        if let Some((before, used_before)) = &self.last {
            let all = u128::from(now.0 - before.0) * u128::from(sms) * 1_000;
            let share = |(&pid, &own): (&u32, &u64)| {
                let since = own.saturating_sub(used_before.get(&pid).copied().unwrap_or_default());
                let percent = u128::from(since) * 100 / all.max(1);
                Share {
                    pid,
                    time: micros,
                    percent: u32::try_from(percent).unwrap_or(100).min(100),
                }
            };
            self.shares.push_back(used.iter().map(share).collect());
            if self.shares.len() > SAMPLES_MAX {
                self.shares.pop_front();
            }
        }
        self.last = Some((now, used));
    }

    /// Returns the latest share of each process that is later than `micros`.
    pub(crate) fn since(&self, micros: u64) -> Vec<Share> {
        let mut latest = BTreeMap::new();
        for share in self.shares.iter().flatten() {
            if share.time > micros {
                latest.insert(share.pid, *share);
            }
        }
        latest.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pid: u32, millisms_ns: u64) -> ProcessLine {
        ProcessLine {
            pid,
            millisms_ns,
            ..ProcessLine::default()
        }
    }

    #[test]
    fn shares_relate_to_the_time_between_two_samples() {
        let mut history = History::default();
        history.sample(Time(0), 1_000, 10, &[line(1, 500)]);
        assert_eq!(history.since(0), []);
        // A quarter of ten SMs for 200 ms, and another process which began in between.
        let quarter = 200_000_000 * 10 * 1_000 / 4;
        history.sample(
            Time(200_000_000),
            2_000,
            10,
            &[line(1, 500 + quarter), line(2, quarter * 2)],
        );
        let share = |pid, time, percent| Share { pid, time, percent };
        assert_eq!(history.since(0), [share(1, 2_000, 25), share(2, 2_000, 50)]);
        assert_eq!(history.since(2_000), []);
        // Too early for another sample.
        history.sample(Time(250_000_000), 3_000, 10, &[line(1, u64::MAX)]);
        assert_eq!(history.since(2_000), []);
        // A restarted server counts from zero.
        history.sample(Time(400_000_000), 4_000, 10, &[line(1, 0)]);
        assert_eq!(history.since(2_000), [share(1, 4_000, 0)]);
        assert_eq!(history.since(0), [share(1, 4_000, 0), share(2, 2_000, 50)]);
    }
}
