//! Weights and inputs that a client can make too, and what an answer's checksum must be.
//!
//! Word number `i` of a stream with seed `s` is the upper half of `finalise(s + (i + 1) · γ)`: SplitMix64, which can be
//! entered anywhere. A model's weights are the stream whose seed is FNV-1a of its name; a request's input is the stream
//! of the request's seed.
//!
//! Device and reference each compute `weir_hash` of the input and of the blocks that the request checks. A checksum
//! folds them: `h = finalise(h ^ (block + 1) · γ ^ hash)` for every block in order, from 0, then the input with block
//! number 2⁶⁴ − 1. So wrong bytes, blocks in each other's place and a wrong input all show.

use std::sync::OnceLock;

use kernels::effect::{finalise, mix};

use crate::blocks::{Block, layout};
use crate::models::Model;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The blocks of weights that a request checks: `count` from `first` on, behind the last one comes the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The number of the first one.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Checked {
    /// Their numbers, if there are `blocks` in all.
    pub fn numbers(self, blocks: usize) -> impl Iterator<Item = usize> {
        let count = if blocks == 0 { 0 } else { self.count };
        (0..count).map(move |n| (self.first % blocks + n % blocks) % blocks)
    }
}

/// Word number `index` of the stream with this seed.
#[must_use]
pub fn word(seed: u64, index: u64) -> u32 {
    let place = index.wrapping_add(1).wrapping_mul(GAMMA);
    let bytes = finalise(seed.wrapping_add(place)).to_le_bytes();
    u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// Folds what was computed into an answer's checksum.
#[must_use]
pub fn fold(blocks: impl IntoIterator<Item = (usize, u64)>, input: u64) -> u64 {
    let step = |sum: u64, number: u64, hash: u64| finalise(sum ^ number.wrapping_mul(GAMMA) ^ hash);
    let weights = blocks.into_iter().fold(0, |sum, (number, hash)| {
        step(
            sum,
            u64::try_from(number).unwrap_or(u64::MAX).wrapping_add(1),
            hash,
        )
    });
    step(weights, 0, input)
}

/// What a model's answers must be. A block's hash is computed once, when it is first asked for.
#[derive(Debug)]
pub struct Reference {
    seed: u64,
    input_words: u64,
    blocks: Vec<Block>,
    hashes: Vec<OnceLock<u64>>,
}

impl Reference {
    /// Of a model whose sizes are divided by `scale`.
    #[must_use]
    pub fn new(model: &Model, scale: u64) -> Self {
        let blocks = layout(model.weights_bytes, scale);
        Self {
            seed: model.seed(),
            input_words: model.input_words(scale),
            hashes: blocks.iter().map(|_| OnceLock::new()).collect(),
            blocks,
        }
    }

    /// The blocks.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// `weir_hash` of a block; 0 if there is none of this number.
    #[must_use]
    pub fn block(&self, number: usize) -> u64 {
        let (Some(block), Some(hash)) = (self.blocks.get(number), self.hashes.get(number)) else {
            return 0;
        };
        *hash.get_or_init(|| stream_hash(self.seed, block.first_word, block.used / 4))
    }

    /// `weir_hash` of the input with this seed.
    #[must_use]
    pub fn input(&self, seed: u64) -> u64 {
        stream_hash(seed, 0, self.input_words)
    }

    /// The checksum of an answer that checked these blocks, to a request whose input has this seed.
    #[must_use]
    pub fn checksum(&self, checked: Checked, seed: u64) -> u64 {
        let numbers = checked.numbers(self.blocks.len());
        fold(
            numbers.map(|number| (number, self.block(number))),
            self.input(seed),
        )
    }
}

/// The checksum of an answer of this model, its sizes divided by `scale`, that checked these blocks, to a request whose
/// input has this seed. Computes every block's hash anew; for many answers there is [`Reference`].
#[must_use]
pub fn expected_checksum(model: &Model, scale: u64, checked: Checked, seed: u64) -> u64 {
    Reference::new(model, scale).checksum(checked, seed)
}

/// `weir_hash` of `words` words of a stream from number `first` on; the hash counts from 0.
fn stream_hash(seed: u64, first: u64, words: u64) -> u64 {
    (0..words).fold(0, |sum: u64, index| {
        sum.wrapping_add(mix(index, word(seed, first.wrapping_add(index))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Model {
        Model {
            weights_bytes: 100_000,
            ..Model::generic()
        }
    }

    #[test]
    fn a_stream_is_the_same_from_wherever_it_is_entered() {
        let reference = Reference::new(&small(), 64);
        let mut from_the_begin: Vec<u32> = (0..1_000)
            .map(|index| word(reference.seed, index))
            .collect();
        let block = reference.blocks()[0];
        from_the_begin.truncate(usize::try_from(block.used / 4).unwrap());
        assert_eq!(
            reference.block(0),
            kernels::effect::hash(0, &from_the_begin)
        );
        assert_eq!(word(7, 3), word(7, 3));
        assert_ne!(word(7, 3), word(8, 3));
    }

    #[test]
    fn whatever_is_wrong_shows_in_the_checksum() {
        let model = Model {
            weights_bytes: 64 << 20,
            ..Model::generic()
        };
        let reference = Reference::new(&model, 1_024);
        let all = Checked {
            first: 0,
            count: reference.blocks().len(),
        };
        let right = reference.checksum(all, 5);
        assert_eq!(right, expected_checksum(&model, 1_024, all, 5));
        assert_ne!(right, reference.checksum(all, 6), "another input");
        let hashes: Vec<u64> = (0..all.count).map(|n| reference.block(n)).collect();
        let of = |hashes: &[u64]| fold(hashes.iter().copied().enumerate(), reference.input(5));
        assert_eq!(of(&hashes), right);
        for a in 0..hashes.len() {
            let mut wrong = hashes.clone();
            wrong[a] ^= 1;
            assert_ne!(of(&wrong), right, "block {a}");
            for b in a + 1..hashes.len() {
                let mut wrong = hashes.clone();
                wrong.swap(a, b);
                assert_ne!(of(&wrong), right, "blocks {a} and {b}");
            }
        }
        let part = Checked { first: 1, count: 1 };
        assert_ne!(reference.checksum(part, 5), right);
    }

    #[test]
    fn the_part_that_is_checked_goes_round() {
        let numbers =
            |first, count, blocks| Checked { first, count }.numbers(blocks).collect::<Vec<_>>();
        assert_eq!(numbers(3, 3, 5), [3, 4, 0]);
        assert_eq!(numbers(8, 2, 5), [3, 4]);
        assert_eq!(numbers(0, 4, 0), [0; 0]);
        assert_eq!(numbers(usize::MAX, 2, 4), [3, 0]);
    }

    #[test]
    fn a_model_without_weights_has_a_checksum_of_its_input() {
        let model = Model {
            weights_bytes: 0,
            ..Model::generic()
        };
        let none = Checked { first: 0, count: 1 };
        let reference = Reference::new(&model, 1);
        assert!(reference.blocks().is_empty());
        assert_ne!(reference.checksum(none, 1), reference.checksum(none, 2));
    }
}
