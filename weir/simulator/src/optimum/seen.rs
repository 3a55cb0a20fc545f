//! States that were met, and which of two is no worse.
//!
//! From one state at least as much can be reached as from another if the same requests may still run, every slot is free
//! no later and has the same models and more, as much was reached, and no function wants more.

use std::collections::BTreeMap;

use super::state::State;

/// See the [module](self). Grows by one state for each that is new: some 130 bytes.
#[derive(Default)]
pub(super) struct Seen {
    /// By the requests that may still run.
    states: BTreeMap<u64, Vec<State>>,
}

impl Seen {
    /// Whether there is something new in a state. Remembers it if so, and forgets those that it outdoes.
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

/// Whether one is no worse than the other; both have the same requests open. Slots are compared in their order: one that
/// is no worse in another order is not found, which costs time and not truth.
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
    fn a_state_is_new_unless_one_that_was_met_is_no_worse_in_all() {
        let slot = Slot {
            free: 10,
            resident: 0b11,
            number: 0,
        };
        let met = State {
            open: 0b100,
            hopeful: 0b100,
            slots: [slot; SLOTS_MAX],
            value: 3,
            wanted: [2; FUNCTIONS_MAX],
        };
        let changed = |change: fn(&mut State)| {
            let mut state = met;
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
            let mut seen = Seen::default();
            assert!(seen.is_new(&met) && !seen.is_new(&met));
            assert!(!seen.is_new(&changed(change)));
        }
        for change in better {
            let mut seen = Seen::default();
            assert!(seen.is_new(&met));
            assert!(seen.is_new(&changed(change)));
        }
    }
}
