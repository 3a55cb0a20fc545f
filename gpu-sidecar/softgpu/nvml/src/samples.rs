//! What processes used between two looks at them.

use std::collections::{BTreeMap, VecDeque};

use device::Time;
use softgpu_wire::message::ProcessLine;

/// Between two looks, at least: what is used within less says little.
const PERIOD: u64 = 100_000_000;
/// Looks that are kept, the latest ones.
const KEPT: usize = 120;

/// The share that a process had of a unit between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) pid: u32,
    /// When it was looked, in microseconds since 1970.
    pub(crate) time: u64,
    pub(crate) percent: u32,
}

/// The looks at one unit.
#[derive(Debug, Default)]
pub(crate) struct History {
    last: Option<(Time, BTreeMap<u32, u64>)>,
    shares: VecDeque<Vec<Share>>,
}

impl History {
    /// A look, at `now`, which is `micros` by the calendar, at a unit with so many SMs. Nothing is known before the second.
    pub(crate) fn look(&mut self, now: Time, micros: u64, sms: u32, lines: &[ProcessLine]) {
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
            if self.shares.len() > KEPT {
                self.shares.pop_front();
            }
        }
        self.last = Some((now, used));
    }

    /// The latest share of each process, if it is later than `micros`.
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
    fn shares_are_of_the_time_between_two_looks() {
        let mut history = History::default();
        history.look(Time(0), 1_000, 10, &[line(1, 500)]);
        assert_eq!(history.since(0), []);
        // A quarter of ten SMs for 200 ms, and another process that began in between.
        let quarter = 200_000_000 * 10 * 1_000 / 4;
        history.look(
            Time(200_000_000),
            2_000,
            10,
            &[line(1, 500 + quarter), line(2, quarter * 2)],
        );
        let share = |pid, time, percent| Share { pid, time, percent };
        assert_eq!(history.since(0), [share(1, 2_000, 25), share(2, 2_000, 50)]);
        assert_eq!(history.since(2_000), []);
        // Too early to look again.
        history.look(Time(250_000_000), 3_000, 10, &[line(1, u64::MAX)]);
        assert_eq!(history.since(2_000), []);
        // A server that was started anew counts from nothing.
        history.look(Time(400_000_000), 4_000, 10, &[line(1, 0)]);
        assert_eq!(history.since(2_000), [share(1, 4_000, 0)]);
        assert_eq!(history.since(0), [share(1, 4_000, 0), share(2, 2_000, 50)]);
    }
}
