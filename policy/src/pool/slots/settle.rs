//! Placement of functions that have a slot for good (M2.21, early binding).

use std::cmp::Reverse;

use super::{FunctionId, Pool, SlotId};

/// Order in which slots are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Filling {
    /// The slot with the most free memory first: load is spread as far as can be known in advance.
    #[default]
    MostFree,
    /// The first slot first: slot after slot is filled, as by a scheduler that packs.
    InOrder,
}

impl Pool {
    /// Places a function's model on the first slot in the given order that has room for it, without evictions, and
    /// returns that slot, or `None` if none has room. Of slots with equal memory the first is tried first. O(slots) if
    /// the first slot tried has room, and O(slots²) at worst.
    pub fn settle(&mut self, function: FunctionId, filling: Filling) -> Option<SlotId> {
        let mut tried: u64 = 0;
        loop {
            let left = (0..)
                .zip(&self.slots)
                .filter(|(at, _)| tried >> at & 1 == 0);
            let (at, _) = match filling {
                Filling::MostFree => left.min_by_key(|(_, slot)| Reverse(slot.memory.free())),
                Filling::InOrder => left.min_by_key(|(at, _)| *at),
            }?;
            if self.adopt(function, SlotId(at)).is_ok() {
                return Some(SlotId(at));
            }
            tried |= 1 << at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;
    use crate::pool::slots::{Model, Settings, Topology};

    fn places(filling: Filling, models: &[u64]) -> Vec<Option<u32>> {
        let topology = Topology::new(&[10; 3]).unwrap();
        let mut pool = Pool::new(Settings::default(), topology);
        (0..)
            .zip(models)
            .map(|(at, &bytes)| {
                let model = Model {
                    bytes,
                    heavy: false,
                    tight: false,
                    writes: false,
                    execution: Span::from_millis(1),
                    swapped: Span::from_millis(2),
                };
                pool.add(FunctionId(at), model).unwrap();
                pool.settle(FunctionId(at), filling).map(|slot| slot.0)
            })
            .collect()
    }

    #[test]
    fn models_are_spread_over_slots_or_fill_them_in_order() {
        let models = [4, 4, 4, 6, 5, 4, 2, 6, 1];
        assert_eq!(
            places(Filling::MostFree, &models),
            [0, 1, 2, 0, 1, 2, 2, 9, 1].map(|at| (at < 9).then_some(at))
        );
        assert_eq!(
            places(Filling::InOrder, &models),
            [0, 0, 1, 1, 2, 2, 0, 9, 2].map(|at| (at < 9).then_some(at))
        );
    }
}
