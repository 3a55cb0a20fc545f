//! The memory of one slot: where the blocks of models lie in device memory that was reserved as a whole
//! (M2.10, papers 2.5), and the baseline with one list of blocks (M2.21).
//!
//! The arena is cut into partitions of 64 units (128 MiB). A partition is free, or a *slab* of blocks of one
//! common size, or has *buddies*, blocks of powers of two, or belongs to a *run*, a block larger than a
//! partition. A block goes beside blocks of its owner, else into the fullest partition of its kind, else into a
//! free one, and that from the shortest run of free ones: so models stay together, and evicting one
//! leaves whole partitions. A freed block of a common size serves the next model without being cut.
//!
//! An evictor asks before it acts: [`Memory::trial`] supposes owners gone and tells whether blocks then fit, exactly;
//! [`Memory::sole_partitions`] ranks owners by what becomes free as a whole.
//!
//! Blocks are given and taken in time, not moved: a block keeps its place until it is freed. Choosing whom to
//! evict is `eviction`'s; who may free what while it is copied is [`crate::swap`]'s.
//!
//! Costs: a block up to a partition is placed in O(log partitions + partitions of its owner), or O(partitions ÷ 64
//! + free runs) where one is opened, as are larger ones; freed in O(log partitions).

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

pub use outcome::{Allocation, Fault, Freed, Gauges, Placed, Short, ShortReason};
pub use settings::{Rule, Settings, SettingsError, UNIT, arena_of};
pub use trial::Trial;

use blocks::{Block, Blocks};
use common::CommonSizes;
use free_list::FreeList;
use map::{Map, Place};
use partition::{State, UNITS};
use trial::Scratch;

/// Whose a block is: a model on this slot. A small integer: ids are indices into tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OwnerId(pub u32);

/// A block of one slot's arena: a small integer, given again after the block is freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BlockId(pub u32);

/// See the [module](self).
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
    /// Whole units for so many bytes, at least one; `None`: more than any arena has.
    fn units(&self, bytes: u64) -> Option<u32> {
        u32::try_from(bytes.div_ceil(self.unit).max(1)).ok()
    }
}

impl Memory {
    /// An empty arena.
    ///
    /// # Errors
    /// What [`Settings::partitions`] finds.
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

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Gives an owner a block of at least so many bytes. Nothing is asked of the device but under
    /// [`Rule::FreeList`].
    ///
    /// # Errors
    /// [`Short`]: there is no place for it, and nothing has changed.
    pub fn alloc(&mut self, owner: OwnerId, bytes: u64) -> Result<Allocation, Short> {
        let Some((units, (place, placed))) = self.settings.units(bytes).and_then(|units| {
            let own = self.blocks.partitions(owner);
            let taken = match &mut self.layout {
                Layout::Partitions(map) => map.take(units, self.common.contains(units), own),
                Layout::FreeList(list) => list.take(units).map(|taken| {
                    let place = Place {
                        start: 0,
                        units: taken.units,
                    };
                    let device = |frees| Placed::Device { frees };
                    (place, taken.frees.map_or(Placed::Reused, device))
                }),
            };
            Some((units, taken?))
        }) else {
            return Err(self.short(bytes, self.free_units()));
        };
        self.common.count(units);
        let in_partitions = matches!(self.layout, Layout::Partitions(_));
        let shared = in_partitions && placed != Placed::Run;
        Ok(Allocation {
            block: self.blocks.insert(owner, place, bytes, shared),
            offset: in_partitions.then(|| u64::from(place.start) * self.settings.unit),
            bytes: u64::from(place.units) * self.settings.unit,
            placed,
        })
    }

    /// Frees a block; `None` if there is none of that id.
    pub fn free(&mut self, block: BlockId) -> Option<Freed> {
        let block = self.blocks.remove(block)?;
        Some(self.release(block))
    }

    /// Frees all blocks of an owner.
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

    /// An owner's blocks with the bytes asked for, the latest first.
    pub fn blocks(&self, owner: OwnerId) -> impl Iterator<Item = (BlockId, u64)> {
        let owned = self.blocks.owned(owner);
        owned.map(|(id, block)| (id, block.asked))
    }

    /// Where a block begins, in bytes from the start of the arena; `None`: there is no such block, or the device
    /// chose ([`Rule::FreeList`]).
    #[must_use]
    pub fn offset(&self, block: BlockId) -> Option<u64> {
        let block = self.blocks.get(block)?;
        let in_partitions = matches!(self.layout, Layout::Partitions(_));
        in_partitions.then(|| u64::from(block.place.start) * self.settings.unit)
    }

    /// Bytes taken by an owner's blocks.
    #[must_use]
    pub fn owned(&self, owner: OwnerId) -> u64 {
        self.blocks.of_owner(owner).0 * self.settings.unit
    }

    /// How many partitions become free if this owner goes, and no other: evicting those with many leaves room
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

    /// Supposes owners gone and asks what then fits. The arena is as before when the trial is dropped.
    pub fn trial(&mut self) -> Trial<'_> {
        Trial::new(self)
    }

    /// What freeing all of these owners would bring, and the longest run of free partitions then, in bytes.
    /// O(their blocks × log partitions).
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

    /// Whether blocks of these sizes, in bytes, fit now: [`Trial::fits`] with nobody gone.
    ///
    /// # Errors
    /// [`Short`] of the first size that does not fit.
    pub fn fits(&mut self, owner: OwnerId, sizes: &[u64]) -> Result<(), Short> {
        self.trial().fits(owner, sizes)
    }

    /// The sizes that are common now, in bytes, in no order.
    pub fn common_sizes(&self) -> impl Iterator<Item = u64> {
        let unit = self.settings.unit;
        self.common.iter().map(move |units| u64::from(units) * unit)
    }

    /// How the arena stands. O(partitions).
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

    /// Why so many bytes have no place while so many units are free.
    fn short(&self, asked: u64, free_units: u64) -> Short {
        let unit = self.settings.unit;
        let reason = match self.settings.units(asked).map(u64::from) {
            Some(units) if units <= free_units => ShortReason::Scattered,
            Some(units) if units <= self.arena_units() => ShortReason::Full,
            _ => ShortReason::TooLarge,
        };
        Short {
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
