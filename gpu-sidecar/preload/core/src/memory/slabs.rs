//! Small allocations: pieces of slabs, each of which is one mapping. Pure: it knows numbers, no memory.
//!
//! The lowest slab with room is used, so that the highest ones empty and can be given back.

use std::collections::BTreeMap;

use super::spans::Spans;

/// Where pieces begin is a multiple of this, and what they take too. The driver's own small allocations begin at multiples
/// of 512 (it promises 256), and libraries rely on what they see.
pub(super) const ALIGNMENT: u64 = 512;

#[derive(Debug)]
struct Slab {
    bytes: u64,
    free: Spans,
    pieces: u32,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Slabs {
    slabs: BTreeMap<u64, Slab>,
}

/// A piece that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) at: u64,
    /// It is the first one of a slab that was empty before, of so many bytes.
    pub(super) from_empty: Option<u64>,
}

/// How many bytes a piece takes.
pub(super) const fn piece_bytes(asked: u64) -> Option<u64> {
    asked.checked_next_multiple_of(ALIGNMENT)
}

impl Slabs {
    /// One more, empty.
    pub(super) fn add(&mut self, begin: u64, bytes: u64) {
        let slab = Slab {
            bytes,
            free: Spans::new(begin, bytes),
            pieces: 0,
        };
        self.slabs.insert(begin, slab);
    }

    /// A piece of so many bytes, which [`piece_bytes`] has said.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Taken> {
        let mut slabs = self.slabs.values_mut();
        let slab = slabs.find(|slab| slab.free.longest() >= bytes)?;
        let at = slab.free.take(bytes)?;
        slab.pieces += 1;
        Some(Taken {
            at,
            from_empty: (slab.pieces == 1).then_some(slab.bytes),
        })
    }

    /// Gives a piece back. Where its slab begins and how many bytes it has, if nobody has a piece of it any more.
    pub(super) fn give_back(&mut self, at: u64, bytes: u64) -> Option<(u64, u64)> {
        let (&begin, slab) = self.slabs.range_mut(..=at).next_back()?;
        slab.free.give_back(at, bytes);
        slab.pieces -= 1;
        (slab.pieces == 0).then_some((begin, slab.bytes))
    }

    /// Forgets slabs of which nobody has a piece, but for so many: where they begin.
    pub(super) fn remove_empty(&mut self, keep: usize) -> Vec<u64> {
        let empty = self.slabs.iter().filter(|(_, slab)| slab.pieces == 0);
        let empty: Vec<u64> = empty.map(|(&begin, _)| begin).skip(keep).collect();
        for begin in &empty {
            self.slabs.remove(begin);
        }
        empty
    }

    /// The slab that an address lies in: where it begins.
    pub(super) fn slab_of(&self, address: u64) -> Option<u64> {
        let (&begin, slab) = self.slabs.range(..=address).next_back()?;
        (address - begin < slab.bytes).then_some(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::super::spans::tests::Random;
    use super::*;

    const SLAB: u64 = 2 << 20;

    #[test]
    fn pieces_do_not_overlap_and_slabs_empty() {
        let mut random = Random(99);
        let mut slabs = Slabs::default();
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut there = 0;
        for round in 0..20_000 {
            if random.below(5) > 1 && round < 15_000 || held.is_empty() {
                let bytes = piece_bytes(1 + random.below(200_000)).unwrap();
                let taken = slabs.take(bytes).unwrap_or_else(|| {
                    slabs.add((1 << 44) + there * SLAB, SLAB);
                    there += 1;
                    slabs.take(bytes).unwrap()
                });
                assert!(taken.at.is_multiple_of(ALIGNMENT));
                let begin = slabs.slab_of(taken.at).unwrap();
                assert!(taken.at + bytes <= begin + SLAB);
                let before = held.range(..taken.at).next_back();
                assert!(before.is_none_or(|(at, bytes)| at + bytes <= taken.at));
                let behind = held.range(taken.at..).next();
                assert!(behind.is_none_or(|(at, _)| *at >= taken.at + bytes));
                held.insert(taken.at, bytes);
            } else {
                let which = usize::try_from(random.below(held.len() as u64)).unwrap();
                let at = *held.keys().nth(which).unwrap();
                let bytes = held.remove(&at).unwrap();
                let begin = slabs.slab_of(at).unwrap();
                let empty = slabs.give_back(at, bytes);
                let is_empty = held.range(begin..begin + SLAB).next().is_none();
                assert_eq!(empty, is_empty.then_some((begin, SLAB)));
            }
        }
        for (at, bytes) in held {
            let _empty = slabs.give_back(at, bytes);
        }
        assert_eq!(slabs.remove_empty(1).len() as u64, there - 1);
        assert_eq!(slabs.remove_empty(0).len(), 1);
        assert_eq!(slabs.take(512), None);
    }

    #[test]
    fn the_first_piece_of_an_empty_slab_says_so() {
        let mut slabs = Slabs::default();
        slabs.add(SLAB, SLAB);
        assert_eq!(slabs.take(512).unwrap().from_empty, Some(SLAB));
        assert_eq!(slabs.take(512).unwrap().from_empty, None);
        assert_eq!(slabs.give_back(SLAB, 512), None);
        assert_eq!(slabs.give_back(SLAB + 512, 512), Some((SLAB, SLAB)));
        assert_eq!(slabs.slab_of(SLAB - 1), None);
        assert_eq!(slabs.slab_of(2 * SLAB), None);
    }
}
