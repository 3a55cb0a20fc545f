//! The groups of a model, which are copied as a whole (M2.6).

use std::num::NonZeroU64;
use std::ops::Range;

use super::ModelBlock;

/// Part of a block that is copied as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Block that contains the group.
    pub block: ModelBlock,
    /// Offset of the group in its block, in bytes.
    pub offset: u64,
    /// Length of the group, in bytes.
    pub bytes: u64,
}

/// Groups of a model in order of transfer. A group never spans blocks, so the last one of a block may be shorter.
#[derive(Clone, Debug)]
pub struct Groups {
    size: NonZeroU64,
    groups: Vec<Group>,
    /// For each block, the range of its groups in `groups`.
    of_block: Vec<Range<u32>>,
}

impl Groups {
    /// Creates an empty set of groups of at most `size` bytes.
    #[must_use]
    pub const fn new(size: NonZeroU64) -> Self {
        Self {
            size,
            groups: Vec::new(),
            of_block: Vec::new(),
        }
    }

    /// Splits the blocks of a model into groups, replacing those of the previous model. The blocks are given in order
    /// of transfer with their sizes in bytes. If a block is given twice, the first occurrence counts. Allocates nothing
    /// once it has held a larger model.
    pub fn set(&mut self, blocks: impl IntoIterator<Item = (ModelBlock, u64)>) {
        self.groups.clear();
        self.of_block.clear();
        for (block, bytes) in blocks {
            let at = block.0 as usize;
            if self.of_block.len() <= at {
                self.of_block.resize(at + 1, 0..0);
            }
            if bytes == 0 || !self.of_block[at].is_empty() {
                continue;
            }
            let first = self.count();
            let mut offset = 0;
            while offset < bytes {
                let bytes = self.size.get().min(bytes - offset);
                self.groups.push(Group {
                    block,
                    offset,
                    bytes,
                });
                offset += bytes;
            }
            self.of_block[at] = first..self.count();
        }
    }

    /// Returns all groups, in order of transfer.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the number of groups.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.groups.len()).unwrap_or(u32::MAX)
    }

    /// Returns the range of a block's groups, empty if the block has no bytes or is not part of the model.
    #[must_use]
    pub fn of_block(&self, block: ModelBlock) -> Range<u32> {
        let of_block = self.of_block.get(block.0 as usize);
        of_block.cloned().unwrap_or(0..0)
    }

    /// Returns how many groups, in order of transfer, must be there before all of these blocks are, which is what a
    /// kernel that touches them waits for ([`super::Step::needs`]).
    #[must_use]
    pub fn needed(&self, touches: impl IntoIterator<Item = ModelBlock>) -> u32 {
        let ends = touches.into_iter().map(|block| self.of_block(block).end);
        ends.max().unwrap_or(0)
    }
}
