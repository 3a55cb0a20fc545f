//! Trials: whether blocks would fit if some owners were gone.

use super::common::CommonSizes;
use super::free_list::FreeList;
use super::map::{Map, UnitRange};
use super::partition::State;
use super::{Freed, Layout, Memory, OutOfSpace, OwnerId};

/// Buffers for trials, kept so that trials allocate nothing.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    evicted: Vec<OwnerId>,
    /// Places that the trial released, with the former states of their partitions.
    released: Vec<(UnitRange, State)>,
    taken: Vec<UnitRange>,
    /// Partitions of `taken`, without repetition.
    beside: Vec<u32>,
    list: FreeList,
    attempt: FreeList,
}

impl Scratch {
    pub(super) const fn new() -> Self {
        Self {
            evicted: Vec::new(),
            released: Vec::new(),
            taken: Vec::new(),
            beside: Vec::new(),
            list: FreeList::new(0),
            attempt: FreeList::new(0),
        }
    }
}

/// Supposed change of an arena, undone when dropped; see [`Memory::trial`].
#[derive(Debug)]
pub struct Trial<'a> {
    memory: &'a mut Memory,
}

impl<'a> Trial<'a> {
    pub(super) fn new(memory: &'a mut Memory) -> Self {
        if let Layout::FreeList(list) = &memory.layout {
            memory.scratch.list.copy_from(list);
        }
        Self { memory }
    }

    /// Supposes that an owner's blocks are freed, and returns their total. An owner that is already supposed gone
    /// yields nothing. O(its blocks × log partitions).
    pub fn free_owner(&mut self, owner: OwnerId) -> Freed {
        let Memory {
            layout,
            blocks,
            scratch,
            settings,
            ..
        } = &mut *self.memory;
        let mut freed = Freed::default();
        if scratch.evicted.contains(&owner) {
            return freed;
        }
        scratch.evicted.push(owner);
        for (_, block) in blocks.owned(owner) {
            freed.blocks += 1;
            freed.bytes += u64::from(block.place.units) * settings.unit;
            match layout {
                Layout::Partitions(map) => {
                    scratch.released.push((block.place, map.state(block.place)));
                    freed.partitions += map.release(block.place);
                }
                Layout::FreeList(_) => scratch.list.release(block.place.units),
            }
        }
        freed
    }

    /// Returns the longest run of free partitions in bytes, as [`super::Gauges::largest_free_run`].
    #[must_use]
    pub fn largest_free_run(&self) -> u64 {
        match &self.memory.layout {
            Layout::Partitions(_) => self.memory.largest_free_run(),
            Layout::FreeList(_) => self.memory.scratch.list.free() * self.memory.settings.unit,
        }
    }

    /// Checks whether blocks of these sizes, in bytes, would fit if an owner requested them in that order. The result
    /// is exact: the same allocations succeed once the blocks of the owners supposed gone have been freed. Sizes of
    /// earlier calls are not remembered. O(sizes × (partitions of the owner + log partitions)).
    ///
    /// # Errors
    /// Returns [`OutOfSpace`] for the first size that does not fit.
    pub fn fits(&mut self, owner: OwnerId, sizes: &[u64]) -> Result<(), OutOfSpace> {
        let mut outcome = Ok(());
        let mut common = self.memory.common;
        if let Layout::FreeList(_) = self.memory.layout {
            let Scratch { list, attempt, .. } = &mut self.memory.scratch;
            attempt.copy_from(list);
        }
        for &bytes in sizes {
            if let Err(short) = self.place(owner, bytes, &mut common) {
                outcome = Err(short);
                break;
            }
        }
        let Memory {
            layout, scratch, ..
        } = &mut *self.memory;
        if let Layout::Partitions(map) = layout {
            for place in scratch.taken.drain(..) {
                map.release(place);
            }
        }
        scratch.beside.clear();
        outcome
    }

    fn place(
        &mut self,
        owner: OwnerId,
        bytes: u64,
        common: &mut CommonSizes,
    ) -> Result<(), OutOfSpace> {
        let Memory {
            layout,
            blocks,
            scratch,
            settings,
            ..
        } = &mut *self.memory;
        let units = settings.units(bytes);
        let placed = units.and_then(|units| match layout {
            Layout::Partitions(map) => {
                let gone = scratch.evicted.contains(&owner);
                let before = (!gone).then(|| blocks.partitions(owner));
                let own = before
                    .into_iter()
                    .flatten()
                    .chain(scratch.beside.iter().copied());
                let (place, _) = map.take(units, common.contains(units), own)?;
                scratch.taken.push(place);
                if !scratch.beside.contains(&place.partition()) {
                    scratch.beside.push(place.partition());
                }
                common.count(units);
                Some(())
            }
            Layout::FreeList(_) => scratch.attempt.take(units).map(|_| ()),
        });
        placed.ok_or_else(|| {
            let free = match &self.memory.layout {
                Layout::Partitions(map) => map.units() - map.used(),
                Layout::FreeList(_) => self.memory.scratch.attempt.free(),
            };
            self.memory.out_of_space(bytes, free)
        })
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let Memory {
            layout, scratch, ..
        } = &mut *self.memory;
        if let Layout::Partitions(map) = layout {
            undo(map, &mut scratch.released);
        }
        scratch.evicted.clear();
    }
}

fn undo(map: &mut Map, released: &mut Vec<(UnitRange, State)>) {
    for (place, state) in released.drain(..) {
        map.mark(place, state);
    }
}
