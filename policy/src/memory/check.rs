//! Comparison of the bookkeeping with the individual blocks.

use super::map::UnitRange;
use super::partition::{self, State, UNITS};
use super::{Fault, Layout, Memory, OwnerId};

impl Memory {
    /// Checks that no blocks overlap, that owned and free units add up to the arena, that every partition is in exactly
    /// one state with which its blocks agree, and that all indices are consistent. Meant for tests and for a self-check
    /// at rest: it allocates, and takes O(blocks + partitions²).
    ///
    /// # Errors
    /// Returns the first [`Fault`] found.
    pub fn check(&self) -> Result<(), Fault> {
        let mut units = 0;
        let mut asked = 0;
        for (_, block) in self.blocks.iter() {
            units += u64::from(block.place.units);
            asked += block.asked;
        }
        let mut by_owner = (0, 0);
        for owner in 0..self.blocks.owners() {
            let (units, asked) = self.blocks.of_owner(OwnerId(owner));
            by_owner = (by_owner.0 + units, by_owner.1 + asked);
        }
        let owned = match &self.layout {
            Layout::Partitions(map) => map.used(),
            Layout::FreeList(list) => self.arena_units() - list.free(),
        };
        if owned != units || asked != self.blocks.asked() || by_owner != (units, asked) {
            return Err(Fault::Totals);
        }
        match &self.layout {
            Layout::Partitions(_) => self.check_partitions(),
            Layout::FreeList(list) if list.is_consistent() => Ok(()),
            Layout::FreeList(_) => Err(Fault::Totals),
        }
    }

    fn check_partitions(&self) -> Result<(), Fault> {
        let Layout::Partitions(map) = &self.layout else {
            return Ok(());
        };
        let partitions = map.partitions();
        let mut used = vec![0_u64; partitions.len()];
        let mut tenants = vec![Vec::new(); partitions.len()];
        for (id, block) in self.blocks.iter() {
            let bits = partition::bits(block.place.start % UNITS, block.place.units);
            for partition in block.place.partitions() {
                let used = &mut used[partition as usize];
                if *used & bits != 0 {
                    return Err(Fault::Overlap { block: id });
                }
                *used |= bits;
            }
            let partition = block.place.partition();
            let state = map.state(block.place);
            if !agrees(state, block.place) {
                return Err(Fault::State { partition });
            }
            if state != State::Run {
                tenants[partition as usize].push(block.owner);
            }
        }
        let mut listed = vec![0_u32; partitions.len()];
        for owner in 0..self.blocks.owners() {
            for partition in self.blocks.partitions(OwnerId(owner)) {
                listed[partition as usize] += 1;
                if !tenants[partition as usize].contains(&owner) {
                    return Err(Fault::Tenants { partition });
                }
            }
        }
        for (partition, mut owners) in (0..).zip(tenants) {
            let at = partition as usize;
            if used[at] != partitions[at].used {
                return Err(Fault::Units { partition });
            }
            if (used[at] == 0) != (partitions[at].state == State::Free) {
                return Err(Fault::State { partition });
            }
            if !map.is_indexed(partition) {
                return Err(Fault::Index { partition });
            }
            owners.sort_unstable();
            owners.dedup();
            if owners.len() != listed[at] as usize || listed[at] != self.blocks.tenants(partition) {
                return Err(Fault::Tenants { partition });
            }
        }
        Ok(())
    }
}

/// Returns whether a partition of this state may contain the block at this place.
fn agrees(state: State, place: UnitRange) -> bool {
    let at = place.start % UNITS;
    match state {
        State::Free => false,
        State::Slab(class) => place.units == class && at.is_multiple_of(class),
        State::Buddy => {
            place.units.is_power_of_two() && place.units <= UNITS && at.is_multiple_of(place.units)
        }
        State::Run => at == 0 && place.units > UNITS && place.units.is_multiple_of(UNITS),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Rule, Settings, UNIT};
    use super::*;

    /// Builds an arena with two owners' blocks of 2 MiB in one slab and a run, corrupts it, and returns the result of
    /// the check.
    fn broken(breaking: impl FnOnce(&mut Memory)) -> Result<(), Fault> {
        let mut memory = Memory::new(Settings::new(8 * 64 * UNIT)).unwrap();
        for owner in [0, 0, 1] {
            memory.alloc(OwnerId(owner), UNIT).unwrap();
        }
        memory.alloc(OwnerId(1), 65 * UNIT).unwrap();
        assert_eq!(memory.check(), Ok(()));
        breaking(&mut memory);
        memory.check()
    }

    fn mark(memory: &mut Memory, start: u32, units: u32, state: State) {
        if let Layout::Partitions(map) = &mut memory.layout {
            map.mark(UnitRange { start, units }, state);
        }
    }

    fn insert(memory: &mut Memory, start: u32, units: u32) {
        let place = UnitRange { start, units };
        memory.blocks.insert(OwnerId(1), place, 1, true);
    }

    #[test]
    fn check_finds_corrupted_bookkeeping() {
        assert_eq!(broken(|_| ()), Ok(()));
        let lost = broken(|memory| mark(memory, 10, 1, State::Slab(1)));
        assert_eq!(lost, Err(Fault::Totals));
        let overlap = broken(|memory| {
            mark(memory, 10, 1, State::Slab(1));
            insert(memory, 2, 1);
        });
        assert!(matches!(overlap, Err(Fault::Overlap { .. })), "{overlap:?}");
        let elsewhere = broken(|memory| {
            mark(memory, 10, 1, State::Slab(1));
            insert(memory, 11, 1);
        });
        assert_eq!(elsewhere, Err(Fault::Units { partition: 0 }));
        let crooked = broken(|memory| {
            mark(memory, 5 * 64 + 1, 2, State::Buddy);
            insert(memory, 5 * 64 + 1, 2);
        });
        assert_eq!(crooked, Err(Fault::State { partition: 5 }));
        let stranger = broken(|memory| {
            mark(memory, 10, 1, State::Slab(1));
            let place = UnitRange {
                start: 10,
                units: 1,
            };
            memory.blocks.insert(OwnerId(2), place, 1, false);
        });
        assert_eq!(stranger, Err(Fault::Tenants { partition: 0 }));
    }

    #[test]
    fn check_finds_a_free_list_that_lost_a_block() {
        let mut memory = Memory::new(Settings {
            rule: Rule::FreeList,
            ..Settings::new(64 * UNIT)
        })
        .unwrap();
        memory.alloc(OwnerId(0), UNIT).unwrap();
        if let Layout::FreeList(list) = &mut memory.layout {
            list.release(1);
        }
        assert_eq!(memory.check(), Err(Fault::Totals));
    }
}
