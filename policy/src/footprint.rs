//! The memory that pods with shared weights need on a GPU, and whether there is room for it (M4.15, mechanisms §4.6).
//!
//! A function whose pods share weights holds them once per GPU, in a storage process of its own: n pods need *storage +
//! n × pod* (FaST-GShare §5.5). Functions that share nothing have no storage. All amounts are in bytes. The context of
//! a process is part of its pod's amount, since both are measured together.
//!
//! # Examples
//!
//! ```
//! use policy::footprint::{Footprint, Memory};
//! use policy::rectangles::FunctionId;
//!
//! let footprint = Footprint { storage: 3 << 30, pod: 1 << 30 };
//! assert_eq!(footprint.of(2), 5 << 30);
//!
//! let mut memory = Memory::new(5 << 30);
//! assert!(memory.admit(FunctionId(0), &footprint));
//! // The second pod shares the weights of the first.
//! assert!(memory.admit(FunctionId(0), &footprint));
//! assert!(!memory.admit(FunctionId(0), &footprint));
//! assert_eq!(memory.free(), 0);
//! ```

use crate::rectangles::FunctionId;

/// Memory of a function's storage process in addition to the weights, in bytes: 300 MiB (FaST-GShare §5.5).
pub const STORAGE_PROCESS: u64 = 300 << 20;

/// Memory requirements of a function's pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Memory held once while at least one pod of the function is on the GPU, in bytes: the weights and the process
    /// that holds them.
    pub storage: u64,
    /// Memory held by each pod, in bytes.
    pub pod: u64,
}

/// Memory of one GPU or slice, accounted by the footprints with which its pods were admitted.
#[derive(Clone, Debug)]
pub struct Memory {
    capacity: u64,
    used: u64,
    /// Functions with pods here, in no order; few, since a GPU has at most as many functions as MPS clients.
    holders: Vec<Holder>,
}

/// A function that has pods on the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Id of the function.
    pub function: FunctionId,
    /// Memory held for all of the function's pods together, in bytes.
    pub storage: u64,
    /// Number of the function's pods on this GPU.
    pub pods: u32,
}

impl Footprint {
    /// Returns the footprint of a pod of `pod` bytes that shares nothing.
    #[must_use]
    pub const fn unshared(pod: u64) -> Self {
        Self { storage: 0, pod }
    }

    /// Returns the footprint of a function whose pods share `weights` bytes and need `pod` bytes each in addition.
    #[must_use]
    pub const fn shared(weights: u64, pod: u64) -> Self {
        Self {
            storage: STORAGE_PROCESS.saturating_add(weights),
            pod,
        }
    }

    /// Returns the memory that `pods` pods need together, in bytes; zero for no pods.
    #[must_use]
    pub const fn of(&self, pods: u32) -> u64 {
        if pods == 0 {
            return 0;
        }
        self.storage
            .saturating_add(self.pod.saturating_mul(pods as u64))
    }

    /// Returns how many pods fit into `capacity` bytes, or [`u32::MAX`] if they need no memory.
    #[must_use]
    pub fn pods_in(&self, capacity: u64) -> u32 {
        let Some(left) = capacity.checked_sub(self.storage) else {
            return 0;
        };
        left.checked_div(self.pod)
            .map_or(u32::MAX, |pods| u32::try_from(pods).unwrap_or(u32::MAX))
    }
}

impl Memory {
    /// Creates an empty memory of `capacity` bytes.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            holders: Vec::new(),
        }
    }

    /// Returns the capacity in bytes.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the memory held by the admitted pods, in bytes: once the storage of each of their functions, and the
    /// memory of each pod.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Returns the free memory in bytes.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.capacity - self.used
    }

    /// Returns the functions that have pods here, in no order.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Returns the memory that one more pod of the function would take, in bytes, without what is already held for the
    /// function. O(functions here).
    #[must_use]
    pub fn needs(&self, function: FunctionId, footprint: &Footprint) -> u64 {
        let held = self.holder(function).map_or(0, |holder| holder.storage);
        footprint
            .storage
            .saturating_sub(held)
            .saturating_add(footprint.pod)
    }

    /// Admits one more pod if there is room, and returns whether there was. The storage of a function is the largest
    /// that any of its pods stated, until its last pod has gone.
    pub fn admit(&mut self, function: FunctionId, footprint: &Footprint) -> bool {
        let needs = self.needs(function, footprint);
        if needs > self.free() {
            return false;
        }
        self.used += needs;
        if let Some(holder) = self.holder_mut(function) {
            holder.storage = holder.storage.max(footprint.storage);
            holder.pods += 1;
        } else {
            self.holders.push(Holder {
                function,
                storage: footprint.storage,
                pods: 1,
            });
        }
        true
    }

    /// Releases the memory of a pod that was admitted with this footprint, and the function's storage with its last
    /// pod.
    pub fn release(&mut self, function: FunctionId, footprint: &Footprint) {
        let Some(at) = (self.holders.iter()).position(|holder| holder.function == function) else {
            return;
        };
        self.used -= footprint.pod;
        let holder = &mut self.holders[at];
        holder.pods -= 1;
        if holder.pods == 0 {
            self.used -= holder.storage;
            self.holders.swap_remove(at);
        }
    }

    fn holder(&self, function: FunctionId) -> Option<&Holder> {
        (self.holders.iter()).find(|holder| holder.function == function)
    }

    fn holder_mut(&mut self, function: FunctionId) -> Option<&mut Holder> {
        (self.holders.iter_mut()).find(|holder| holder.function == function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const VIT: FunctionId = FunctionId(0);

    #[test]
    fn vit_huge_needs_what_the_paper_measured() {
        let shared = Footprint {
            storage: 2_979 * MB,
            pod: 2_101 * MB,
        };
        let alone = Footprint::unshared(4_735 * MB);
        assert_eq!(shared.of(0), 0);
        assert_eq!(shared.of(1), 5_080 * MB);
        assert_eq!(shared.of(3), 9_282 * MB);
        assert_eq!(alone.of(1), 4_735 * MB);
        assert_eq!(alone.of(3), 14_205 * MB);
        assert_eq!(Footprint::shared(2_679 * MB, 2_101 * MB), shared);
        // On a V100 of 16 GB.
        assert_eq!(shared.pods_in(16_384 * MB), 6);
        assert_eq!(alone.pods_in(16_384 * MB), 3);
    }

    #[test]
    fn storage_is_counted_once_per_function_and_gpu() {
        let footprint = Footprint {
            storage: 100,
            pod: 10,
        };
        let mut memory = Memory::new(125);
        assert_eq!(memory.needs(VIT, &footprint), 110);
        assert!(memory.admit(VIT, &footprint));
        assert_eq!(memory.needs(VIT, &footprint), 10);
        assert_eq!(memory.needs(FunctionId(1), &footprint), 110);
        assert!(memory.admit(VIT, &footprint));
        assert!(!memory.admit(VIT, &footprint));
        assert_eq!((memory.used(), memory.free()), (120, 5));
        memory.release(VIT, &footprint);
        assert_eq!(memory.used(), 110);
        memory.release(VIT, &footprint);
        assert_eq!(memory.used(), 0);
        assert!(memory.holders().is_empty());
    }

    #[test]
    fn huge_amounts_are_refused_and_do_not_wrap() {
        let footprint = Footprint {
            storage: u64::MAX,
            pod: u64::MAX,
        };
        let mut memory = Memory::new(u64::MAX - 1);
        assert!(!memory.admit(VIT, &footprint));
        assert_eq!(footprint.of(7), u64::MAX);
        assert_eq!(footprint.pods_in(10), 0);
        assert_eq!(Footprint::default().pods_in(10), u32::MAX);
    }
}
