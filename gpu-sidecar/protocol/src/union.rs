//! Union of time intervals that may overlap and arrive in any order.

use std::collections::VecDeque;

/// Largest number of recent intervals that are kept to subtract overlaps. Measurements arrive within milliseconds, so that
/// an older interval does not overlap a new one.
const REMEMBERED: usize = 256;

/// The union of time intervals, in nanoseconds.
#[derive(Debug, Default)]
pub struct Union {
    /// Recent intervals, sorted and disjoint.
    recent: VecDeque<(u64, u64)>,
    total: u64,
}

impl Union {
    /// Creates an empty union.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            recent: VecDeque::new(),
            total: 0,
        }
    }

    /// Returns the total length of the union, in nanoseconds.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Adds an interval, and returns the length of the part that was not covered before, in nanoseconds. An empty
    /// interval is ignored.
    pub fn add(&mut self, begin: u64, end: u64) -> u64 {
        if begin >= end {
            return 0;
        }
        let mut fresh = end - begin;
        // Merge the interval with those that it touches.
        let first = self.recent.partition_point(|&(_, ended)| ended < begin);
        let mut joined = (begin, end);
        let mut last = first;
        while let Some(&(from, to)) = self.recent.get(last) {
            if from > end {
                break;
            }
            let overlap = to.min(end).saturating_sub(from.max(begin));
            fresh = fresh.saturating_sub(overlap);
            joined = (joined.0.min(from), joined.1.max(to));
            last += 1;
        }
        self.recent.drain(first..last);
        self.recent.insert(first, joined);
        while self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
        self.total = self.total.saturating_add(fresh);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_count_once() {
        let mut union = Union::new();
        let fresh = [
            (0, 100),
            (50, 150),
            (200, 300),
            (0, 400),
            (399, 400),
            (9, 9),
        ]
        .map(|(begin, end)| union.add(begin, end));
        assert_eq!(fresh, [100, 50, 100, 150, 0, 0]);
        assert_eq!(union.total(), 400);
    }

    /// Compares the union with a bitmap that has a bit for every nanosecond.
    #[test]
    fn the_union_does_not_depend_on_the_order() {
        let mut seed = 7_u64;
        for _round in 0..2_000 {
            let mut union = Union::new();
            let mut bits = [false; 512];
            for _stretch in 0..20 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let begin = (seed >> 33) % 512;
                let end = (begin + (seed >> 50) % 60).min(512);
                let _fresh = union.add(begin, end);
                for bit in begin..end {
                    bits[usize::try_from(bit).expect("small")] = true;
                }
                let set = bits.iter().filter(|&&bit| bit).count();
                assert_eq!(union.total(), set as u64);
            }
        }
    }
}
