//! Memory pools of the driver and the memory nodes of graphs.

use std::collections::BTreeSet;
use std::ffi::c_int;

use crate::Handle;

/// Memory pools of the driver and the memory nodes of graphs, as counted for the process.
#[derive(Debug, Default)]
pub struct Pools {
    /// Pools from which memory was allocated, or which the program created.
    known: BTreeSet<Handle>,
    /// Devices whose graphs may have memory.
    graphs: BTreeSet<c_int>,
}

impl Pools {
    /// Adds a pool, if it is new.
    pub fn add(&mut self, pool: Handle) {
        self.known.insert(pool);
    }

    /// Removes a destroyed pool.
    pub fn remove(&mut self, pool: Handle) {
        self.known.remove(&pool);
    }

    /// Adds a device whose graphs may have memory.
    pub fn add_graphs(&mut self, device: c_int) {
        self.graphs.insert(device);
    }

    /// Returns whether there is no pool and no graph with memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.graphs.is_empty()
    }

    /// Returns the handles of all pools.
    pub fn known(&self) -> impl Iterator<Item = Handle> {
        self.known.iter().copied()
    }

    /// Returns the memory reserved by all pools, and that of graphs, in bytes. `pool` returns that of a pool, and `None` for one that the driver
    /// does not know any more, which is removed; `graphs` returns that of a device's graphs.
    pub fn reserved(
        &mut self,
        pool: impl Fn(Handle) -> Option<u64>,
        graphs: impl Fn(c_int) -> u64,
    ) -> (u64, u64) {
        let mut of_pools: u64 = 0;
        self.known.retain(|&known| {
            let reserved = pool(known);
            of_pools = of_pools.saturating_add(reserved.unwrap_or(0));
            reserved.is_some()
        });
        let of_graphs = self.graphs.iter().map(|&device| graphs(device));
        (of_pools, of_graphs.fold(0, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_and_graphs_add_up_and_unknown_pools_are_removed() {
        let mut pools = Pools::default();
        assert!(pools.is_empty());
        for pool in 1..=3 {
            pools.add(pool);
        }
        pools.add_graphs(0);
        let reserved = |pool| (pool != 2).then_some(10 * pool as u64);
        assert_eq!(pools.reserved(reserved, |_| 5), (40, 5));
        assert_eq!(pools.known().collect::<Vec<_>>(), [1, 3]);
        pools.remove(1);
        pools.add_graphs(1);
        assert_eq!(pools.reserved(reserved, |_| u64::MAX), (30, u64::MAX));
        assert!(!pools.is_empty());
    }
}
