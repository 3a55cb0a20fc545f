//! The groups of a model: what is copied at once (M2.6).

use std::num::NonZeroU64;
use std::ops::Range;

use super::ModelBlock;

/// Part of a block, copied at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Of which block.
    pub block: ModelBlock,
    /// Where it begins in the block, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

/// A model's groups in order of transfer. A group never crosses a block; the last one of a block may be shorter.
#[derive(Clone, Debug)]
pub struct Groups {
    size: NonZeroU64,
    groups: Vec<Group>,
    /// Of each block the place of its first group in `groups`, and their number.
    of_block: Vec<Range<u32>>,
}

impl Groups {
    /// Groups of at most so many bytes.
    #[must_use]
    pub const fn new(size: NonZeroU64) -> Self {
        Self {
            size,
            groups: Vec::new(),
            of_block: Vec::new(),
        }
    }

    /// Cuts a model's blocks, given in order of transfer with their bytes, in place of the model before. Of a
    /// block that is given twice the first counts. Allocates nothing once it has had larger models.
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

    /// All groups, in order of transfer.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.groups.len()).unwrap_or(u32::MAX)
    }

    /// Which groups are a block's; none if it has no bytes or is not of the model.
    #[must_use]
    pub fn of_block(&self, block: ModelBlock) -> Range<u32> {
        let of_block = self.of_block.get(block.0 as usize);
        of_block.cloned().unwrap_or(0..0)
    }

    /// How many groups, in order of transfer, are there when all of these blocks are: what a kernel waits for
    /// that touches them ([`super::Step::needs`]).
    #[must_use]
    pub fn needed(&self, touches: impl IntoIterator<Item = ModelBlock>) -> u32 {
        let ends = touches.into_iter().map(|block| self.of_block(block).end);
        ends.max().unwrap_or(0)
    }
}
