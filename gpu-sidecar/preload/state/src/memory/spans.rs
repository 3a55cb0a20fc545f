//! Free spans within a range of addresses. Operates on numbers only.
//!
//! A request takes the smallest sufficient span, and the lowest of equal ones, so that remainders are small and long spans stay
//! long. Adjacent spans are merged at once, so a range is one span again when everything is returned.

use std::collections::{BTreeMap, BTreeSet};

/// Free spans within a range of addresses.
#[derive(Debug, Default)]
pub struct Spans {
    /// Length of each free span, by its first address.
    by_begin: BTreeMap<u64, u64>,
    /// Length and first address of each free span, by length.
    by_length: BTreeSet<(u64, u64)>,
}

impl Spans {
    /// Creates a range which is one free span.
    #[must_use]
    pub fn new(begin: u64, bytes: u64) -> Self {
        let mut spans = Self::default();
        spans.insert(begin, bytes);
        spans
    }

    fn insert(&mut self, begin: u64, bytes: u64) {
        self.by_begin.insert(begin, bytes);
        self.by_length.insert((bytes, begin));
    }

    fn remove(&mut self, begin: u64, bytes: u64) {
        self.by_begin.remove(&begin);
        self.by_length.remove(&(bytes, begin));
    }

    /// Takes a span of this length, and returns its first address; `None` if no span is long enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        if bytes == 0 {
            return None;
        }
        let &(there, begin) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(begin, there);
        if there > bytes {
            self.insert(begin + bytes, there - bytes);
        }
        Some(begin)
    }

    /// Returns a taken span, or a part of one.
    pub fn give_back(&mut self, mut begin: u64, mut bytes: u64) {
        if let Some(&behind) = self.by_begin.get(&(begin + bytes)) {
            self.remove(begin + bytes, behind);
            bytes += behind;
        }
        let before = self.by_begin.range(..begin).next_back();
        if let Some((&at, &there)) = before
            && at + there == begin
        {
            self.remove(at, there);
            begin = at;
            bytes += there;
        }
        self.insert(begin, bytes);
    }

    /// Returns the length of the longest free span.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.by_length.last().map_or(0, |&(bytes, _)| bytes)
    }

    #[cfg(test)]
    fn free_bytes(&self) -> u64 {
        self.by_begin.values().sum()
    }

    #[cfg(test)]
    fn stretches(&self) -> Vec<(u64, u64)> {
        self.by_begin
            .iter()
            .map(|(&at, &bytes)| (at, bytes))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use testing::Random;

    use super::*;

    /// Reference model with one flag per unit.
    struct Naive {
        begin: u64,
        taken: Vec<bool>,
    }

    impl Naive {
        fn stretches(&self) -> Vec<(u64, u64)> {
            let mut found = Vec::new();
            let mut at = 0;
            while at < self.taken.len() {
                let length = self.taken[at..].iter().take_while(|taken| !**taken).count();
                if length > 0 {
                    found.push((self.begin + at as u64, length as u64));
                }
                at += length.max(1);
            }
            found
        }

        fn take(&mut self, bytes: u64) -> Option<u64> {
            let fitting = self.stretches().into_iter();
            let best = fitting
                .filter(|(_, there)| *there >= bytes)
                .min_by_key(|&(at, there)| (there, at))?;
            self.mark(best.0, bytes, true);
            Some(best.0)
        }

        fn mark(&mut self, at: u64, bytes: u64, taken: bool) {
            for unit in at - self.begin..at - self.begin + bytes {
                let mark = &mut self.taken[usize::try_from(unit).unwrap()];
                assert_ne!(*mark, taken, "the range is taken or free already");
                *mark = taken;
            }
        }
    }

    #[test]
    fn spans_agree_with_a_naive_model() {
        let mut random = Random(7);
        for round in 0..20 {
            let begin = 1_000_000 * round;
            let mut spans = Spans::new(begin, 500);
            let mut naive = Naive {
                begin,
                taken: vec![false; 500],
            };
            let mut held = Vec::new();
            for _ in 0..600 {
                if random.below(3) > 0 || held.is_empty() {
                    let bytes = 1 + random.below(40);
                    let at = spans.take(bytes);
                    assert_eq!(at, naive.take(bytes));
                    held.extend(at.map(|at| (at, bytes)));
                } else {
                    let which = usize::try_from(random.below(held.len() as u64)).unwrap();
                    let (at, bytes) = held.swap_remove(which);
                    spans.give_back(at, bytes);
                    naive.mark(at, bytes, false);
                }
                assert_eq!(spans.stretches(), naive.stretches());
                let longest = naive.stretches().iter().map(|(_, there)| *there).max();
                assert_eq!(spans.longest(), longest.unwrap_or(0));
            }
            for (at, bytes) in held {
                spans.give_back(at, bytes);
            }
            assert_eq!(spans.stretches(), [(begin, 500)]);
        }
    }

    /// Addresses of four times the device's memory suffice, however the memory is fragmented: sizes from one granule to a quarter
    /// of the device, most of them small, with the device full all the time.
    #[test]
    fn a_full_device_finds_addresses_in_a_range_of_four_times_its_size() {
        const DEVICE: u64 = 4096;
        for seed in 1..=8 {
            let mut random = Random(seed * 7919);
            let mut spans = Spans::new(1 << 40, 4 * DEVICE);
            let mut held: Vec<(u64, u64)> = Vec::new();
            let mut used = 0;
            for _ in 0..30_000 {
                let scale = random.below(11);
                let bytes = 1 + random.below(1 << scale);
                while used + bytes > DEVICE {
                    let which = usize::try_from(random.below(held.len() as u64)).unwrap();
                    let (at, bytes) = held.swap_remove(which);
                    used -= bytes;
                    spans.give_back(at, bytes);
                }
                held.push((spans.take(bytes).expect("a free span"), bytes));
                used += bytes;
            }
            assert_eq!(spans.free_bytes(), 4 * DEVICE - used);
        }
    }

    #[test]
    fn empty_and_oversized_requests_are_refused() {
        let mut spans = Spans::new(8, 8);
        assert_eq!(spans.take(0), None);
        assert_eq!(spans.take(9), None);
        assert_eq!(spans.take(8), Some(8));
        assert_eq!(spans.take(1), None);
        assert_eq!(spans.longest(), 0);
    }
}
