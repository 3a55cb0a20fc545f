//! Division of a node's host memory among the copies of models (M2.5): windows, which processes receive as they need them, within a bound on
//! all of it and one on what is registered with the driver.
//!
//! # Examples
//!
//! ```
//! use policy::host_memory::{HostMemory, WINDOW_UNIT};
//!
//! let mut node = HostMemory::new(100 * WINDOW_UNIT, 50 * WINDOW_UNIT);
//! let window = node.take(0, 40 * WINDOW_UNIT).expect("there is room");
//! assert_eq!(window.bytes, 45 * WINDOW_UNIT);
//! assert!(window.is_pinned);
//! assert_eq!(node.take(window.bytes, 40 * WINDOW_UNIT), None, "it has enough");
//! ```

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
    pinned_max: u64,
    used: u64,
    pinned: u64,
}

/// Host memory for one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Size in bytes, a multiple of [`WINDOW_UNIT`].
    pub bytes: u64,
    /// Whether it may be registered with the driver.
    pub is_pinned: bool,
}

impl HostMemory {
    /// Creates host memory of `bytes_max` bytes, of which none is in use; `pinned_max` of them may be registered with the driver.
    #[must_use]
    pub const fn new(bytes_max: u64, pinned_max: u64) -> Self {
        Self {
            bytes_max,
            pinned_max,
            used: 0,
            pinned: 0,
        }
    }

    /// Takes a window for a process which has `given` bytes and needs `wanted` in all; `None` if it needs none, or there is not enough.
    pub fn take(&mut self, given: u64, wanted: u64) -> Option<Window> {
        let missing = wanted.checked_sub(given).filter(|bytes| *bytes > 0)?;
        let free = self.bytes_max.saturating_sub(self.used);
        let exact = missing.checked_next_multiple_of(WINDOW_UNIT)?;
        let ahead = missing
            .saturating_add(wanted / AHEAD)
            .checked_next_multiple_of(WINDOW_UNIT)?;
        let bytes = [ahead, exact].into_iter().find(|bytes| *bytes <= free)?;
        let is_pinned = self.pinned.saturating_add(bytes) <= self.pinned_max;
        self.used += bytes;
        if is_pinned {
            self.pinned += bytes;
        }
        Some(Window { bytes, is_pinned })
    }

    /// Counts windows which were taken elsewhere, as of an earlier agent, within the bounds or not. `pinned`: part of `bytes`.
    pub const fn adopt(&mut self, bytes: u64, pinned: u64) {
        self.used = self.used.saturating_add(bytes);
        self.pinned = self.pinned.saturating_add(pinned);
    }

    /// Returns windows of this size in all. `pinned`: part of `bytes`.
    pub const fn give_back(&mut self, bytes: u64, pinned: u64) {
        self.used = self.used.saturating_sub(bytes);
        self.pinned = self.pinned.saturating_sub(pinned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn node(host: u64, pinned: u64) -> HostMemory {
        HostMemory::new(host * MIB, pinned * MIB)
    }

    #[test]
    fn lost_memory_is_given_again_once() {
        assert!(may_be_given(0, 10, 10));
        assert!(may_be_given(10, 10, 10), "all of it was lost");
        assert!(!may_be_given(11, 10, 10));
        assert!(!may_be_given(u64::MAX, u64::MAX, 10));
    }

    #[test]
    fn a_window_covers_the_need_and_something_more() {
        let mut node = node(1_000, 500);
        let window = node.take(0, 80 * MIB).unwrap();
        assert_eq!((window.bytes, window.is_pinned), (90 * MIB, true));
        assert_eq!(node.take(90 * MIB, 90 * MIB), None);
        let more = node.take(90 * MIB, 91 * MIB).unwrap();
        assert_eq!(more.bytes, 14 * MIB);
    }

    #[test]
    fn host_memory_and_its_pinned_part_are_bounded() {
        let mut node = node(100, 50);
        let first = node.take(0, 40 * MIB).unwrap();
        assert_eq!((first.bytes, first.is_pinned), (46 * MIB, true));
        let second = node.take(0, 30 * MIB).unwrap();
        assert_eq!((second.bytes, second.is_pinned), (34 * MIB, false));
        // No room for more than the need.
        let exact = node.take(0, 19 * MIB).unwrap();
        assert_eq!(exact.bytes, 20 * MIB);
        assert_eq!(node.take(0, 1), None);
        node.give_back(first.bytes, first.bytes);
        assert!(node.take(0, 40 * MIB).unwrap().is_pinned);
        assert_eq!(node.take(0, u64::MAX), None);
    }

    #[test]
    fn random_windows_add_up_to_no_more_than_there_is() {
        let mut random = testing::Random(11);
        let (host, pinned) = (500, 200);
        let mut node = node(host, pinned);
        // Naive model: the list of all windows that are out.
        let mut out: Vec<Window> = Vec::new();
        for _ in 0..20_000 {
            if random.below(2) == 0 {
                let wanted = random.below(120 * MIB);
                let given = random.below(40 * MIB);
                if let Some(window) = node.take(given, wanted) {
                    assert!(window.bytes >= wanted - given && window.bytes % WINDOW_UNIT == 0);
                    out.push(window);
                } else {
                    let free = host * MIB - out.iter().map(|own| own.bytes).sum::<u64>();
                    let missing = wanted.saturating_sub(given);
                    assert!(missing == 0 || missing.next_multiple_of(WINDOW_UNIT) > free);
                }
            } else if !out.is_empty() {
                let window = out.swap_remove(random.index(out.len()));
                let part = if window.is_pinned { window.bytes } else { 0 };
                node.give_back(window.bytes, part);
            }
            let sum = |only: bool| -> u64 {
                let meant = out.iter().filter(|own| own.is_pinned || !only);
                meant.map(|own| own.bytes).sum()
            };
            assert!(sum(false) <= host * MIB && sum(true) <= pinned * MIB);
        }
    }
}
