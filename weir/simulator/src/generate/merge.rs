//! Merges the ordered arrivals of many functions into one order.

use policy::{Span, Time};

/// Target number of arrivals in a block for each function: each block visits all functions, so larger blocks cost less
/// for each arrival.
const PER_FUNCTION: usize = 2;
/// Least target size of a block, in arrivals, however few functions there are.
const BLOCK_MIN: usize = 256;
/// Time that the first block covers; the length of later blocks adapts to the number of arrivals.
const FIRST: Span = Span::from_millis(1);

/// Arrivals of all functions in the order of time; of equal times, in the order of functions.
///
/// Function `n` is the `n`-th of the iterators, each of which yields its arrivals in order. Arrivals are taken in blocks: all
/// of a stretch of time, function by function, which are then sorted. Each function's state is thus fetched once per block and
/// in the order of memory, which with many functions costs much less than fetching it for each arrival. An
/// arrival costs O(log functions) and the next one of its function. Memory is 136 bytes for each function while rates
/// change slowly; where all rates rise at once, arrivals that were taken too early are buffered in addition.
#[derive(Debug, Clone)]
pub struct Merged<I> {
    functions: Vec<I>,
    /// For each function, the first arrival that no block has taken yet; [`Time::NEVER`] if there is none.
    next: Vec<Time>,
    /// Current block in order; the first `given` arrivals have been returned.
    block: Vec<(Time, u32)>,
    given: usize,
    /// Arrivals of later blocks, taken before the current block was shortened.
    later: Vec<(Time, u32)>,
    /// Stretch of time that the next block covers.
    length: Span,
    size: usize,
}

impl<I: Iterator<Item = Time>> Merged<I> {
    /// Takes the first arrival of every function. Functions past 2³² are dropped.
    pub fn new(mut functions: Vec<I>) -> Self {
        functions.truncate(usize::try_from(u32::MAX).unwrap_or(usize::MAX));
        let next = functions
            .iter_mut()
            .map(|own| own.next().unwrap_or(Time::NEVER))
            .collect();
        let size = (PER_FUNCTION * functions.len()).max(BLOCK_MIN);
        Self {
            functions,
            next,
            block: Vec::with_capacity(2 * size),
            given: 0,
            later: Vec::with_capacity(2 * size),
            length: FIRST,
            size,
        }
    }

    /// Reads the next block; leaves it empty when no arrivals remain.
    fn read(&mut self) {
        self.block.clear();
        self.given = 0;
        let waiting = self.later.iter().map(|&(at, _)| at);
        let Some(from) = self.next.iter().copied().chain(waiting).min() else {
            return;
        };
        let mut until = from.after(self.length);
        self.move_later(until);
        for function in 0..self.functions.len() {
            while self.next[function] < until {
                if self.block.len() >= 2 * self.size {
                    until = self.cut(from, until);
                    continue;
                }
                #[expect(clippy::cast_possible_truncation, reason = "no more are kept")]
                self.block.push((self.next[function], function as u32));
                let next = self.functions[function].next();
                self.next[function] = next.unwrap_or(Time::NEVER);
            }
        }
        self.block.sort_unstable();
        if self.block.len() < self.size / 2 {
            self.length = Span(self.length.0.saturating_mul(2));
        }
    }

    /// Moves buffered arrivals before `until` into the block.
    fn move_later(&mut self, until: Time) {
        let block = &mut self.block;
        self.later.retain(|&(at, function)| {
            let waits = at >= until;
            if !waits {
                block.push((at, function));
            }
            waits
        });
    }

    /// Shortens the block and returns its new end. Arrivals of the same instant stay together.
    fn cut(&mut self, from: Time, until: Time) -> Time {
        self.length = Span((until.since(from).0 / 2).max(1));
        let until = from.after(self.length);
        let later = &mut self.later;
        self.block.retain(|&(at, function)| {
            let stays = at < until;
            if !stays {
                later.push((at, function));
            }
            stays
        });
        if self.length.0 == 1 {
            self.size = self.size.max(self.block.len());
        }
        until
    }
}

impl<I: Iterator<Item = Time>> Iterator for Merged<I> {
    type Item = (Time, u32);

    fn next(&mut self) -> Option<(Time, u32)> {
        if self.given == self.block.len() {
            self.read();
        }
        let arrival = self.block.get(self.given).copied()?;
        self.given += 1;
        Some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates that rise a thousandfold at once, and instants with more arrivals than fit into a block.
    #[test]
    fn blocks_that_are_too_long_are_cut() {
        let function = |number: u32| {
            let own = u64::from(number);
            let seldom = (0..20).map(move |at| Time(at * 1_000_000_000 + own));
            let often = (0..400).map(move |at| Time(20_000_000_000 + at * (own + 1) * 100));
            let together = (0..400).map(|_| Time(21_000_000_000));
            seldom.chain(often).chain(together)
        };
        let mut expected: Vec<(Time, u32)> = (0..10)
            .flat_map(|number| function(number).map(move |at| (at, number)))
            .collect();
        expected.sort_unstable();
        let merged = Merged::new((0..10).map(function).collect());
        assert_eq!(merged.collect::<Vec<_>>(), expected);
    }

    /// Compares with all arrivals sorted at once.
    #[test]
    fn arrivals_are_ordered_by_time_and_then_by_function() {
        for seed in 0..300 {
            // SplitMix64.
            let mut state = seed;
            let mut below = |bound: u64| {
                state = u64::wrapping_add(state, 0x9E37_79B9_7F4A_7C15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                (z ^ (z >> 31)) % bound
            };
            let functions: Vec<Vec<Time>> = (0..below(12))
                .map(|_| {
                    // Times from a small range, so that many are equal.
                    let mut times: Vec<Time> = (0..below(15)).map(|_| Time(below(20))).collect();
                    times.sort_unstable();
                    times
                })
                .collect();
            let mut expected: Vec<(Time, u32)> = (0..)
                .zip(&functions)
                .flat_map(|(function, times)| times.iter().map(move |&at| (at, function)))
                .collect();
            expected.sort_unstable();
            let merged = Merged::new(functions.into_iter().map(Vec::into_iter).collect());
            assert_eq!(merged.collect::<Vec<_>>(), expected, "seed {seed}");
        }
    }
}
