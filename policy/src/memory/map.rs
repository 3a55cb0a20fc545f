//! Placement of blocks: the partitions, and the heaps that find the fullest one with room.
//!
//! A map knows nothing of owners or blocks. It is a function of the units that are marked as used, independent of its
//! history, so taking a place and giving it back leaves no trace. Trials rely on that.

use super::BlockPlacement;
use super::partition::{self, HALF, ORDERS, Partition, State, UNITS};
use super::vacancy::Vacancy;
use crate::heap::IndexedHeap;

/// Units of a block, counted from the start of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitRange {
    pub(super) start: u32,
    pub(super) units: u32,
}

impl UnitRange {
    pub(super) const fn partition(self) -> u32 {
        self.start / UNITS
    }

    /// Returns the partitions that the place covers: one, or those of a run.
    pub(super) const fn partitions(self) -> std::ops::Range<u32> {
        let first = self.partition();
        first..first + self.units.div_ceil(UNITS)
    }
}

/// Order within a heap: fewest free units first, then the lowest partition.
type Key = (u32, u32);

/// Heap in which a partition with room is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shelf {
    Slab(u32),
    /// Partitions of buddies, by the order of their largest free buddy.
    Buddy(u32),
}

#[derive(Clone, Debug)]
pub(super) struct Map {
    partitions: Vec<Partition>,
    vacancy: Vacancy,
    /// Heaps of slabs, by block size in units.
    slabs: Vec<IndexedHeap<Key>>,
    buddies: Vec<IndexedHeap<Key>>,
    /// Bit set of the heaps that have grown to hold every partition: slabs by size, buddies from [`HALF`] + 1 on.
    grown: u64,
    /// Smallest buddy block, in units.
    buddy_min: u32,
    used: u64,
}

impl Map {
    pub(super) fn new(partitions: u32, buddy_min: u32) -> Self {
        Self {
            partitions: vec![Partition::FREE; partitions as usize],
            vacancy: Vacancy::all(partitions),
            slabs: vec![IndexedHeap::new(); HALF as usize + 1],
            buddies: vec![IndexedHeap::new(); ORDERS as usize],
            grown: 0,
            buddy_min,
            used: 0,
        }
    }

    pub(super) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    pub(super) const fn vacancy(&self) -> &Vacancy {
        &self.vacancy
    }

    /// Returns the number of used units.
    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of units of the whole map.
    pub(super) fn units(&self) -> u64 {
        self.partitions.len() as u64 * u64::from(UNITS)
    }

    /// Takes a place for a block of `units`, or returns `None` if there is none. `own` are the partitions in which the
    /// owner has blocks, in any order, possibly repeated. `common` is whether the size is common.
    pub(super) fn take(
        &mut self,
        units: u32,
        common: bool,
        own: impl Iterator<Item = u32> + Clone,
    ) -> Option<(UnitRange, BlockPlacement)> {
        if units > UNITS {
            return self.take_run(units);
        }
        let (at, shelf, placed) = self.choose(units, common, own)?;
        let (state, size) = match shelf {
            Shelf::Slab(class) => (State::Slab(class), class),
            Shelf::Buddy(order) => (State::Buddy, 1 << order),
        };
        let used = self.partitions[at as usize].used;
        let unit = match shelf {
            Shelf::Slab(class) => partition::openings(used, class).trailing_zeros(),
            Shelf::Buddy(order) => partition::buddy_opening(used, order)?,
        };
        let place = UnitRange {
            start: at * UNITS + unit,
            units: size,
        };
        self.mark(place, state);
        Some((place, placed))
    }

    /// Chooses a partition for a block of at most a partition, and the kind of block that it becomes there.
    fn choose(
        &self,
        units: u32,
        common: bool,
        own: impl Iterator<Item = u32> + Clone,
    ) -> Option<(u32, Shelf, BlockPlacement)> {
        let slab = Shelf::Slab(units);
        // Slabs of a size that is no longer common still serve that size.
        if units <= HALF
            && let Some((at, placed)) = self.with_room(slab, own.clone())
        {
            return Some((at, slab, placed));
        }
        let order = units.max(self.buddy_min).next_power_of_two().ilog2();
        let buddy = Shelf::Buddy(order);
        if !common && let Some((at, placed)) = self.with_room(buddy, own.clone()) {
            return Some((at, buddy, placed));
        }
        if let Some(at) = self.vacancy.best(1) {
            let shelf = if common { slab } else { buddy };
            return Some((at, shelf, BlockPlacement::Opened));
        }
        // No partition of its kind is left: losing up to half of a block is better than evicting a model.
        if common && let Some((at, _)) = self.with_room(buddy, own) {
            return Some((at, buddy, BlockPlacement::Foreign));
        }
        (units + 1..(2 * units).min(HALF + 1)).find_map(|class| {
            let (_, at) = self.slabs[class as usize].peek()?;
            Some((at, Shelf::Slab(class), BlockPlacement::Foreign))
        })
    }

    /// Returns the fullest partition with room among the owner's, or otherwise among all.
    fn with_room(
        &self,
        shelf: Shelf,
        own: impl Iterator<Item = u32>,
    ) -> Option<(u32, BlockPlacement)> {
        let has_room = |at: &u32| match (shelf, self.shelf(*at)) {
            (Shelf::Slab(wanted), Some(Shelf::Slab(class))) => wanted == class,
            (Shelf::Buddy(wanted), Some(Shelf::Buddy(largest))) => wanted <= largest,
            _ => false,
        };
        let key = |at: u32| (self.partitions[at as usize].free_units(), at);
        if let Some((_, at)) = own.filter(has_room).map(key).min() {
            return Some((at, BlockPlacement::Beside));
        }
        let (_, at) = match shelf {
            Shelf::Slab(class) => self.slabs[class as usize].peek()?,
            Shelf::Buddy(order) => {
                let larger = self.buddies.iter().skip(order as usize);
                larger.filter_map(IndexedHeap::peek).min()?
            }
        };
        Some((at, BlockPlacement::Fullest))
    }

    fn take_run(&mut self, units: u32) -> Option<(UnitRange, BlockPlacement)> {
        let length = units.div_ceil(UNITS);
        let place = UnitRange {
            start: self.vacancy.best(length)? * UNITS,
            units: length * UNITS,
        };
        self.mark(place, State::Run);
        Some((place, BlockPlacement::Run))
    }

    /// Marks a free place as used, in partitions that are free or already in that state.
    pub(super) fn mark(&mut self, place: UnitRange, state: State) {
        let bits = partition::bits(place.start % UNITS, place.units);
        for at in place.partitions() {
            self.change(at, |partition| {
                debug_assert!(partition.used & bits == 0, "the place must be free");
                partition.state = state;
                partition.used |= bits;
            });
        }
        self.used += u64::from(place.units);
    }

    /// Gives a place back and returns how many partitions become free by that.
    pub(super) fn release(&mut self, place: UnitRange) -> u32 {
        let bits = partition::bits(place.start % UNITS, place.units);
        let mut freed = 0;
        for at in place.partitions() {
            self.change(at, |partition| {
                debug_assert!(partition.used & bits == bits, "the place must be in use");
                partition.used &= !bits;
                if partition.used == 0 {
                    partition.state = State::Free;
                    freed += 1;
                }
            });
        }
        self.used -= u64::from(place.units);
        freed
    }

    pub(super) fn state(&self, place: UnitRange) -> State {
        self.partitions[place.partition() as usize].state
    }

    /// Returns the heap to which a partition belongs while it has room, or `None` if it is free, full, or in a run.
    pub(super) fn shelf(&self, at: u32) -> Option<Shelf> {
        let partition = self.partitions[at as usize];
        match partition.state {
            State::Free | State::Run => None,
            State::Slab(class) => {
                (partition::openings(partition.used, class) != 0).then_some(Shelf::Slab(class))
            }
            State::Buddy => partition::largest_order(partition.used).map(Shelf::Buddy),
        }
    }

    fn change(&mut self, at: u32, change: impl FnOnce(&mut Partition)) {
        if let Some(shelf) = self.shelf(at) {
            self.heap(shelf).remove(at);
        }
        let partition = &mut self.partitions[at as usize];
        change(partition);
        let free = partition.free_units();
        self.vacancy.set(at, partition.state == State::Free);
        if let Some(shelf) = self.shelf(at) {
            self.grow(shelf);
            self.heap(shelf).push(at, (free, at));
        }
    }

    /// Grows a heap to the number of partitions when it is first used, so that it never allocates again.
    fn grow(&mut self, shelf: Shelf) {
        let bit = match shelf {
            Shelf::Slab(class) => 1 << class,
            Shelf::Buddy(order) => 1 << (HALF + 1 + order),
        };
        if self.grown & bit == 0 {
            self.grown |= bit;
            let partitions = (0..).zip(&self.partitions).map(|(at, _)| at);
            let heap = match shelf {
                Shelf::Slab(class) => &mut self.slabs[class as usize],
                Shelf::Buddy(order) => &mut self.buddies[order as usize],
            };
            for at in partitions {
                heap.push(at, (0, at));
            }
            heap.clear();
        }
    }

    fn heap(&mut self, shelf: Shelf) -> &mut IndexedHeap<Key> {
        match shelf {
            Shelf::Slab(class) => &mut self.slabs[class as usize],
            Shelf::Buddy(order) => &mut self.buddies[order as usize],
        }
    }

    /// Returns whether a partition is in the heap to which it belongs and in no other.
    pub(super) fn is_indexed(&self, at: u32) -> bool {
        let shelf = self.shelf(at);
        let key = (self.partitions[at as usize].free_units(), at);
        let holds = |heap: &IndexedHeap<Key>, here: bool| {
            heap.contains(at) == here && (!here || heap.iter().any(|item| item == (key, at)))
        };
        self.vacancy.contains(at) == (self.partitions[at as usize].state == State::Free)
            && (0..)
                .zip(&self.slabs)
                .all(|(class, heap)| holds(heap, shelf == Some(Shelf::Slab(class))))
            && (0..)
                .zip(&self.buddies)
                .all(|(order, heap)| holds(heap, shelf == Some(Shelf::Buddy(order))))
    }
}
