//! Physical memory that several blocks of a table share.

use super::{Backing, Table};
use crate::Address;
use crate::memory::extents::{Extent, FreedMember};
use crate::memory::physical::Block;

impl Table {
    /// Returns whether blocks, each a first address and a size in bytes in the order of the addresses, can share physical memory: all are away, and
    /// their addresses are in one arena.
    #[must_use]
    pub fn can_share(&mut self, blocks: &[(Address, u64)]) -> bool {
        let (Some((begin, _)), Some((last, bytes))) = (blocks.first(), blocks.last()) else {
            return false;
        };
        let (begin, end) = (*begin, last + bytes);
        let is_one_arena = self.arenas.iter().any(|arena| {
            let offset = begin.wrapping_sub(arena.begin);
            offset < arena.bytes && end - begin <= arena.bytes - offset
        });
        let mut blocks = blocks.iter();
        is_one_arena
            && blocks.all(|(at, bytes)| {
                let block = self.block_mut(*at);
                block.is_some_and(|block| block.is_away && block.bytes == *bytes)
            })
    }

    /// Enters physical memory that is mapped for blocks which were away.
    pub fn add_extent(&mut self, handle: u64, blocks: &[(Address, u64)]) {
        let number = self.extents.add(handle, blocks);
        for (at, _) in blocks {
            if let Some(block) = self.block_mut(*at) {
                (block.is_away, block.extent) = (false, Some(number));
            }
        }
    }

    /// Returns the number of the extent whose memory an allocation uses, by an address in it.
    #[must_use]
    pub fn extent_of(&self, address: Address) -> Option<u64> {
        let (_, allocation) = self.find(address)?;
        let block = match &allocation.backing {
            Backing::Own(block) => Some(block),
            Backing::Piece(_) => self.slab_block(address),
            Backing::Opened(_) => None,
        };
        block?.extent
    }

    /// Returns an extent that is to be released, with its number: the contents of its blocks are on the host. `without_freed`: whether blocks that are being
    /// freed, and are in the table no more, do not matter.
    #[must_use]
    pub fn extent_to_leave(&self, without_freed: bool) -> Option<(u64, &Extent)> {
        let is_there = |at| {
            !without_freed
                || self.slab_blocks.contains_key(&at)
                || self.allocations.contains_key(&at)
        };
        self.extents.first_to_leave(is_there)
    }

    /// Removes an extent which was released, whose blocks are away. Returns the size of its unused memory, in bytes, of which the addresses are
    /// free again.
    pub fn extent_left(&mut self, number: u64) -> u64 {
        let Some(extent) = self.extents.remove(number) else {
            return 0;
        };
        for at in extent.left() {
            if let Some(block) = self.block_mut(at) {
                (block.is_away, block.extent) = (true, None);
            }
        }
        self.free_unused(&extent)
    }

    /// Notes that a block of an extent was freed. Where the extent is gone, the block's addresses are free again.
    pub fn free_in_extent(&mut self, number: u64, block: &Block) -> FreedMember {
        let freed = self.extents.free(number, block.at);
        if let FreedMember::Gone = freed {
            self.give_addresses_back(block.at, block.bytes);
        }
        freed
    }

    /// Returns the addresses of an extent's unused memory to their arena. Returns its size in bytes.
    pub fn free_unused(&mut self, extent: &Extent) -> u64 {
        for (at, bytes) in extent.unused_ranges() {
            self.give_addresses_back(at, bytes);
        }
        extent.unused()
    }
}
