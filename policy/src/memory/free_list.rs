//! The baseline with one list (M2.21, `Block`): a released block stays allocated natively, and serves the next request
//! that needs no more than its size.
//!
//! The paper specifies neither which of several blocks is taken nor which are given back. This implementation takes the
//! smallest that is large enough, and gives back the largest first. That favors the baseline: it wastes least and makes
//! the fewest native calls. The device itself is assumed to map pages where it likes, so it has room whenever enough
//! bytes are left.

/// Released block that is still allocated natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cached {
    units: u32,
    /// Sequence number of the release.
    order: u64,
}

#[derive(Clone, Debug)]
pub(super) struct FreeList {
    /// Cached blocks by size, then by release.
    cached: Vec<Cached>,
    /// Total of `cached`, in units.
    cached_units: u64,
    /// Units that are not allocated natively.
    room: u64,
    released: u64,
    pub(super) device_allocations: u64,
    pub(super) device_frees: u64,
}

/// Block taken from the list: its size in units, and the native frees made for it, or `None` if it was cached.
pub(super) struct Taken {
    pub(super) units: u32,
    pub(super) frees: Option<u32>,
}

impl FreeList {
    pub(super) const fn new(units: u64) -> Self {
        Self {
            cached: Vec::new(),
            cached_units: 0,
            room: units,
            released: 0,
            device_allocations: 0,
            device_frees: 0,
        }
    }

    /// Returns the number of units that belong to no block.
    pub(super) const fn free(&self) -> u64 {
        self.room + self.cached_units
    }

    /// Takes a block of at least `units`, or returns `None` if there is no room. O(released blocks), since the list is
    /// one ordered vector.
    pub(super) fn take(&mut self, units: u32) -> Option<Taken> {
        let at = self.cached.partition_point(|cached| cached.units < units);
        if at < self.cached.len() {
            let units = self.cached.remove(at).units;
            self.cached_units -= u64::from(units);
            return Some(Taken { units, frees: None });
        }
        if self.free() < u64::from(units) {
            return None;
        }
        let mut frees = 0;
        while self.room < u64::from(units) {
            let largest = self.cached.pop()?;
            self.cached_units -= u64::from(largest.units);
            self.room += u64::from(largest.units);
            frees += 1;
        }
        self.room -= u64::from(units);
        self.device_frees += u64::from(frees);
        self.device_allocations += 1;
        Some(Taken {
            units,
            frees: Some(frees),
        })
    }

    pub(super) fn release(&mut self, units: u32) {
        let at = self.cached.partition_point(|cached| cached.units <= units);
        let order = self.released;
        self.released += 1;
        self.cached.insert(at, Cached { units, order });
        self.cached_units += u64::from(units);
    }

    /// Copies another list, without allocating once warm.
    pub(super) fn copy_from(&mut self, other: &Self) {
        let cached = std::mem::take(&mut self.cached);
        *self = Self { cached, ..*other };
        self.cached.clear();
        self.cached.extend_from_slice(&other.cached);
    }

    /// Returns whether the list is in order and its sum is correct.
    pub(super) fn is_consistent(&self) -> bool {
        let sum: u64 = self
            .cached
            .iter()
            .map(|cached| u64::from(cached.units))
            .sum();
        let key = |cached: &Cached| (cached.units, cached.order);
        sum == self.cached_units && self.cached.is_sorted_by_key(key)
    }
}
