//! History of each slot's load over the last five minutes, in cells of five seconds.

use std::collections::{BTreeMap, VecDeque};

use crate::state::{Figures, SlotKey};

/// Length of a cell, in seconds.
pub(crate) const CELL_SECONDS: u64 = 5;
/// Number of cells kept per slot: those of five minutes.
pub(crate) const CELLS: usize = 60;

const CELL_NS: u64 = CELL_SECONDS * 1_000_000_000;

/// Part of a cell's time in which a kernel ran, in percent; `None`: the slot was absent.
pub(crate) type Busy = Option<u8>;

/// Finished cells of a slot and the start of the current one.
#[derive(Debug, Default)]
struct Slot {
    cells: VecDeque<Busy>,
    /// Start of the current cell in nanoseconds, and the slot's busy time at that moment; `None`: the slot was absent.
    begun: (u64, Option<u64>),
}

/// Load history of all slots.
#[derive(Debug, Default)]
pub(crate) struct SlotHistory {
    slots: BTreeMap<SlotKey, Slot>,
}

impl SlotHistory {
    /// Adds figures. A cell ends with the first figures after its time; after a longer pause, each missed cell gets the mean.
    pub(crate) fn take(&mut self, figures: &Figures) {
        for own in figures.slots.iter().filter(|own| !own.is_lost) {
            self.slots.entry(own.slot).or_insert_with(|| Slot {
                cells: VecDeque::new(),
                begun: (figures.at_ns, Some(own.busy_ns)),
            });
        }
        self.slots.retain(|key, slot| {
            let own = figures.slot(*key).filter(|own| !own.is_lost);
            let busy = own.map(|own| own.busy_ns);
            slot.take(figures.at_ns, busy);
            busy.is_some() || slot.cells.iter().any(Option::is_some)
        });
    }

    /// Returns the finished cells of a slot, the oldest first; at most [`CELLS`].
    pub(crate) fn cells(&self, key: SlotKey) -> Vec<Busy> {
        let slot = self.slots.get(&key);
        slot.map(|slot| slot.cells.iter().copied().collect())
            .unwrap_or_default()
    }
}

impl Slot {
    fn take(&mut self, at_ns: u64, busy_ns: Option<u64>) {
        let (begun, busy_then) = self.begun;
        let span = at_ns.saturating_sub(begun);
        if span < CELL_NS {
            return;
        }
        let percent = busy_ns.zip(busy_then).map(|(now, then)| {
            let busy = now.saturating_sub(then).min(span);
            // At most 100, since `busy` is at most `span`.
            u8::try_from(u128::from(busy) * 100 / u128::from(span)).unwrap_or(100)
        });
        let cells = usize::try_from(span / CELL_NS).unwrap_or(CELLS).min(CELLS);
        self.cells.extend(std::iter::repeat_n(percent, cells));
        while self.cells.len() > CELLS {
            self.cells.pop_front();
        }
        self.begun = (at_ns, busy_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::SlotFigures;

    fn figures(second: u64, busy_ms: &[u64]) -> Figures {
        let slots = busy_ms.iter().enumerate();
        let slots = slots.map(|(key, busy_ms)| SlotFigures {
            slot: SlotKey(u32::try_from(key).unwrap()),
            is_lost: false,
            held_hundredths: 0,
            holders: 0,
            waiters: 0,
            grants: 0,
            idle_while_waiting_ns: 0,
            busy_ns: busy_ms * 1_000_000,
            processes: 0,
            context_residue: None,
        });
        Figures {
            at_ns: second * 1_000_000_000,
            slots: slots.collect(),
            ..Figures::none()
        }
    }

    #[test]
    fn a_cell_has_its_busy_share_and_old_cells_are_dropped() {
        let mut history = SlotHistory::default();
        for second in 0..=400_u64 {
            // A quarter of the time until second 200, then all of it.
            let busy_ms = second.min(200) * 250 + second.saturating_sub(200) * 1_000;
            history.take(&figures(second, &[busy_ms, 0]));
        }
        let cells = history.cells(SlotKey(0));
        assert_eq!(cells.len(), CELLS);
        assert_eq!(
            (cells[0], cells[19], cells[20]),
            (Some(25), Some(25), Some(100))
        );
        assert!(history.cells(SlotKey(1)).iter().all(|own| *own == Some(0)));
        assert!(history.cells(SlotKey(2)).is_empty());
    }

    #[test]
    fn a_lost_slot_has_empty_cells_until_it_is_dropped() {
        let mut history = SlotHistory::default();
        for second in 0..=10 {
            history.take(&figures(second, &[0]));
        }
        // The service still publishes figures of it.
        for second in 11..=20 {
            let mut lost = figures(second, &[0]);
            lost.slots[0].is_lost = true;
            history.take(&lost);
        }
        assert_eq!(history.cells(SlotKey(0)), [Some(0), Some(0), None, None]);
        // A pause fills as many cells as it lasts.
        history.take(&figures(400, &[]));
        assert!(history.cells(SlotKey(0)).is_empty());
    }

    #[test]
    fn a_counter_that_restarts_counts_as_idle() {
        let mut history = SlotHistory::default();
        history.take(&figures(0, &[9_000]));
        history.take(&figures(5, &[100]));
        assert_eq!(history.cells(SlotKey(0)), [Some(0)]);
    }
}
