//! Memory that every batch reads and then writes anew, like a cache of keys and values: what a batch finds must be what the one before has
//! written.

use std::collections::BTreeMap;
use std::sync::Arc;

use kernels::Launch;
use kernels::effect::mix;

use super::handles::{Context, Memory, Stream};
use super::{Gpu, THREADS};
use crate::blocks::layout;
use crate::checksum::word;
use crate::failure::Failure;

/// State of a lane.
#[derive(Debug)]
pub(super) struct State {
    /// Blocks, each with the number of its words.
    blocks: Vec<(Memory, u64)>,
    /// Number of batches that have begun.
    batches: u64,
    /// Word of which the state consists; `None` before the first batch, and after one that has failed.
    content: Option<u32>,
}

impl State {
    /// Allocates a state of this many bytes, divided by `scale`, in blocks as those of weights.
    pub(super) fn new(context: &Arc<Context>, bytes: u64, scale: u64) -> Result<Self, Failure> {
        let blocks = layout(bytes, scale);
        let blocks = blocks.iter().map(|block| {
            let memory = Memory::new(context, block.bytes)?;
            Ok((memory, block.used / 4))
        });
        Ok(Self {
            blocks: blocks.collect::<Result<_, Failure>>()?,
            batches: 0,
            content: None,
        })
    }

    /// Returns the number of blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Enqueues reading every block into a sum, the first at the address `sum(0)`, and writing it anew.
    pub(super) fn enqueue(
        &mut self,
        gpu: &Gpu,
        stream: &Stream,
        sum: impl Fn(usize) -> u64,
    ) -> Result<Expected, Failure> {
        let expected = Expected(self.content.take());
        self.batches += 1;
        let value = word(u64::MAX, self.batches);
        for (number, (memory, words)) in self.blocks.iter().enumerate() {
            let hash = Launch::Hash {
                out: sum(number),
                input: memory.address,
                words: *words,
            };
            stream.launch(gpu.hash, &hash, gpu.grid(*words), THREADS)?;
            let fill = Launch::Fill {
                out: memory.address,
                words: *words,
                value,
            };
            stream.launch(gpu.fill, &fill, gpu.grid(*words), THREADS)?;
        }
        self.content = Some(value);
        Ok(expected)
    }

    /// Forgets what the state consists of: a batch has failed.
    pub(super) const fn forget(&mut self) {
        self.content = None;
    }

    /// Returns whether the sums of a batch are those of the content that it should have found.
    pub(super) fn is_right(&self, expected: Expected, sum: impl Fn(usize) -> u64) -> bool {
        let Some(content) = expected.0 else {
            return true;
        };
        let mut hashes = BTreeMap::new();
        self.blocks.iter().enumerate().all(|(number, (_, words))| {
            let hash = hashes
                .entry(*words)
                .or_insert_with(|| hash_of(content, *words));
            sum(number) == *hash
        })
    }
}

/// Content which a batch should find.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected(Option<u32>);

/// Returns `weir_hash` of this many equal words.
fn hash_of(word: u32, words: u64) -> u64 {
    (0..words).fold(0, |sum: u64, index| sum.wrapping_add(mix(index, word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_equal_words_is_that_of_the_kernel() {
        let words = vec![7; 1_000];
        assert_eq!(hash_of(7, 1_000), kernels::effect::hash(0, &words));
        assert_ne!(hash_of(8, 1_000), hash_of(7, 1_000));
    }
}
