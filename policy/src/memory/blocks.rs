//! The blocks of each owner, and the partitions they are in.
//!
//! Records are kept in vectors with free lists and chained per owner, so a block is found and freed in constant time,
//! and nothing is allocated once the vectors have grown.

use super::map::UnitRange;
use super::{BlockId, OwnerId};

pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) owner: u32,
    pub(super) place: UnitRange,
    /// Requested size, in bytes.
    pub(super) asked: u64,
    tenancy: u32,
    previous: u32,
    next: u32,
}

/// Presence of an owner's blocks in a partition. Runs have no tenancy: they have their partitions to themselves.
#[derive(Clone, Copy, Debug)]
struct Tenancy {
    owner: u32,
    partition: u32,
    blocks: u32,
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    blocks: u32,
    tenancies: u32,
    units: u64,
    asked: u64,
}

impl Owner {
    const EMPTY: Self = Self {
        blocks: NONE,
        tenancies: NONE,
        units: 0,
        asked: 0,
    };
}

#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Option<Block>>,
    free_blocks: Vec<u32>,
    tenancies: Vec<Tenancy>,
    free_tenancies: Vec<u32>,
    owners: Vec<Owner>,
    /// Number of owners with blocks in each partition.
    tenants: Vec<u32>,
    /// Bytes requested by all owners together.
    asked: u64,
}

impl Blocks {
    pub(super) fn new(partitions: u32) -> Self {
        Self {
            tenants: vec![0; partitions as usize],
            ..Self::default()
        }
    }

    pub(super) fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.0 as usize)?.as_ref()
    }

    fn owner(&self, owner: OwnerId) -> &Owner {
        self.owners.get(owner.0 as usize).unwrap_or(&Owner::EMPTY)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a block has at least a unit, and there are less than 2^32"
    )]
    pub(super) fn len(&self) -> u32 {
        (self.blocks.len() - self.free_blocks.len()) as u32
    }

    pub(super) const fn asked(&self) -> u64 {
        self.asked
    }

    /// Returns the units taken by one owner, and the bytes that it requested.
    pub(super) fn of_owner(&self, owner: OwnerId) -> (u64, u64) {
        let owner = self.owner(owner);
        (owner.units, owner.asked)
    }

    /// Iterates over an owner's blocks, the latest first.
    pub(super) fn owned(&self, owner: OwnerId) -> impl Iterator<Item = (BlockId, Block)> + Clone {
        let mut at = self.owner(owner).blocks;
        std::iter::from_fn(move || {
            let block = (*self.blocks.get(at as usize)?)?;
            let id = BlockId(std::mem::replace(&mut at, block.next));
            Some((id, block))
        })
    }

    /// Iterates over the partitions in which an owner has blocks, except for runs.
    pub(super) fn partitions(&self, owner: OwnerId) -> impl Iterator<Item = u32> + Clone {
        let mut at = self.owner(owner).tenancies;
        std::iter::from_fn(move || {
            let tenancy = self.tenancies.get(at as usize)?;
            at = tenancy.next;
            Some(tenancy.partition)
        })
    }

    /// Returns the number of owners with blocks in a partition, except for runs.
    pub(super) fn tenants(&self, partition: u32) -> u32 {
        self.tenants[partition as usize]
    }

    /// Records a new block. `shared` means that the block is in a partition that may have other blocks, and not in a
    /// run.
    pub(super) fn insert(
        &mut self,
        owner: OwnerId,
        place: UnitRange,
        asked: u64,
        shared: bool,
    ) -> BlockId {
        if self.owners.len() <= owner.0 as usize {
            self.owners.resize(owner.0 as usize + 1, Owner::EMPTY);
        }
        let tenancy = if shared {
            self.tenancy(owner.0, place.partition())
        } else {
            NONE
        };
        let head = &mut self.owners[owner.0 as usize];
        head.units += u64::from(place.units);
        head.asked += asked;
        self.asked += asked;
        let block = Block {
            owner: owner.0,
            place,
            asked,
            tenancy,
            previous: NONE,
            next: head.blocks,
        };
        let id = place_in(&mut self.blocks, &mut self.free_blocks, Some(block));
        head.blocks = id;
        if let Some(next) = self.block_mut(block.next) {
            next.previous = id;
        }
        BlockId(id)
    }

    pub(super) fn remove(&mut self, id: BlockId) -> Option<Block> {
        let block = self.blocks.get_mut(id.0 as usize)?.take()?;
        self.free_blocks.push(id.0);
        let owner = &mut self.owners[block.owner as usize];
        owner.units -= u64::from(block.place.units);
        owner.asked -= block.asked;
        self.asked -= block.asked;
        if block.previous == NONE {
            owner.blocks = block.next;
        }
        if let Some(previous) = self.block_mut(block.previous) {
            previous.next = block.next;
        }
        if let Some(next) = self.block_mut(block.next) {
            next.previous = block.previous;
        }
        if block.tenancy != NONE {
            self.leave(block.tenancy);
        }
        Some(block)
    }

    fn block_mut(&mut self, at: u32) -> Option<&mut Block> {
        self.blocks.get_mut(at as usize)?.as_mut()
    }

    /// Counts a block of the owner in the partition and returns the index of its tenancy. O(partitions of the owner).
    fn tenancy(&mut self, owner: u32, partition: u32) -> u32 {
        let first = self.owners[owner as usize].tenancies;
        let mut at = first;
        while let Some(tenancy) = self.tenancies.get_mut(at as usize) {
            if tenancy.partition == partition {
                tenancy.blocks += 1;
                return at;
            }
            at = tenancy.next;
        }
        let tenancy = Tenancy {
            owner,
            partition,
            blocks: 1,
            previous: NONE,
            next: first,
        };
        let at = place_in(&mut self.tenancies, &mut self.free_tenancies, tenancy);
        self.owners[owner as usize].tenancies = at;
        if let Some(next) = self.tenancies.get_mut(first as usize) {
            next.previous = at;
        }
        self.tenants[partition as usize] += 1;
        at
    }

    fn leave(&mut self, at: u32) {
        let tenancy = &mut self.tenancies[at as usize];
        tenancy.blocks -= 1;
        if tenancy.blocks > 0 {
            return;
        }
        let Tenancy {
            owner,
            partition,
            previous,
            next,
            ..
        } = *tenancy;
        self.free_tenancies.push(at);
        self.tenants[partition as usize] -= 1;
        if previous == NONE {
            self.owners[owner as usize].tenancies = next;
        } else {
            self.tenancies[previous as usize].next = next;
        }
        if let Some(next) = self.tenancies.get_mut(next as usize) {
            next.previous = previous;
        }
    }

    /// Iterates over all blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockId, Block)> {
        let blocks = (0..).map(BlockId).zip(&self.blocks);
        blocks.filter_map(|(id, block)| Some((id, (*block)?)))
    }

    /// Returns the number of owner ids in use: one more than the largest id that ever had a block.
    pub(super) fn owners(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap_or(NONE)
    }
}

/// Stores a record in a free entry, or in a new one, and returns its index.
fn place_in<T>(records: &mut Vec<T>, free: &mut Vec<u32>, record: T) -> u32 {
    if let Some(at) = free.pop() {
        records[at as usize] = record;
        return at;
    }
    records.push(record);
    u32::try_from(records.len() - 1).expect("records are fewer than units")
}
