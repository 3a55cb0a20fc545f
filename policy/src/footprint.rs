//! What pods of shared weights need of a GPU's memory, and whether there is room (M4.15, papers 4.6).
//!
//! A function whose pods share weights holds them once per GPU, in a storage process of its own: n pods
//! need *storage + n × pod* (FaST-GShare §5.5). Functions that share nothing have no storage. All amounts
//! are bytes; what the context of a process takes is part of its pod's amount, since it is measured with it.

use crate::rectangles::FunctionId;

/// What the storage process of a function takes besides the weights: 300 MB (FaST-GShare §5.5).
pub const STORAGE_PROCESS: u64 = 300 << 20;

/// The memory law of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Held once while at least one pod of the function is on the GPU: weights and the process that holds
    /// them, in bytes.
    pub storage: u64,
    /// Held by each pod, in bytes.
    pub pod: u64,
}

/// The memory of one GPU or slice, by what its pods were admitted with.
#[derive(Clone, Debug)]
pub struct Memory {
    capacity: u64,
    used: u64,
    /// Few: a GPU has at most as many functions as MPS clients.
    holders: Vec<Holder>,
}

/// A function that has pods on the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Which.
    pub function: FunctionId,
    /// What is held for all of its pods together, in bytes.
    pub storage: u64,
    /// How many pods it has here.
    pub pods: u32,
}

impl Footprint {
    /// A pod that shares nothing, of so many bytes.
    #[must_use]
    pub const fn unshared(pod: u64) -> Self {
        Self { storage: 0, pod }
    }

    /// A function whose pods share `weights` bytes, each with `pod` bytes besides.
    #[must_use]
    pub const fn shared(weights: u64, pod: u64) -> Self {
        Self {
            storage: STORAGE_PROCESS.saturating_add(weights),
            pod,
        }
    }

    /// What `pods` of it need together, in bytes; nothing for none.
    #[must_use]
    pub const fn of(&self, pods: u32) -> u64 {
        if pods == 0 {
            return 0;
        }
        self.storage
            .saturating_add(self.pod.saturating_mul(pods as u64))
    }

    /// How many pods of it fit into `capacity` bytes; [`u32::MAX`] if they need nothing.
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
    /// An empty memory of so many bytes.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            holders: Vec::new(),
        }
    }

    /// In bytes.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What the pods were admitted with, in bytes.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// In bytes.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.capacity - self.used
    }

    /// The functions that have pods here, in no order.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// What one pod more of the function would take, in bytes: without what is there already. O(functions
    /// here).
    #[must_use]
    pub fn needs(&self, function: FunctionId, footprint: &Footprint) -> u64 {
        let held = self.holder(function).map_or(0, |holder| holder.storage);
        footprint
            .storage
            .saturating_sub(held)
            .saturating_add(footprint.pod)
    }

    /// One pod more, if there is room; whether there was. Storage is what the pod that knows of most
    /// says, until the last pod of the function has gone.
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

    /// A pod that was admitted with this footprint has gone, and with the last of its function the storage.
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
    fn amounts_without_end_are_refused_and_do_not_wrap() {
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
