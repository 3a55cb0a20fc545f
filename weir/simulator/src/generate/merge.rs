//! Many orders of arrivals into one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use policy::Time;

/// The arrivals of all functions in the order of time; of equal times, in the order of functions.
///
/// Function `n` is the `n`-th of the iterators, each of which gives its arrivals in order. The next arrival costs
/// O(log functions) and the next one of its function; one entry of 16 bytes a function is kept.
#[derive(Debug, Clone)]
pub struct Merged<I> {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    functions: Vec<I>,
}

impl<I: Iterator<Item = Time>> Merged<I> {
    /// Asks every function for its first arrival. Functions past 2³² are left out.
    pub fn new(mut functions: Vec<I>) -> Self {
        let heap = (0..)
            .zip(&mut functions)
            .filter_map(|(function, arrivals)| Some(Reverse((arrivals.next()?, function))))
            .collect();
        Self { heap, functions }
    }

    /// The functions, as they are after the arrivals given so far.
    pub fn functions(&self) -> &[I] {
        &self.functions
    }
}

impl<I: Iterator<Item = Time>> Iterator for Merged<I> {
    type Item = (Time, u32);

    fn next(&mut self) -> Option<(Time, u32)> {
        let mut top = self.heap.peek_mut()?;
        let Reverse((at, function)) = *top;
        let next = self
            .functions
            .get_mut(function as usize)
            .and_then(Iterator::next);
        match next {
            // Changing the top in place sifts once where pop and push would sift twice.
            Some(next) => top.0.0 = next,
            None => {
                PeekMut::pop(top);
            }
        }
        Some((at, function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against all arrivals sorted at once.
    #[test]
    fn arrivals_come_by_time_and_then_by_function() {
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
                    // Few times, so that many are equal.
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
