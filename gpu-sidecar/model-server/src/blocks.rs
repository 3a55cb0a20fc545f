//! Layout of weights in device memory, as by a framework's allocator.
//!
//! PyTorch's caching allocator allocates device memory in blocks: of 2 MiB for tensors up to 1 MiB, of 20 MiB for larger ones.
//! An eighth of a model's bytes is assumed to be in small tensors (assumption: from a few hundredths in transformers to a
//! quarter in convolutional networks). Single tensors are not modelled: every block is full except the last of its kind. Blocks
//! of both kinds are spread evenly, in the order in which a model would access them.

const MIB: u64 = 1 << 20;
/// Size of a block for small tensors, in bytes.
const SMALL_BYTES: u64 = 2 * MIB;
/// Size of a block for large tensors, in bytes.
const LARGE_BYTES: u64 = 20 * MIB;
/// One in this many bytes is in a small tensor.
const SMALL_IN: u64 = 8;

/// A block of device memory with its part of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Size of the block, in bytes.
    pub bytes: u64,
    /// Bytes of weights at the beginning of the block: a multiple of 4.
    pub used: u64,
    /// Index of the block's first word among all weights.
    pub first_word: u64,
}

/// Returns the blocks of a model with this many bytes of weights, in loading order. Sizes of weights and blocks are divided by
/// `scale`.
#[must_use]
pub fn layout(weights_bytes: u64, scale: u64) -> Vec<Block> {
    let scale = scale.max(1);
    let weights = (weights_bytes / scale).next_multiple_of(4);
    let size = |bytes: u64| (bytes / scale).max(4).next_multiple_of(4);
    let (small_size, large_size) = (size(SMALL_BYTES), size(LARGE_BYTES));
    let small = (weights / SMALL_IN).next_multiple_of(4).min(weights);
    let large = weights - small;
    let (smalls, larges) = (small.div_ceil(small_size), large.div_ceil(large_size));

    let mut blocks = Vec::new();
    let (mut small_left, mut large_left) = (small, large);
    let (mut small_count, mut large_count) = (0, 0);
    let mut first_word = 0;
    while small_left > 0 || large_left > 0 {
        let is_small =
            large_left == 0 || small_left > 0 && small_count * larges <= large_count * smalls;
        let (left, count, bytes) = if is_small {
            (&mut small_left, &mut small_count, small_size)
        } else {
            (&mut large_left, &mut large_count, large_size)
        };
        let used = bytes.min(*left);
        *left -= used;
        *count += 1;
        blocks.push(Block {
            bytes,
            used,
            first_word,
        });
        first_word += used / 4;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_block() {
        for weights in [0, 1, 4, 5, MIB, 102_228_000, 1_340_000_000, 16 << 30] {
            for scale in [1, 3, 64, 4_096] {
                let blocks = layout(weights, scale);
                let mut word = 0;
                for block in &blocks {
                    assert_eq!(block.first_word, word);
                    assert!(block.used > 0 && block.used <= block.bytes && block.used % 4 == 0);
                    word += block.used / 4;
                }
                assert_eq!(word * 4, (weights / scale).next_multiple_of(4));
                let partial = blocks.iter().filter(|block| block.used < block.bytes);
                assert!(partial.count() <= 2, "{weights} / {scale}");
            }
        }
    }

    #[test]
    fn resnet_50_has_the_blocks_of_a_framework() {
        let blocks = layout(102_228_000, 1);
        let sizes = |bytes| blocks.iter().filter(|block| block.bytes == bytes).count();
        assert_eq!((sizes(SMALL_BYTES), sizes(LARGE_BYTES)), (7, 5));
        // Spread evenly: never two large blocks without a small one in between.
        assert_eq!(blocks[0].bytes, SMALL_BYTES);
        let larges = blocks
            .windows(2)
            .filter(|two| two[0].bytes == two[1].bytes && two[0].bytes == LARGE_BYTES);
        assert_eq!(larges.count(), 0);
    }

    #[test]
    fn a_scale_divides_the_blocks_as_well() {
        let (whole, part) = (layout(1 << 30, 1), layout(1 << 30, 64));
        assert_eq!(whole.len(), part.len());
        assert!(
            whole
                .iter()
                .zip(&part)
                .all(|(a, b)| a.bytes == b.bytes * 64)
        );
    }
}
