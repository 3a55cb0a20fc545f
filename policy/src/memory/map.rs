//! Where blocks go: partitions, and the heaps in which the fullest with room is found.
//!
//! Nothing here knows of owners or blocks. A map is a function of what is marked as used, whatever came and went
//! before, so taking a place and giving it back leaves no trace; trials rest on that.

use super::Placed;
use super::partition::{self, HALF, ORDERS, Partition, State, UNITS};
use super::vacancy::Vacancy;
use crate::heap::IndexedHeap;

/// Units of a block, from the start of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u32,
    pub(super) units: u32,
}

impl Place {
    pub(super) const fn partition(self) -> u32 {
        self.start / UNITS
    }

    /// The partitions that it lies in: one, or those of a run.
    pub(super) const fn partitions(self) -> std::ops::Range<u32> {
        let first = self.partition();
        first..first + self.units.div_ceil(UNITS)
    }
}

/// Fewest free units first, then the lowest partition.
type Key = (u32, u32);

/// In which heap a partition with room is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shelf {
    Slab(u32),
    /// By the order of the largest free buddy.
    Buddy(u32),
}

#[derive(Clone, Debug)]
pub(super) struct Map {
    partitions: Vec<Partition>,
    vacancy: Vacancy,
    /// By size in units.
    slabs: Vec<IndexedHeap<Key>>,
    buddies: Vec<IndexedHeap<Key>>,
    /// Which heaps have been grown to hold every partition: slabs by size, buddies from [`HALF`] + 1 on.
    grown: u64,
    /// In units.
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

    /// Units used.
    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    /// Units there are.
    pub(super) fn units(&self) -> u64 {
        self.partitions.len() as u64 * u64::from(UNITS)
    }

    /// Takes a place for a block of `units`; `own`: the partitions where its owner has blocks, in any order, and
    /// as often as it likes. `common`: whether the size is common.
    pub(super) fn take(
        &mut self,
        units: u32,
        common: bool,
        own: impl Iterator<Item = u32> + Clone,
    ) -> Option<(Place, Placed)> {
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
        let place = Place {
            start: at * UNITS + unit,
            units: size,
        };
        self.mark(place, state);
        Some((place, placed))
    }

    /// A partition for a block of at most a partition, and as what it goes there.
    fn choose(
        &self,
        units: u32,
        common: bool,
        own: impl Iterator<Item = u32> + Clone,
    ) -> Option<(u32, Shelf, Placed)> {
        let slab = Shelf::Slab(units);
        // What is left of a size that is common no longer still serves it.
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
            return Some((at, shelf, Placed::Opened));
        }
        // Nothing of its kind: rather lose up to half of a block than evict a model.
        if common && let Some((at, _)) = self.with_room(buddy, own) {
            return Some((at, buddy, Placed::Foreign));
        }
        (units + 1..(2 * units).min(HALF + 1)).find_map(|class| {
            let (_, at) = self.slabs[class as usize].peek()?;
            Some((at, Shelf::Slab(class), Placed::Foreign))
        })
    }

    /// The owner's fullest partition with room, else anybody's.
    fn with_room(&self, shelf: Shelf, own: impl Iterator<Item = u32>) -> Option<(u32, Placed)> {
        let has_room = |at: &u32| match (shelf, self.shelf(*at)) {
            (Shelf::Slab(wanted), Some(Shelf::Slab(class))) => wanted == class,
            (Shelf::Buddy(wanted), Some(Shelf::Buddy(largest))) => wanted <= largest,
            _ => false,
        };
        let key = |at: u32| (self.partitions[at as usize].free_units(), at);
        if let Some((_, at)) = own.filter(has_room).map(key).min() {
            return Some((at, Placed::Beside));
        }
        let (_, at) = match shelf {
            Shelf::Slab(class) => self.slabs[class as usize].peek()?,
            Shelf::Buddy(order) => {
                let larger = self.buddies.iter().skip(order as usize);
                larger.filter_map(IndexedHeap::peek).min()?
            }
        };
        Some((at, Placed::Fullest))
    }

    fn take_run(&mut self, units: u32) -> Option<(Place, Placed)> {
        let length = units.div_ceil(UNITS);
        let place = Place {
            start: self.vacancy.best(length)? * UNITS,
            units: length * UNITS,
        };
        self.mark(place, State::Run);
        Some((place, Placed::Run))
    }

    /// Marks a place that is free, in partitions that are free or in that state.
    pub(super) fn mark(&mut self, place: Place, state: State) {
        let bits = partition::bits(place.start % UNITS, place.units);
        for at in place.partitions() {
            self.change(at, |partition| {
                debug_assert!(partition.used & bits == 0, "the place is free");
                partition.state = state;
                partition.used |= bits;
            });
        }
        self.used += u64::from(place.units);
    }

    /// Gives a place back; tells how many partitions are free by that.
    pub(super) fn release(&mut self, place: Place) -> u32 {
        let bits = partition::bits(place.start % UNITS, place.units);
        let mut freed = 0;
        for at in place.partitions() {
            self.change(at, |partition| {
                debug_assert!(partition.used & bits == bits, "the place was taken");
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

    pub(super) fn state(&self, place: Place) -> State {
        self.partitions[place.partition() as usize].state
    }

    /// Where a partition belongs while it has room; `None`: it is free, full or in a run.
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

    /// Makes room for every partition when a heap is first used, so that it never allocates again.
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

    /// Whether a partition is where it belongs and nowhere else.
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
