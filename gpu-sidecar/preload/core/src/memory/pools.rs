//! Stream-ordered memory (`cuMemAllocAsync`) and memory nodes of graphs. Both stay the driver's; what counts is what their
//! pools have reserved of the device, which the driver tells, in use or not. It is measured after every call that may have
//! changed it, and before anything is told or refused.
//!
//! Before an allocation lets a pool grow, the limit is asked for what it will grow by at least. Pools grow in larger steps
//! than that: when the limit has no room for the step, the allocation is undone and refused, and what the pool has kept
//! counts until it gives it back. A graph that allocates while it runs is not held back; it counts from then on. Captured
//! allocations become nodes and take nothing yet.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::MutexGuard;

use super::account::Kind;
use super::{contexts, free, limit, lock, state, try_lock};
use crate::driver::{self, Address, Code, Handle, OUT_OF_MEMORY, SUCCESS};
use crate::hook::hooks;
use crate::link;

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

/// `CU_MEMPOOL_ATTR_…_MEM_CURRENT`
const RESERVED: c_int = 5;
const USED: c_int = 7;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
const GRAPH_RESERVED: c_int = 2;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Pools {
    /// Pools that allocations came from or that the program has made.
    known: BTreeSet<Handle>,
    /// Devices whose graphs may have memory.
    graphs: BTreeSet<c_int>,
}

fn ask_pool(pool: Handle, attribute: c_int) -> Option<u64> {
    let mut value: u64 = 0;
    let place = (&raw mut value).cast();
    // SAFETY: a pool that the driver has made, and a number that it writes.
    let code = unsafe { driver::cuMemPoolGetAttribute(pool, attribute, place) };
    (code == SUCCESS).then_some(value)
}

fn ask_graphs(device: c_int) -> u64 {
    let mut value: u64 = 0;
    let place = (&raw mut value).cast();
    // SAFETY: the driver writes a number.
    let code = unsafe { driver::cuDeviceGetGraphMemAttribute(device, GRAPH_RESERVED, place) };
    if code == SUCCESS { value } else { 0 }
}

impl Pools {
    /// Asks what is reserved, and counts that. Whether all is within the limit.
    fn measure(&mut self) -> bool {
        let mut total: u64 = 0;
        self.known.retain(|&pool| {
            let reserved = ask_pool(pool, RESERVED);
            total = total.saturating_add(reserved.unwrap_or(0));
            reserved.is_some()
        });
        for &device in &self.graphs {
            total = total.saturating_add(ask_graphs(device));
        }
        limit::set(Kind::Pool, total)
    }

    /// Gives back what pools keep and nobody uses.
    fn trim(&mut self) {
        for &pool in &self.known {
            // SAFETY: a pool that the driver has made.
            let _trimmed = unsafe { driver::cuMemPoolTrimTo(pool, 0) };
        }
        self.measure();
    }

    fn is_empty(&self) -> bool {
        self.known.is_empty() && self.graphs.is_empty()
    }
}

/// Measures anew, where there is anything. Who measures at this moment, or lets a pool grow, does it in any case.
pub(super) fn refresh() {
    if let Some(mut pools) = try_lock(&state().pools)
        && !pools.is_empty()
    {
        pools.measure();
    }
}

/// Gives back what pools keep without use. Whether it was anything.
pub(super) fn trim() -> bool {
    let Some(mut pools) = try_lock(&state().pools) else {
        return false;
    };
    if pools.is_empty() || crate::capture::any() {
        return false;
    }
    let before = limit::read(|account| account.of(Kind::Pool));
    pools.trim();
    limit::read(|account| account.of(Kind::Pool)) < before
}

/// The pool that a stream's allocations come from.
fn default_pool(stream: Handle) -> Option<Handle> {
    let mut context = 0;
    // SAFETY: the program's own stream, and the driver writes a handle.
    let code = unsafe { driver::cuStreamGetCtx(stream, &raw mut context) };
    let device = if code == SUCCESS && context != 0 {
        contexts::device_of(context)
    } else {
        contexts::device()
    };
    let mut pool = 0;
    // SAFETY: the driver writes a handle.
    let code = unsafe { driver::cuDeviceGetMemPool(&raw mut pool, device.ok()?) };
    (code == SUCCESS).then_some(pool)
}

fn alloc(call: &dyn Fn() -> Code, out: *mut Address, bytes: usize, stream: Handle) -> Code {
    if !link::is_active() || out.is_null() || bytes == 0 {
        return call();
    }
    if crate::capture::any() {
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
    if !link::is_active() || out.is_null() || bytes == 0 {
        return call();
    }
    if crate::capture::any() {
        return captured(call);
    }
    grow(call, out, bytes, pool, stream)
}

/// A call that becomes a node of a graph, or is another thread's in the meantime: counted afterwards.
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

/// Room in the limit for what a pool will have to grow by.
fn make_room(pools: &mut MutexGuard<'_, Pools>, pool: Handle, bytes: u64) -> bool {
    let needed = |pools: &mut Pools| {
        pools.measure();
        let (reserved, used) = (ask_pool(pool, RESERVED)?, ask_pool(pool, USED)?);
        Some(used.saturating_add(bytes).saturating_sub(reserved))
    };
    // A pool that the driver does not know: the call will say so.
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
    // Held over the call: what the pool has grown by then is this call's doing.
    let mut pools = lock(&state().pools);
    if ask_pool(pool, RESERVED).is_some() {
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
    // SAFETY: not null, and the driver has written an address there.
    let made = unsafe { out.read_unaligned() };
    // SAFETY: allocated just now, and nobody has seen it.
    let _freed = unsafe { driver::cuMemFreeAsync(made, stream) };
    limit::refuse(bytes as u64)
}

/// Plain memory may be freed so too; ours waits for it, as with `cuMemFree`.
fn free_async(call: &dyn Fn() -> Code, address: Address, _stream: Handle) -> Code {
    if !link::is_active() {
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
    if code == SUCCESS && link::is_active() && !pool.is_null() {
        // SAFETY: not null, and the driver has written a handle there.
        let made = unsafe { pool.read_unaligned() };
        lock(&state().pools).known.insert(made);
    }
    code
}

/// What is in use stays until it is freed, but nobody can be asked about it any more.
fn destroy(call: &dyn Fn() -> Code, pool: Handle) -> Code {
    if !link::is_active() {
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
    if link::is_active() {
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
    if code == SUCCESS && link::is_active() {
        note_graphs();
    }
    code
}

fn graph_trim(call: &dyn Fn() -> Code, _device: c_int) -> Code {
    let code = call();
    if link::is_active() {
        refresh();
    }
    code
}
