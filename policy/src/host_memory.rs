//! Division of a node's host memory among the copies of models (M2.5): windows, which processes receive as they need them, within a bound on
//! all of it; [`pins`] decides which of it is registered with the driver.
//!
//! # Examples
//!
//! ```
//! use policy::host_memory::{HostMemory, WINDOW_UNIT};
//!
//! let mut node = HostMemory::new(100 * WINDOW_UNIT);
//! let window = node.take(0, 40 * WINDOW_UNIT).expect("there is room");
//! assert_eq!(window, 45 * WINDOW_UNIT);
//! assert_eq!(node.take(window, 40 * WINDOW_UNIT), None, "it has enough");
//! ```

pub mod pins;

/// Sizes of windows are multiples of this, in bytes: a huge page, and a granule of every GPU.
pub const WINDOW_UNIT: u64 = 2 << 20;
/// Part of the host memory of a process by which a window exceeds the need, so that a growing process needs few.
const AHEAD: u64 = 8;

/// Multiple of what a pod can need up to which its processes are given host memory: windows may be lost on their way, and count all the same, since
/// a process may keep what it denies to have.
const GIVEN_MAX: u64 = 2;

/// Returns whether the processes of a pod may be given `more` bytes. `given`: what they were given so far, with what was lost; `most`: what they can need.
#[must_use]
pub const fn may_be_given(given: u64, more: u64, most: u64) -> bool {
    given.saturating_add(more) <= most.saturating_mul(GIVEN_MAX)
}

/// Host memory of a node for the copies of models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostMemory {
    bytes_max: u64,
    used: u64,
}

impl HostMemory {
    /// Creates host memory of `bytes_max` bytes, of which none is in use.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used: 0 }
    }

    /// Takes a window for a process which has `given` bytes and needs `wanted` in all, and returns its size in bytes, a multiple of [`WINDOW_UNIT`]; `None` if it
    /// needs none, or there is not enough.
    pub fn take(&mut self, given: u64, wanted: u64) -> Option<u64> {
        let missing = wanted.checked_sub(given).filter(|bytes| *bytes > 0)?;
        let free = self.bytes_max.saturating_sub(self.used);
        let exact = missing.checked_next_multiple_of(WINDOW_UNIT)?;
        let ahead = missing
            .saturating_add(wanted / AHEAD)
            .checked_next_multiple_of(WINDOW_UNIT)?;
        let bytes = [ahead, exact].into_iter().find(|bytes| *bytes <= free)?;
        self.used += bytes;
        Some(bytes)
    }

    /// Counts windows which were taken elsewhere, as of an earlier agent, within the bound or not.
    pub const fn adopt(&mut self, bytes: u64) {
        self.used = self.used.saturating_add(bytes);
    }

    /// Returns windows of this size in all.
    pub const fn give_back(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn lost_memory_is_given_again_once() {
        assert!(may_be_given(0, 10, 10));
        assert!(may_be_given(10, 10, 10), "all of it was lost");
        assert!(!may_be_given(11, 10, 10));
        assert!(!may_be_given(u64::MAX, u64::MAX, 10));
    }

    #[test]
    fn a_window_covers_the_need_and_something_more() {
        let mut node = HostMemory::new(1_000 * MIB);
        assert_eq!(node.take(0, 80 * MIB), Some(90 * MIB));
        assert_eq!(node.take(90 * MIB, 90 * MIB), None);
        assert_eq!(node.take(90 * MIB, 91 * MIB), Some(14 * MIB));
    }

    #[test]
    fn host_memory_is_bounded() {
        let mut node = HostMemory::new(100 * MIB);
        assert_eq!(node.take(0, 40 * MIB), Some(46 * MIB));
        assert_eq!(node.take(0, 30 * MIB), Some(34 * MIB));
        // No room for more than the need.
        assert_eq!(node.take(0, 19 * MIB), Some(20 * MIB));
        assert_eq!(node.take(0, 1), None);
        node.give_back(46 * MIB);
        assert!(node.take(0, 40 * MIB).is_some());
        assert_eq!(node.take(0, u64::MAX), None);
    }

    #[test]
    fn random_windows_add_up_to_no_more_than_there_is() {
        let mut random = testing::Random(11);
        let host = 500;
        let mut node = HostMemory::new(host * MIB);
        // Naive model: the list of all windows that are out.
        let mut out: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            if random.below(2) == 0 {
                let wanted = random.below(120 * MIB);
                let given = random.below(40 * MIB);
                if let Some(window) = node.take(given, wanted) {
                    assert!(window >= wanted - given && window % WINDOW_UNIT == 0);
                    out.push(window);
                } else {
                    let free = host * MIB - out.iter().sum::<u64>();
                    let missing = wanted.saturating_sub(given);
                    assert!(missing == 0 || missing.next_multiple_of(WINDOW_UNIT) > free);
                }
            } else if !out.is_empty() {
                let window = out.swap_remove(random.index(out.len()));
                node.give_back(window);
            }
            assert!(out.iter().sum::<u64>() <= host * MIB);
        }
    }
}
