//! Small allocations as pieces of slabs, each of which is one mapping. Operates on numbers only.
//!
//! The lowest slab with room is used, so that the highest ones become empty and can be released.

use std::collections::BTreeMap;

use super::spans::Spans;

/// Alignment of a piece's address and size, in bytes. The driver's own small allocations are aligned to 512 (it guarantees 256),
/// and libraries rely on the actual alignment.
pub const ALIGNMENT: u64 = 512;

#[derive(Debug)]
struct Slab {
    bytes: u64,
    free: Spans,
    pieces: u32,
}

/// Slabs of one device and the free pieces in them.
#[derive(Debug, Default)]
pub struct Slabs {
    slabs: BTreeMap<u64, Slab>,
}

/// Piece taken from a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address of the piece.
    pub at: u64,
    /// Size in bytes of the piece's slab, if this is the first piece of an empty slab.
    pub from_empty: Option<u64>,
}

/// Returns the size of a piece in bytes; `None` on overflow.
#[must_use]
pub const fn piece_bytes(requested: u64) -> Option<u64> {
    requested.checked_next_multiple_of(ALIGNMENT)
}

impl Slabs {
    /// Adds an empty slab.
    pub fn add(&mut self, begin: u64, bytes: u64) {
        let slab = Slab {
            bytes,
            free: Spans::new(begin, bytes),
            pieces: 0,
        };
        self.slabs.insert(begin, slab);
    }

    /// Takes a piece of `bytes`, a result of [`piece_bytes`]; `None` if no slab has room.
    pub fn take(&mut self, bytes: u64) -> Option<Piece> {
        let mut slabs = self.slabs.values_mut();
        let slab = slabs.find(|slab| slab.free.longest() >= bytes)?;
        let at = slab.free.take(bytes)?;
        slab.pieces += 1;
        Some(Piece {
            at,
            from_empty: (slab.pieces == 1).then_some(slab.bytes),
        })
    }

    /// Returns a piece to its slab. Returns the slab's first address and size if the slab is empty now.
    pub fn give_back(&mut self, at: u64, bytes: u64) -> Option<(u64, u64)> {
        let (&begin, slab) = self.slabs.range_mut(..=at).next_back()?;
        slab.free.give_back(at, bytes);
        slab.pieces -= 1;
        (slab.pieces == 0).then_some((begin, slab.bytes))
    }

    /// Removes empty slabs except `keep` of them, and returns their first addresses.
    pub fn remove_empty(&mut self, keep: usize) -> Vec<u64> {
        let empty = self.slabs.iter().filter(|(_, slab)| slab.pieces == 0);
        let empty: Vec<u64> = empty.map(|(&begin, _)| begin).skip(keep).collect();
        for begin in &empty {
            self.slabs.remove(begin);
        }
        empty
    }

    /// Returns the first address of the slab that contains an address.
    #[must_use]
    pub fn slab_of(&self, address: u64) -> Option<u64> {
        let (&begin, slab) = self.slabs.range(..=address).next_back()?;
        (address - begin < slab.bytes).then_some(begin)
    }
}

#[cfg(test)]
mod tests {
    use testing::Random;

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
    fn the_first_piece_of_an_empty_slab_is_marked() {
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
