//! Visited states of the search, and the dominance between states.
//!
//! A state dominates another if the same requests may still run, every slot is free no later and has at least the same
//! models, its value is no less, and no function needs more requests: then at least as much can be reached from it.

use std::collections::BTreeMap;

use super::state::State;

/// Visited states that are not dominated; see the [module](self). Grows by about 130 bytes for each new state.
#[derive(Default)]
pub(super) struct Visited {
    /// States by the set of requests that may still run.
    states: BTreeMap<u64, Vec<State>>,
}

impl Visited {
    /// Returns whether no visited state dominates this one. If so, inserts it and removes those that it dominates.
    pub(super) fn is_new(&mut self, state: &State) -> bool {
        let alike = self.states.entry(state.open).or_default();
        if alike.iter().any(|other| outdoes(other, state)) {
            return false;
        }
        alike.retain(|other| !outdoes(state, other));
        alike.push(*state);
        true
    }
}

/// Returns whether `one` dominates `other`; both have the same requests open. Slots are compared in their order: dominance in
/// another order of slots is not detected, which costs time but not correctness.
fn outdoes(one: &State, other: &State) -> bool {
    let slots = || one.slots.iter().zip(&other.slots);
    one.value >= other.value
        && slots().all(|(one, other)| one.free <= other.free)
        && slots().all(|(one, other)| other.resident & !one.resident == 0)
        && one
            .wanted
            .iter()
            .zip(&other.wanted)
            .all(|(one, other)| one <= other)
}

#[cfg(test)]
mod tests {
    use super::super::case::{FUNCTIONS_MAX, SLOTS_MAX};
    use super::super::state::Slot;
    use super::*;

    #[test]
    fn a_state_is_new_unless_a_visited_one_dominates_it() {
        let slot = Slot {
            free: 10,
            resident: 0b11,
            number: 0,
        };
        let known = State {
            open: 0b100,
            hopeful: 0b100,
            slots: [slot; SLOTS_MAX],
            value: 3,
            wanted: [2; FUNCTIONS_MAX],
        };
        let changed = |change: fn(&mut State)| {
            let mut state = known;
            change(&mut state);
            state
        };
        let worse: [fn(&mut State); 4] = [
            |own| own.slots[3].free = 11,
            |own| own.slots[1].resident = 0b10,
            |own| own.value = 2,
            |own| own.wanted[31] = 3,
        ];
        let better: [fn(&mut State); 5] = [
            |own| own.slots[0].free = 9,
            |own| own.slots[1].resident = 0b111,
            |own| own.value = 4,
            |own| own.wanted[31] = 1,
            |own| own.open = 0b110,
        ];
        for change in worse {
            let mut visited = Visited::default();
            assert!(visited.is_new(&known) && !visited.is_new(&known));
            assert!(!visited.is_new(&changed(change)));
        }
        for change in better {
            let mut visited = Visited::default();
            assert!(visited.is_new(&known));
            assert!(visited.is_new(&changed(change)));
        }
    }
}
