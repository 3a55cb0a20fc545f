//! Results of an arena's operations, with their reasons.

use std::fmt;

use super::BlockId;

/// Block that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Id of the block until it is freed.
    pub block: BlockId,
    /// Offset in the arena, in bytes; `None` under [`super::Rule::FreeList`], where the device chooses the address.
    pub offset: Option<u64>,
    /// Size of the block in bytes, at least as large as requested.
    pub bytes: u64,
    /// Kind of place that was found for the block.
    pub placed: BlockPlacement,
}

/// Kind of place in which a block was put, which is also the reason for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlacement {
    /// Next to blocks of the same owner.
    Beside,
    /// In the fullest partition with room for it.
    Fullest,
    /// In a partition that was free.
    Opened,
    /// In a place for blocks of another kind, as nothing else had room.
    Foreign,
    /// In a run of whole partitions.
    Run,
    /// A cached block of the same size or larger; only under [`super::Rule::FreeList`].
    Reused,
    /// A new block from the device; only under [`super::Rule::FreeList`].
    Device {
        /// Number of cached blocks that were first given back to the device.
        frees: u32,
    },
}

/// Error of an allocation for which there is no place. The arena is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfSpace {
    /// Requested size, in bytes.
    pub asked: u64,
    /// Bytes that belong to no block.
    pub free: u64,
    /// Length of the longest run of free partitions, in bytes.
    pub largest_free_run: u64,
    /// Resource that is insufficient.
    pub reason: OutOfSpaceReason,
}

/// Reason why a block has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfSpaceReason {
    /// The block is larger than the arena: evictions do not help.
    TooLarge,
    /// Fewer bytes are free than the block needs.
    Full,
    /// Enough bytes are free, but not where the block could use them together.
    Scattered,
}

/// Memory that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Freed {
    /// Number of freed blocks.
    pub blocks: u32,
    /// Size of the freed blocks in bytes, including what was lost to rounding.
    pub bytes: u64,
    /// Number of partitions that became free.
    pub partitions: u32,
}

/// Usage of an arena; sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Gauges {
    /// Size of the arena: `owned + free`.
    pub arena: u64,
    /// Bytes taken by blocks.
    pub owned: u64,
    /// Bytes requested for blocks; the rest of `owned` is lost to rounding (internal waste).
    pub asked: u64,
    /// Bytes not taken by blocks, including cached blocks under [`super::Rule::FreeList`].
    pub free: u64,
    /// Length of the longest run of free partitions, which is the largest block that is sure to fit. Under
    /// [`super::Rule::FreeList`] it equals `free`, since the device maps pages where it likes.
    pub largest_free_run: u64,
    /// Number of partitions in each state: free, slab, buddy, run.
    pub partitions: [u32; 4],
    /// Number of allocated blocks.
    pub blocks: u32,
    /// Number of native allocations so far; zero except under [`super::Rule::FreeList`].
    pub device_allocations: u64,
    /// Number of native frees so far; zero except under [`super::Rule::FreeList`].
    pub device_frees: u64,
}

impl Gauges {
    /// Returns the bytes lost to rounding inside blocks.
    #[must_use]
    pub const fn waste(&self) -> u64 {
        self.owned - self.asked
    }
}

/// Inconsistency in an arena's bookkeeping, which is a defect of this code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A unit belongs to two blocks.
    Overlap {
        /// Second of the two blocks.
        block: BlockId,
    },
    /// A block contradicts the state of its partition.
    State {
        /// Index of the partition.
        partition: u32,
    },
    /// The units marked as used are not those of the blocks.
    Units {
        /// Index of the partition.
        partition: u32,
    },
    /// A partition with room is missing from its heap, or a full one is still in it.
    Index {
        /// Index of the partition.
        partition: u32,
    },
    /// The recorded tenants of a partition are not the owners of its blocks.
    Tenants {
        /// Index of the partition.
        partition: u32,
    },
    /// Owned and free units do not add up to the arena, or the sums are not those of the blocks.
    Totals,
}

impl fmt::Display for OutOfSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            free,
            largest_free_run,
            reason,
        } = self;
        match reason {
            OutOfSpaceReason::TooLarge => write!(f, "{asked} bytes exceed the arena"),
            OutOfSpaceReason::Full => write!(f, "{asked} bytes do not fit: {free} are free"),
            OutOfSpaceReason::Scattered => write!(
                f,
                "{asked} bytes do not fit: {free} are free, {largest_free_run} in one piece"
            ),
        }
    }
}

impl std::error::Error for OutOfSpace {}
