//! What an arena answers, and why.

use std::fmt;

use super::BlockId;

/// A block that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its id until it is freed.
    pub block: BlockId,
    /// Where in the arena it begins, in bytes; `None` under [`super::Rule::FreeList`], where the device chooses.
    pub offset: Option<u64>,
    /// Bytes taken for it, at least those asked for.
    pub bytes: u64,
    /// Why there.
    pub placed: Placed,
}

/// Where a block was placed, and so why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Beside blocks of its owner.
    Beside,
    /// In the fullest partition with room for it.
    Fullest,
    /// In a partition that was free.
    Opened,
    /// Where a block of another kind would be, as nothing else had room.
    Foreign,
    /// In a run of whole partitions.
    Run,
    /// A released block, as large or larger. Free list only.
    Reused,
    /// A new block from the device. Free list only.
    Device {
        /// Released blocks that were given back to the device first.
        frees: u32,
    },
}

/// There is no place for a block. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes that belong to no block.
    pub free: u64,
    /// Bytes of the longest run of free partitions.
    pub largest_free_run: u64,
    /// Which is too little.
    pub reason: ShortReason,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortReason {
    /// Larger than the arena: evictions do not help.
    TooLarge,
    /// Fewer bytes are free than it needs.
    Full,
    /// Enough bytes are free, but not where they could be used together.
    Scattered,
}

/// What freeing brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Freed {
    /// How many blocks.
    pub blocks: u32,
    /// Their bytes, with what was lost by rounding.
    pub bytes: u64,
    /// How many partitions became free.
    pub partitions: u32,
}

/// How an arena stands. Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Gauges {
    /// All of it: `owned + free`.
    pub arena: u64,
    /// Taken by blocks.
    pub owned: u64,
    /// Asked for; the rest of `owned` is lost by rounding (internal waste).
    pub asked: u64,
    /// Not taken. Under [`super::Rule::FreeList`] with the released blocks.
    pub free: u64,
    /// The longest run of free partitions: the largest block that is sure to fit. Under
    /// [`super::Rule::FreeList`] all that is free, since the device maps pages where it likes.
    pub largest_free_run: u64,
    /// Partitions in each state: free, slab, buddy, run.
    pub partitions: [u32; 4],
    /// Blocks that exist.
    pub blocks: u32,
    /// Native allocations so far; none but under [`super::Rule::FreeList`].
    pub device_allocations: u64,
    /// Native frees so far.
    pub device_frees: u64,
}

impl Gauges {
    /// Bytes lost inside blocks by rounding.
    #[must_use]
    pub const fn waste(&self) -> u64 {
        self.owned - self.asked
    }
}

/// A contradiction in an arena's books: a defect of this code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A unit belongs to two blocks.
    Overlap {
        /// The second of them.
        block: BlockId,
    },
    /// A block is not as the state of its partition says.
    State {
        /// Which.
        partition: u32,
    },
    /// The units marked as used are not those of the blocks.
    Units {
        /// Of which partition.
        partition: u32,
    },
    /// A partition with room is not where one would look for it, or a full one is.
    Index {
        /// Which.
        partition: u32,
    },
    /// The books say otherwise than the blocks who has something in a partition.
    Tenants {
        /// Of which partition.
        partition: u32,
    },
    /// Owned and free together are not the arena, or the sums are not those of the blocks.
    Totals,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            free,
            largest_free_run,
            reason,
        } = self;
        match reason {
            ShortReason::TooLarge => write!(f, "{asked} bytes are more than the arena has"),
            ShortReason::Full => write!(f, "{asked} bytes do not fit: {free} are free"),
            ShortReason::Scattered => write!(
                f,
                "{asked} bytes do not fit: {free} are free, {largest_free_run} in one piece"
            ),
        }
    }
}

impl std::error::Error for Short {}
