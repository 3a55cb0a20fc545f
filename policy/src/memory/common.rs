//! Which block sizes are common enough for slabs of their own (mechanisms §2.5).
//!
//! Blocks are counted by size. After every 256 blocks the counts are evaluated: the four most frequent sizes are common
//! if each has at least a sixteenth of the blocks. If fewer sizes qualify, 2 and 20 MiB fill the places, since
//! PyTorch's caching allocator requests those. Then all counts are halved, so that models that are gone are forgotten.

use super::partition::HALF;

/// Number of sizes that are common at once.
const CLASSES: usize = 4;
/// Sizes that are common before anything is known, in units of 2 MiB.
const DEFAULTS: [u8; 2] = [1, 10];
/// Number of blocks after which the counts are evaluated.
const PERIOD: u32 = 256;
/// Fraction of all blocks, as one part in this many, that makes a size common.
const PART: u32 = 16;

/// Block counts by size, and the common sizes; 0 marks an empty place.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommonSizes {
    counts: [u32; HALF as usize + 1],
    since: u32,
    classes: [u8; CLASSES],
}

impl CommonSizes {
    pub(super) const fn new() -> Self {
        Self {
            counts: [0; HALF as usize + 1],
            since: 0,
            classes: [DEFAULTS[0], DEFAULTS[1], 0, 0],
        }
    }

    pub(super) fn contains(&self, units: u32) -> bool {
        units != 0 && self.classes.iter().any(|&class| u32::from(class) == units)
    }

    /// Iterates over the common sizes, in units.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let classes = self.classes.into_iter().map(u32::from);
        classes.filter(|&class| class != 0)
    }

    /// Counts a block that was placed, by its size.
    pub(super) fn count(&mut self, units: u32) {
        if let Some(count) = self.counts.get_mut(units as usize) {
            *count += 1;
        }
        self.since += 1;
        if self.since >= PERIOD {
            self.since = 0;
            self.learn();
        }
    }

    fn learn(&mut self) {
        let all: u32 = self.counts.iter().sum();
        let mut classes = [0; CLASSES];
        for at in 0..CLASSES {
            let rest = (1..).zip(&self.counts[1..]);
            let rest = rest.filter(|(units, _)| !classes.contains(units));
            // Among equal counts, prefers a size that is already common, then the smallest.
            let best = rest.max_by_key(|&(units, &count)| {
                (count, self.classes.contains(&units), u8::MAX - units)
            });
            let Some((units, _)) = best.filter(|&(_, &count)| count > 0 && count >= all / PART)
            else {
                break;
            };
            classes[at] = units;
        }
        for default in DEFAULTS {
            if !classes.contains(&default)
                && let Some(place) = classes.iter_mut().find(|class| **class == 0)
            {
                *place = default;
            }
        }
        self.classes = classes;
        for count in &mut self.counts {
            *count /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(sizes: &CommonSizes) -> Vec<u32> {
        let mut classes: Vec<_> = sizes.iter().collect();
        classes.sort_unstable();
        classes
    }

    fn count(sizes: &mut CommonSizes, blocks: &[(u32, u32)]) {
        for &(units, times) in blocks {
            for _ in 0..times {
                sizes.count(units);
            }
        }
    }

    #[test]
    fn the_four_most_frequent_sizes_are_common() {
        let mut sizes = CommonSizes::new();
        assert_eq!(sorted(&sizes), [1, 10]);
        count(&mut sizes, &[(3, 80), (7, 60), (12, 50), (5, 40), (9, 25)]);
        assert_eq!(sorted(&sizes), [1, 10], "before 256");
        count(&mut sizes, &[(9, 1)]);
        assert_eq!(sorted(&sizes), [3, 5, 7, 12]);
    }

    #[test]
    fn rare_sizes_leave_their_places_to_the_defaults() {
        let mut sizes = CommonSizes::new();
        count(&mut sizes, &[(3, 226), (7, 15), (64, 15)]);
        assert_eq!(sorted(&sizes), [1, 3, 7, 10], "15 of 241 is a sixteenth");
        count(&mut sizes, &[(3, 246), (7, 10)]);
        assert_eq!(sorted(&sizes), [1, 3, 10]);
    }

    #[test]
    fn a_size_that_is_no_longer_used_stops_being_common() {
        let mut sizes = CommonSizes::new();
        count(&mut sizes, &[(3, 256)]);
        assert!(sizes.contains(3));
        for _ in 0..4 {
            count(&mut sizes, &[(5, 256)]);
        }
        assert!(!sizes.contains(3) && sizes.contains(5));
        assert!(!sizes.contains(0));
    }
}
