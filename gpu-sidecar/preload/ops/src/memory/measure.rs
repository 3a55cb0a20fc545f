//! Size of pools and of the memory of graphs, as the driver reports it.

use std::ffi::c_int;

use preload_state::memory::{Kind, Pools};

use super::limit;
use super::state::try_lock;
use crate::capture_mode;
use crate::platform::Platform;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
pub(super) const RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`
pub(super) const USED: c_int = 7;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
const GRAPH_RESERVED: c_int = 2;

/// Measures and counts the reserved memory. Returns whether all memory is within the limit.
pub(super) fn measure<P: Platform>(host: P, pools: &mut Pools) -> bool {
    let of_pool = |pool| host.pool_attribute(pool, RESERVED).ok();
    let of_graphs = |device| host.graph_memory(device, GRAPH_RESERVED).unwrap_or(0);
    let (of_pools, of_graphs) = pools.reserved(of_pool, of_graphs);
    limit::set(host, &[(Kind::Pool, of_pools), (Kind::Graph, of_graphs)])
}

/// Releases unused memory of all pools.
pub(super) fn trim_all<P: Platform>(host: P, pools: &mut Pools) {
    for pool in pools.known() {
        host.trim_pool(pool, 0);
    }
    measure(host, pools);
}

/// Measures the pools again, if there are any. A thread that holds the lock measures them anyway.
pub(super) fn refresh<P: Platform>(host: P) {
    if let Some(mut pools) = try_lock(&host.memory().pools)
        && !pools.is_empty()
    {
        measure(host, &mut pools);
    }
}

/// Releases unused memory of all pools. Returns whether there was any.
pub(super) fn trim<P: Platform>(host: P) -> bool {
    let Some(mut pools) = try_lock(&host.memory().pools) else {
        return false;
    };
    if pools.is_empty() || capture_mode::any(host) {
        return false;
    }
    let of_pools = || {
        limit::read(host, |account| {
            account
                .of(Kind::Pool)
                .saturating_add(account.of(Kind::Graph))
        })
    };
    let before = of_pools();
    trim_all(host, &mut pools);
    of_pools() < before
}
