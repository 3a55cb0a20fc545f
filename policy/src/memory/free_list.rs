//! The baseline of one list (M2.21, `Block`): what was released stays allocated natively, and serves whoever
//! asks for no more than it has.
//!
//! The paper does not say which of several blocks is taken, nor which are given back; here the smallest that is
//! large enough, and the largest first, which is kind to it: least is wasted, and fewest native calls are made.
//! The device itself is taken to map pages where it likes, so that it has room if bytes are left.

/// A released block that is still allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cached {
    units: u32,
    /// The order of release.
    order: u64,
}

#[derive(Clone, Debug)]
pub(super) struct FreeList {
    /// By size, then by release.
    cached: Vec<Cached>,
    /// Units in `cached`.
    cached_units: u64,
    /// Units that are not allocated.
    room: u64,
    released: u64,
    pub(super) device_allocations: u64,
    pub(super) device_frees: u64,
}

/// Where a block came from: its size in units, and native frees made for it; `None`: it was released before.
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

    /// Units that belong to no block.
    pub(super) const fn free(&self) -> u64 {
        self.room + self.cached_units
    }

    /// O(released blocks): the list is one vector in order.
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

    /// As another list, without allocating once warm.
    pub(super) fn copy_from(&mut self, other: &Self) {
        let cached = std::mem::take(&mut self.cached);
        *self = Self { cached, ..*other };
        self.cached.clear();
        self.cached.extend_from_slice(&other.cached);
    }

    /// Whether the list is in order and its sum is right.
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
