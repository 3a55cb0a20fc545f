//! Stream-ordered memory (`cuMemAllocAsync`) and memory nodes of graphs. Both stay the driver's. They count with the memory that
//! their pools have reserved on the device, in use or not, as reported by the driver. It is measured after every call that may
//! change it, and before memory is reported or refused.
//!
//! Before an allocation grows a pool, the smallest possible growth is reserved within the limit. Pools grow in larger steps: if
//! the limit has no room for the actual step, the allocation is undone and refused, and the pool's reserved memory counts until
//! the pool releases it. A graph that allocates while it runs is not limited; its memory counts afterwards. Captured allocations
//! become nodes and take no memory yet.

use crate::host::Host;
use preload_ops::System as _;
use preload_ops::capture;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::MutexGuard;

use super::account::Kind;
use super::{contexts, free, limit, lock, state, try_lock};
use crate::driver::{self, Address, Code, Handle, OUT_OF_MEMORY, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuMemAllocAsync(address: *mut Address, bytes: usize, stream: Handle) = alloc;
    fn cuMemAllocAsync_ptsz(address: *mut Address, bytes: usize, stream: Handle) = alloc;
    fn cuMemAllocFromPoolAsync(address: *mut Address, bytes: usize, pool: Handle, stream: Handle) = alloc_from;
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut Address, bytes: usize, pool: Handle, stream: Handle) = alloc_from;
    fn cuMemFreeAsync(address: Address, stream: Handle) = free_async;
    fn cuMemFreeAsync_ptsz(address: Address, stream: Handle) = free_async;
    fn cuMemPoolCreate(pool: *mut Handle, properties: *const c_void) = create;
    fn cuMemPoolDestroy(pool: Handle) = destroy;
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) = trim_to;
    fn cuGraphAddMemAllocNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut c_void) = add_node;
    fn cuDeviceGraphMemTrim(device: c_int) = graph_trim;
}

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`
const USED: c_int = 7;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
const GRAPH_RESERVED: c_int = 2;

/// Memory pools of the driver and the memory nodes of graphs, as counted for the process; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pools {
    /// Pools from which memory was allocated, or which the program created.
    known: BTreeSet<Handle>,
    /// Devices whose graphs may have memory.
    graphs: BTreeSet<c_int>,
}

fn query_pool(pool: Handle, attribute: c_int) -> Option<u64> {
    let mut value: u64 = 0;
    let place = (&raw mut value).cast();
    // SAFETY: a pool of the driver, and `value` is valid for writes.
    let code = unsafe { driver::cuMemPoolGetAttribute(pool, attribute, place) };
    (code == SUCCESS).then_some(value)
}

fn query_graphs(device: c_int) -> u64 {
    let mut value: u64 = 0;
    let place = (&raw mut value).cast();
    // SAFETY: `value` is valid for writes.
    let code = unsafe { driver::cuDeviceGetGraphMemAttribute(device, GRAPH_RESERVED, place) };
    if code == SUCCESS { value } else { 0 }
}

impl Pools {
    /// Measures and counts the reserved memory. Returns whether all memory is within the limit.
    fn measure(&mut self) -> bool {
        let mut total: u64 = 0;
        self.known.retain(|&pool| {
            let reserved = query_pool(pool, RESERVED);
            total = total.saturating_add(reserved.unwrap_or(0));
            reserved.is_some()
        });
        for &device in &self.graphs {
            total = total.saturating_add(query_graphs(device));
        }
        limit::set(Kind::Pool, total)
    }

    /// Releases unused memory of all pools.
    fn trim(&mut self) {
        for &pool in &self.known {
            // SAFETY: a pool of the driver.
            let _trimmed = unsafe { driver::cuMemPoolTrimTo(pool, 0) };
        }
        self.measure();
    }

    fn is_empty(&self) -> bool {
        self.known.is_empty() && self.graphs.is_empty()
    }
}

/// Measures the pools again, if there are any. A thread that holds the lock measures them anyway.
pub(super) fn refresh() {
    if let Some(mut pools) = try_lock(&state().pools)
        && !pools.is_empty()
    {
        pools.measure();
    }
}

/// Releases unused memory of all pools. Returns whether there was any.
pub(super) fn trim() -> bool {
    let Some(mut pools) = try_lock(&state().pools) else {
        return false;
    };
    if pools.is_empty() || capture::any(Host) {
        return false;
    }
    let before = limit::read(|account| account.of(Kind::Pool));
    pools.trim();
    limit::read(|account| account.of(Kind::Pool)) < before
}

/// Returns the pool from which a stream's allocations come.
fn default_pool(stream: Handle) -> Option<Handle> {
    let mut context = 0;
    // SAFETY: the program's own stream, and `context` is valid for writes.
    let code = unsafe { driver::cuStreamGetCtx(stream, &raw mut context) };
    let device = if code == SUCCESS && context != 0 {
        contexts::device_of(context)
    } else {
        contexts::device()
    };
    let mut pool = 0;
    // SAFETY: `pool` is valid for writes.
    let code = unsafe { driver::cuDeviceGetMemPool(&raw mut pool, device.ok()?) };
    (code == SUCCESS).then_some(pool)
}

fn alloc(call: &dyn Fn() -> Code, out: *mut Address, bytes: usize, stream: Handle) -> Code {
    if !Host.is_active() || out.is_null() || bytes == 0 {
        return call();
    }
    if capture::any(Host) {
        return captured(call);
    }
    match default_pool(stream) {
        Some(pool) => grow(call, out, bytes, pool, stream),
        None => call(),
    }
}

fn alloc_from(
    call: &dyn Fn() -> Code,
    out: *mut Address,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    if !Host.is_active() || out.is_null() || bytes == 0 {
        return call();
    }
    if capture::any(Host) {
        return captured(call);
    }
    grow(call, out, bytes, pool, stream)
}

/// Makes a call that becomes a graph node, or that another thread makes during a capture: it is counted afterwards.
fn captured(call: &dyn Fn() -> Code) -> Code {
    let code = call();
    note_graphs();
    code
}

fn note_graphs() {
    if let Ok(device) = contexts::device() {
        lock(&state().pools).graphs.insert(device);
    }
    refresh();
}

/// Reserves the growth of a pool within the limit. Returns whether there is room.
fn make_room(pools: &mut MutexGuard<'_, Pools>, pool: Handle, bytes: u64) -> bool {
    let needed = |pools: &mut Pools| {
        pools.measure();
        let (reserved, used) = (query_pool(pool, RESERVED)?, query_pool(pool, USED)?);
        Some(used.saturating_add(bytes).saturating_sub(reserved))
    };
    // The driver does not know the pool, and will return an error.
    let Some(more) = needed(pools) else {
        return true;
    };
    if limit::try_reserve(Kind::Pool, more) {
        return true;
    }
    pools.trim();
    let Some(more) = needed(pools) else {
        return true;
    };
    limit::reserve(Kind::Pool, more).is_ok()
}

fn grow(
    call: &dyn Fn() -> Code,
    out: *mut Address,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    // Held over the call, so that the pool's growth is due to this call.
    let mut pools = lock(&state().pools);
    if query_pool(pool, RESERVED).is_some() {
        pools.known.insert(pool);
    }
    if !make_room(&mut pools, pool, bytes as u64) {
        return OUT_OF_MEMORY;
    }
    let code = call();
    let is_within = pools.measure();
    if code != SUCCESS || is_within {
        return code;
    }
    // SAFETY: not null, and written by the driver.
    let made = unsafe { out.read_unaligned() };
    // SAFETY: allocated just now and not returned to the program.
    let _freed = unsafe { driver::cuMemFreeAsync(made, stream) };
    limit::refuse(bytes as u64)
}

/// Frees memory in stream order. Plain memory may be freed this way too, which then waits as `cuMemFree` does.
fn free_async(call: &dyn Fn() -> Code, address: Address, _stream: Handle) -> Code {
    if !Host.is_active() {
        return call();
    }
    if let Some(code) = free::free_own(address) {
        return code;
    }
    let code = call();
    refresh();
    code
}

fn create(call: &dyn Fn() -> Code, pool: *mut Handle, _properties: *const c_void) -> Code {
    let code = call();
    if code == SUCCESS && Host.is_active() && !pool.is_null() {
        // SAFETY: not null, and written by the driver.
        let made = unsafe { pool.read_unaligned() };
        lock(&state().pools).known.insert(made);
    }
    code
}

/// Destroys a pool. Its used memory stays until it is freed, but can no longer be queried.
fn destroy(call: &dyn Fn() -> Code, pool: Handle) -> Code {
    if !Host.is_active() {
        return call();
    }
    let mut pools = lock(&state().pools);
    let code = call();
    if code == SUCCESS {
        pools.known.remove(&pool);
        pools.measure();
    }
    code
}

fn trim_to(call: &dyn Fn() -> Code, _pool: Handle, _keep: usize) -> Code {
    let code = call();
    if Host.is_active() {
        refresh();
    }
    code
}

fn add_node(
    call: &dyn Fn() -> Code,
    _node: *mut Handle,
    _graph: Handle,
    _after: *const Handle,
    _count: usize,
    _parameters: *mut c_void,
) -> Code {
    let code = call();
    if code == SUCCESS && Host.is_active() {
        note_graphs();
    }
    code
}

fn graph_trim(call: &dyn Fn() -> Code, _device: c_int) -> Code {
    let code = call();
    if Host.is_active() {
        refresh();
    }
    code
}
