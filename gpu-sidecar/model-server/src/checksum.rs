//! Weights and inputs that a client can reproduce, and the expected checksum of an answer.
//!
//! Word number `i` of a stream with seed `s` is the upper half of `finalise(s + (i + 1) · γ)`: SplitMix64, with random access.
//! A model's weights are the stream with FNV-1a of its name as the seed; a request's input is the stream of the request's seed.
//!
//! Device and reference each compute `weir_hash` of the input and of the blocks that the request checks. A checksum folds them:
//! `h = finalise(h ^ (block + 1) · γ ^ hash)` for every block in order, from 0, then the input with block number 2⁶⁴ − 1. So it
//! detects wrong bytes, swapped blocks and a wrong input.

use std::sync::OnceLock;

use kernels::effect::{finalise, mix};

use crate::blocks::{Block, layout};
use crate::models::Model;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Blocks of weights that a request checks: `count` blocks from `first` on, with the first block following the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedBlocks {
    /// Number of the first block.
    pub first: usize,
    /// Number of checked blocks.
    pub count: usize,
}

impl CheckedBlocks {
    /// Returns the numbers of the checked blocks of a model with `blocks` blocks.
    pub fn numbers(self, blocks: usize) -> impl Iterator<Item = usize> {
        let count = if blocks == 0 { 0 } else { self.count };
        (0..count).map(move |n| (self.first % blocks + n % blocks) % blocks)
    }
}

/// Returns word number `index` of the stream with this seed.
#[must_use]
pub fn word(seed: u64, index: u64) -> u32 {
    let place = index.wrapping_add(1).wrapping_mul(GAMMA);
    let bytes = finalise(seed.wrapping_add(place)).to_le_bytes();
    u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// Folds the hashes of blocks, each with its number, and of the input into a checksum.
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

/// Reference for a model's answers. A block's hash is computed once, on first use.
#[derive(Debug)]
pub struct Reference {
    seed: u64,
    input_words: u64,
    blocks: Vec<Block>,
    hashes: Vec<OnceLock<u64>>,
}

impl Reference {
    /// Creates the reference of a model with its sizes divided by `scale`.
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

    /// Returns the blocks of the weights.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns `weir_hash` of a block; 0 if there is no block of this number.
    #[must_use]
    pub fn block(&self, number: usize) -> u64 {
        let (Some(block), Some(hash)) = (self.blocks.get(number), self.hashes.get(number)) else {
            return 0;
        };
        *hash.get_or_init(|| stream_hash(self.seed, block.first_word, block.used / 4))
    }

    /// Returns `weir_hash` of the input with this seed.
    #[must_use]
    pub fn input(&self, seed: u64) -> u64 {
        stream_hash(seed, 0, self.input_words)
    }

    /// Returns the expected checksum of an answer that checked these blocks, for a request with this seed.
    #[must_use]
    pub fn checksum(&self, checked: CheckedBlocks, seed: u64) -> u64 {
        let numbers = checked.numbers(self.blocks.len());
        fold(
            numbers.map(|number| (number, self.block(number))),
            self.input(seed),
        )
    }
}

/// Returns the expected checksum of an answer of this model, with sizes divided by `scale`, that checked these blocks, for a
/// request with this seed. Computes the hashes of the blocks on every call; use [`Reference`] for many answers.
#[must_use]
pub fn expected_checksum(model: &Model, scale: u64, checked: CheckedBlocks, seed: u64) -> u64 {
    Reference::new(model, scale).checksum(checked, seed)
}

/// Returns `weir_hash` of `words` words of a stream, starting at word `first`; the hash counts positions from 0.
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
    fn words_of_a_stream_do_not_depend_on_the_starting_point() {
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
    fn any_corruption_changes_the_checksum() {
        let model = Model {
            weights_bytes: 64 << 20,
            ..Model::generic()
        };
        let reference = Reference::new(&model, 1_024);
        let all = CheckedBlocks {
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
        let part = CheckedBlocks { first: 1, count: 1 };
        assert_ne!(reference.checksum(part, 5), right);
    }

    #[test]
    fn checked_blocks_wrap_around() {
        let numbers = |first, count, blocks| {
            CheckedBlocks { first, count }
                .numbers(blocks)
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(3, 3, 5), [3, 4, 0]);
        assert_eq!(numbers(8, 2, 5), [3, 4]);
        assert_eq!(numbers(0, 4, 0), [0; 0]);
        assert_eq!(numbers(usize::MAX, 2, 4), [3, 0]);
    }

    #[test]
    fn without_weights_the_checksum_covers_the_input() {
        let model = Model {
            weights_bytes: 0,
            ..Model::generic()
        };
        let none = CheckedBlocks { first: 0, count: 1 };
        let reference = Reference::new(&model, 1);
        assert!(reference.blocks().is_empty());
        assert_ne!(reference.checksum(none, 1), reference.checksum(none, 2));
    }
}
