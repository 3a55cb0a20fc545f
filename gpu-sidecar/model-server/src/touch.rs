//! How a model's kernels read its weights.

use std::ops::Range;

/// How the kernels of a request read the model's blocks of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Touch {
    /// They read none; the checked blocks are hashed before them.
    #[default]
    None,
    /// Each reads its part of the blocks, in order, by an argument with the block's address.
    Order,
    /// As [`Touch::Order`], by an argument with the address of a table of addresses: no argument shows a block.
    Hidden,
}

impl Touch {
    /// Returns the way of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "order" => Some(Self::Order),
            "hidden" => Some(Self::Hidden),
            _ => None,
        }
    }

    /// Returns whether kernels read blocks.
    pub(crate) const fn reads(self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Returns which of `blocks` blocks kernel number `kernel` of `kernels` reads: all kernels together read each once, in order, in
/// nearly equal parts.
pub(crate) fn part(kernel: usize, kernels: usize, blocks: usize) -> Range<usize> {
    let until = |kernel: usize| {
        let wide = |number: usize| u128::try_from(number).unwrap_or(u128::MAX);
        let end = wide(blocks) * wide(kernel) / wide(kernels.max(1));
        usize::try_from(end).unwrap_or(blocks)
    };
    until(kernel)..until(kernel + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_read_each_block_once_and_in_order() {
        for (kernels, blocks) in [(1, 1), (1, 7), (7, 1), (174, 13), (13, 174), (5, 0), (9, 9)] {
            let parts: Vec<_> = (0..kernels).map(|at| part(at, kernels, blocks)).collect();
            let read: Vec<usize> = parts.iter().cloned().flatten().collect();
            assert_eq!(read, (0..blocks).collect::<Vec<_>>());
            let lengths = parts.iter().map(|part| part.len());
            let (least, most) = (lengths.clone().min().unwrap(), lengths.max().unwrap());
            assert!(most - least <= 1, "{kernels} {blocks}");
        }
    }
}
