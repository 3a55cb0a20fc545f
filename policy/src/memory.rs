//! The memory of one slot: where the blocks of models are placed in device memory that was reserved as a whole (M2.10,
//! mechanisms §2.5), and the baseline with one list of blocks (M2.21).
//!
//! The arena is cut into partitions of 64 units (128 MiB). A partition is free, or it is a *slab* of blocks of one
//! common size, or it holds *buddies*, which are blocks of powers of two, or it is part of a *run*, which is a block
//! larger than a partition. A block is placed next to blocks of its owner, otherwise in the fullest partition of its
//! kind, and otherwise in a free partition, taken from the shortest run of free ones. So the blocks of a model stay
//! together, and evicting one model leaves whole partitions. A freed block of a common size serves the next model
//! without being split.
//!
//! An evictor can try an eviction out before it evicts: [`Memory::trial`] supposes that owners are gone and computes
//! exactly whether given blocks then fit. [`Memory::sole_partitions`] ranks owners by the whole partitions that become
//! free.
//!
//! A block is never moved: it keeps its place until it is freed. The choice of the model to evict is not made here, and
//! [`crate::swap`] decides what may be freed while it is being copied.
//!
//! Costs: a block of up to a partition is placed in O(log partitions + partitions of its owner), or in O(partitions ÷
//! 64 + free runs) if a partition has to be opened, which also holds for larger blocks. A block is freed in O(log
//! partitions).
//!
//! # Examples
//!
//! ```
//! use policy::memory::{Memory, OwnerId, Settings, UNIT};
//!
//! let mut memory = Memory::new(Settings::new(1 << 30)).unwrap();
//! let owner = OwnerId(0);
//! let block = memory.alloc(owner, 3 * UNIT).unwrap();
//! assert_eq!(block.bytes, 4 * UNIT);
//!
//! // A trial only supposes that the owner is gone.
//! assert_eq!(memory.trial().free_owner(owner).blocks, 1);
//! assert_eq!(memory.owned(owner), 4 * UNIT);
//! assert_eq!(memory.free_owner(owner).bytes, 4 * UNIT);
//! assert_eq!(memory.owned(owner), 0);
//! ```

mod blocks;
mod check;
mod common;
mod free_list;
mod map;
mod outcome;
mod partition;
mod settings;
mod trial;
mod vacancy;

pub use outcome::{Allocation, BlockPlacement, Fault, Freed, Gauges, OutOfSpace, OutOfSpaceReason};
pub use settings::{Rule, Settings, SettingsError, UNIT, arena_of};
pub use trial::Trial;

use blocks::{Block, Blocks};
use common::CommonSizes;
use free_list::FreeList;
use map::{Map, UnitRange};
use partition::{State, UNITS};
use trial::Scratch;

/// Owner of blocks: a model on this slot. Owner ids are small integers, used as indices into tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OwnerId(pub u32);

/// Id of a block of one slot's arena: a small integer, reused after the block is freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BlockId(pub u32);

/// Allocator of one slot's arena; see the [module](self).
#[derive(Clone, Debug)]
pub struct Memory {
    settings: Settings,
    layout: Layout,
    blocks: Blocks,
    common: CommonSizes,
    scratch: Scratch,
}

#[derive(Clone, Debug)]
enum Layout {
    Partitions(Map),
    FreeList(FreeList),
}

impl Settings {
    /// Returns the number of whole units for `bytes`, at least one, or `None` if no arena has that many.
    fn units(&self, bytes: u64) -> Option<u32> {
        u32::try_from(bytes.div_ceil(self.unit).max(1)).ok()
    }
}

impl Memory {
    /// Creates an empty arena.
    ///
    /// # Errors
    /// Returns the error of [`Settings::partitions`].
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let partitions = settings.partitions()?;
        Ok(Self {
            settings,
            layout: match settings.rule {
                Rule::Partitions => Layout::Partitions(Map::new(partitions, settings.buddy_min)),
                Rule::FreeList => {
                    Layout::FreeList(FreeList::new(u64::from(partitions) * u64::from(UNITS)))
                }
            },
            blocks: Blocks::new(partitions),
            common: CommonSizes::new(),
            scratch: Scratch::new(),
        })
    }

    /// Returns the settings of this arena.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Allocates a block of at least `bytes` for an owner. The device is called only under [`Rule::FreeList`].
    ///
    /// # Errors
    /// Returns [`OutOfSpace`] if the block has no place. Nothing has changed then.
    pub fn alloc(&mut self, owner: OwnerId, bytes: u64) -> Result<Allocation, OutOfSpace> {
        let Some((units, (place, placed))) = self.settings.units(bytes).and_then(|units| {
            let own = self.blocks.partitions(owner);
            let taken = match &mut self.layout {
                Layout::Partitions(map) => map.take(units, self.common.contains(units), own),
                Layout::FreeList(list) => list.take(units).map(|taken| {
                    let place = UnitRange {
                        start: 0,
                        units: taken.units,
                    };
                    let device = |frees| BlockPlacement::Device { frees };
                    (place, taken.frees.map_or(BlockPlacement::Reused, device))
                }),
            };
            Some((units, taken?))
        }) else {
            return Err(self.out_of_space(bytes, self.free_units()));
        };
        self.common.count(units);
        let in_partitions = matches!(self.layout, Layout::Partitions(_));
        let shared = in_partitions && placed != BlockPlacement::Run;
        Ok(Allocation {
            block: self.blocks.insert(owner, place, bytes, shared),
            offset: in_partitions.then(|| u64::from(place.start) * self.settings.unit),
            bytes: u64::from(place.units) * self.settings.unit,
            placed,
        })
    }

    /// Frees a block, or returns `None` if no block has that id.
    pub fn free(&mut self, block: BlockId) -> Option<Freed> {
        let block = self.blocks.remove(block)?;
        Some(self.release(block))
    }

    /// Frees all blocks of an owner and returns their total.
    pub fn free_owner(&mut self, owner: OwnerId) -> Freed {
        let mut freed = Freed::default();
        while let Some(one) = self.latest(owner).and_then(|block| self.free(block)) {
            freed.blocks += one.blocks;
            freed.bytes += one.bytes;
            freed.partitions += one.partitions;
        }
        freed
    }

    fn latest(&self, owner: OwnerId) -> Option<BlockId> {
        self.blocks.owned(owner).next().map(|(block, _)| block)
    }

    fn release(&mut self, block: Block) -> Freed {
        Freed {
            blocks: 1,
            bytes: u64::from(block.place.units) * self.settings.unit,
            partitions: match &mut self.layout {
                Layout::Partitions(map) => map.release(block.place),
                Layout::FreeList(list) => {
                    list.release(block.place.units);
                    0
                }
            },
        }
    }

    /// Iterates over an owner's blocks with their requested bytes, the latest first.
    pub fn blocks(&self, owner: OwnerId) -> impl Iterator<Item = (BlockId, u64)> {
        let owned = self.blocks.owned(owner);
        owned.map(|(id, block)| (id, block.asked))
    }

    /// Returns the offset of a block in bytes from the start of the arena, or `None` if there is no such block or the
    /// device chose its address ([`Rule::FreeList`]).
    #[must_use]
    pub fn offset(&self, block: BlockId) -> Option<u64> {
        let block = self.blocks.get(block)?;
        let in_partitions = matches!(self.layout, Layout::Partitions(_));
        in_partitions.then(|| u64::from(block.place.start) * self.settings.unit)
    }

    /// Returns the bytes taken by an owner's blocks.
    #[must_use]
    pub fn owned(&self, owner: OwnerId) -> u64 {
        self.blocks.of_owner(owner).0 * self.settings.unit
    }

    /// Returns how many partitions become free if only this owner goes. Evicting owners with many of them leaves room
    /// for large blocks. O(blocks of the owner).
    #[must_use]
    pub fn sole_partitions(&self, owner: OwnerId) -> u32 {
        let Layout::Partitions(map) = &self.layout else {
            return 0;
        };
        let alone = |partition: &u32| self.blocks.tenants(*partition) == 1;
        let shared = self.blocks.partitions(owner).filter(alone).count();
        let runs = self.blocks.owned(owner).map(|(_, block)| block.place);
        let runs = runs.filter(|&place| map.state(place) == State::Run);
        let runs: usize = runs.map(|place| place.partitions().len()).sum();
        u32::try_from(shared + runs).unwrap_or(u32::MAX)
    }

    /// Starts a trial that supposes owners gone and computes what then fits. The arena is unchanged once the trial is
    /// dropped.
    pub fn trial(&mut self) -> Trial<'_> {
        Trial::new(self)
    }

    /// Returns what freeing all of these owners would yield, and the longest run of free partitions after that, in
    /// bytes. O(their blocks × log partitions).
    pub fn would_free(&mut self, owners: &[OwnerId]) -> (Freed, u64) {
        let mut trial = self.trial();
        let mut all = Freed::default();
        for &owner in owners {
            let one = trial.free_owner(owner);
            all.blocks += one.blocks;
            all.bytes += one.bytes;
            all.partitions += one.partitions;
        }
        (all, trial.largest_free_run())
    }

    /// Checks whether blocks of these sizes, in bytes, fit now, which is [`Trial::fits`] without evictions.
    ///
    /// # Errors
    /// Returns [`OutOfSpace`] for the first size that does not fit.
    pub fn fits(&mut self, owner: OwnerId, sizes: &[u64]) -> Result<(), OutOfSpace> {
        self.trial().fits(owner, sizes)
    }

    /// Iterates over the sizes that are currently common, in bytes, in no order.
    pub fn common_sizes(&self) -> impl Iterator<Item = u64> {
        let unit = self.settings.unit;
        self.common.iter().map(move |units| u64::from(units) * unit)
    }

    /// Returns the current usage of the arena. O(partitions).
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let unit = self.settings.unit;
        let mut gauges = Gauges {
            arena: self.arena_units() * unit,
            free: self.free_units() * unit,
            asked: self.blocks.asked(),
            blocks: self.blocks.len(),
            largest_free_run: self.largest_free_run(),
            ..Gauges::default()
        };
        gauges.owned = gauges.arena - gauges.free;
        match &self.layout {
            Layout::Partitions(map) => {
                for partition in map.partitions() {
                    gauges.partitions[match partition.state {
                        State::Free => 0,
                        State::Slab(_) => 1,
                        State::Buddy => 2,
                        State::Run => 3,
                    }] += 1;
                }
            }
            Layout::FreeList(list) => {
                gauges.device_allocations = list.device_allocations;
                gauges.device_frees = list.device_frees;
            }
        }
        gauges
    }

    fn arena_units(&self) -> u64 {
        self.settings.arena / (self.settings.unit * u64::from(UNITS)) * u64::from(UNITS)
    }

    fn free_units(&self) -> u64 {
        match &self.layout {
            Layout::Partitions(map) => map.units() - map.used(),
            Layout::FreeList(list) => list.free(),
        }
    }

    fn largest_free_run(&self) -> u64 {
        let units = match &self.layout {
            Layout::Partitions(map) => u64::from(map.vacancy().longest()) * u64::from(UNITS),
            Layout::FreeList(list) => list.free(),
        };
        units * self.settings.unit
    }

    /// Returns the error for a block of `asked` bytes that has no place while `free_units` are free.
    fn out_of_space(&self, asked: u64, free_units: u64) -> OutOfSpace {
        let unit = self.settings.unit;
        let reason = match self.settings.units(asked).map(u64::from) {
            Some(units) if units <= free_units => OutOfSpaceReason::Scattered,
            Some(units) if units <= self.arena_units() => OutOfSpaceReason::Full,
            _ => OutOfSpaceReason::TooLarge,
        };
        OutOfSpace {
            asked,
            free: free_units * unit,
            largest_free_run: match &self.layout {
                Layout::Partitions(_) => self.largest_free_run(),
                Layout::FreeList(_) => free_units * unit,
            },
            reason,
        }
    }
}
