//! Free partitions and the runs that they form.

/// Set of free partitions, one bit each.
#[derive(Clone, Debug)]
pub(super) struct Vacancy {
    words: Vec<u64>,
    partitions: u32,
}

impl Vacancy {
    /// Creates a set in which all partitions are free.
    pub(super) fn all(partitions: u32) -> Self {
        let mut vacancy = Self {
            words: vec![0; partitions.div_ceil(64) as usize],
            partitions,
        };
        for at in 0..partitions {
            vacancy.set(at, true);
        }
        vacancy
    }

    pub(super) fn contains(&self, at: u32) -> bool {
        self.words[at as usize / 64] >> (at % 64) & 1 == 1
    }

    pub(super) fn set(&mut self, at: u32, free: bool) {
        let bit = 1 << (at % 64);
        let word = &mut self.words[at as usize / 64];
        if free {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// Returns the start of the shortest run of at least `length` partitions, the first of equal ones. O(partitions ÷
    /// 64 + runs).
    pub(super) fn best(&self, length: u32) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        for (start, run) in self.runs() {
            if run == length {
                return Some(start);
            }
            if run > length && best.is_none_or(|(_, shortest)| run < shortest) {
                best = Some((start, run));
            }
        }
        best.map(|(start, _)| start)
    }

    /// Returns the length of the longest run. O(partitions ÷ 64 + runs).
    pub(super) fn longest(&self) -> u32 {
        self.runs().map(|(_, run)| run).max().unwrap_or(0)
    }

    /// Iterates over the runs as pairs of start and length.
    fn runs(&self) -> impl Iterator<Item = (u32, u32)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.next(from, true);
            if start == self.partitions {
                return None;
            }
            from = self.next(start, false);
            Some((start, from - start))
        })
    }

    /// Returns the first partition at or after `from` that is free (or not free, as `free` says), or the number of
    /// partitions.
    fn next(&self, from: u32, free: bool) -> u32 {
        let mut at = from;
        while at < self.partitions {
            let word = self.words[at as usize / 64];
            let wanted = (if free { word } else { !word }) >> (at % 64);
            if wanted != 0 {
                return (at + wanted.trailing_zeros()).min(self.partitions);
            }
            at += 64 - at % 64;
        }
        self.partitions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_run_that_is_long_enough_is_taken() {
        let mut vacancy = Vacancy::all(200);
        for used in [10, 15, 60, 70, 197] {
            vacancy.set(used, false);
        }
        // 0–9, 11–14, 16–59, 61–69 across a word, 71–196, 198–199.
        let lengths: Vec<_> = vacancy.runs().collect();
        assert_eq!(
            lengths,
            [(0, 10), (11, 4), (16, 44), (61, 9), (71, 126), (198, 2)]
        );
        assert_eq!(vacancy.best(1), Some(198));
        assert_eq!(vacancy.best(3), Some(11));
        assert_eq!(vacancy.best(9), Some(61));
        assert_eq!(vacancy.best(45), Some(71));
        assert_eq!(vacancy.best(127), None);
        assert_eq!(vacancy.longest(), 126);
    }

    #[test]
    fn of_equal_runs_the_first_is_taken() {
        let mut vacancy = Vacancy::all(64);
        for used in [0, 20, 21, 41, 62] {
            vacancy.set(used, false);
        }
        assert_eq!(vacancy.best(19), Some(1));
        assert_eq!(vacancy.best(1), Some(63));
        vacancy.set(63, false);
        assert_eq!(vacancy.best(2), Some(1));
    }
}
