//! Bit arithmetic of one partition: 64 units, one bit each.
//!
//! No lists of buddies have to be maintained: a buddy block is free if its bits are, so buddies coalesce as soon as
//! they are freed.

/// Number of units in a partition.
pub(super) const UNITS: u32 = 64;
/// Largest size that can be a common size, in units: a slab of anything larger holds one block, as a buddy does.
pub(super) const HALF: u32 = UNITS / 2;
/// Number of buddy orders in a partition that is not empty: 1 to 32 units.
pub(super) const ORDERS: u32 = 6;

/// State of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The partition contains no block.
    Free,
    /// The partition contains blocks of this one size, in units, side by side.
    Slab(u32),
    /// The partition contains blocks of powers of two units, each at a multiple of its size.
    Buddy,
    /// The partition is part of one block that is larger than a partition.
    Run,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    pub(super) state: State,
    /// Bit set of the units that belong to a block.
    pub(super) used: u64,
}

impl Partition {
    pub(super) const FREE: Self = Self {
        state: State::Free,
        used: 0,
    };

    pub(super) const fn free_units(self) -> u32 {
        self.used.count_zeros()
    }
}

/// Returns a word with `units` bits set, starting at bit `at`.
pub(super) const fn bits(at: u32, units: u32) -> u64 {
    if units >= UNITS {
        u64::MAX
    } else {
        ((1 << units) - 1) << at
    }
}

/// Returns the bits at the multiples of `units` at which a block of that size ends within the partition.
const fn multiples(units: u32) -> u64 {
    let mut all = 0;
    let mut at = 0;
    while at + units <= UNITS {
        all |= 1 << at;
        at += units;
    }
    all
}

const MULTIPLES: [u64; UNITS as usize + 1] = {
    let mut table = [0; UNITS as usize + 1];
    let mut units = 1;
    while units <= UNITS {
        table[units as usize] = multiples(units);
        units += 1;
    }
    table
};

/// Returns the bits at which a block of `units` (1 to 64) could begin: multiples of its size with that many free units.
pub(super) const fn openings(used: u64, units: u32) -> u64 {
    let mut free = !used;
    let mut have = 1;
    while have < units {
        let step = if have < units - have {
            have
        } else {
            units - have
        };
        // Bits beyond the end are shifted in as zeros, which mean occupied.
        free &= free >> step;
        have += step;
    }
    free & MULTIPLES[units as usize]
}

/// Returns the place of a buddy block of 2^`order` units: in the smallest free block that holds it, the lowest of
/// those.
pub(super) fn buddy_opening(used: u64, order: u32) -> Option<u32> {
    (order..=ORDERS).find_map(|order| {
        let here = openings(used, 1 << order);
        let whole = if order < ORDERS {
            openings(used, 2 << order)
        } else {
            0
        };
        // Free blocks that are not half of a larger free block.
        let exact = here & !(whole | whole << (1 << order).min(HALF));
        (exact != 0).then(|| exact.trailing_zeros())
    })
}

/// Returns the order of the largest free buddy block, or `None` if the partition is full.
pub(super) fn largest_order(used: u64) -> Option<u32> {
    (0..=ORDERS)
        .rev()
        .find(|&order| openings(used, 1 << order) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slowly(used: u64, units: u32) -> u64 {
        (0..UNITS)
            .step_by(units as usize)
            .filter(|at| at + units <= UNITS)
            .filter(|at| (*at..at + units).all(|bit| used >> bit & 1 == 0))
            .fold(0, |all, at| all | 1 << at)
    }

    #[test]
    fn openings_equal_those_found_bit_by_bit() {
        let mut used = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..200 {
            used = used.wrapping_mul(0xBF58_476D_1CE4_E5B9).rotate_left(17);
            for thinned in [
                0,
                used,
                used & used.rotate_left(9),
                used & used << 3 & used >> 8,
            ] {
                for units in 1..=UNITS {
                    assert_eq!(
                        openings(thinned, units),
                        slowly(thinned, units),
                        "{thinned:x} {units}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_buddy_is_put_where_it_splits_the_least() {
        assert_eq!(buddy_opening(0, 3), Some(0));
        assert_eq!(buddy_opening(bits(0, 8), 3), Some(8));
        // Units 40 to 47 are not half of a free block; 0 to 31 are a free block of 32.
        let used = bits(32, 8) | bits(48, 16);
        assert_eq!(buddy_opening(used, 3), Some(40));
        assert_eq!(buddy_opening(used, 4), Some(0));
        assert_eq!(buddy_opening(used, 6), None);
        assert_eq!(largest_order(used), Some(5));
        assert_eq!(buddy_opening(0, 6), Some(0));
        assert_eq!(largest_order(u64::MAX), None);
        assert_eq!(largest_order(0), Some(6));
    }
}
