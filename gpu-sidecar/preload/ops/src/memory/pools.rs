//! Stream-ordered memory (`cuMemAllocAsync`) and memory nodes of graphs. Both stay the driver's. They count with the memory that
//! their pools have reserved on the device, in use or not, as reported by the driver. It is measured after every call that may
//! change it, and before memory is reported or refused.
//!
//! Before an allocation grows a pool, the smallest possible growth is reserved within the limit. Pools grow in larger steps: if
//! the limit has no room for the actual step, the allocation is undone and refused, and the pool's reserved memory counts until
//! the pool releases it. A graph that allocates while it runs is not limited; its memory counts afterwards. Captured allocations
//! become nodes and take no memory yet.

use preload_state::memory::{Kind, Pools};

use super::measure::{RESERVED, USED, measure, refresh, trim_all};
use super::state::lock;
use super::{current, free, limit, spare};
use crate::capture_mode;
use crate::cuda::{Address, Handle, OUT_OF_MEMORY, SUCCESS};
use crate::outcome::{Call, CallFor, Outcome, Reason};
use crate::platform::{Driver, Platform};

/// Returns the pool from which a stream's allocations come.
fn default_pool<P: Driver>(host: P, stream: Handle) -> Option<Handle> {
    let device = match host.stream_context(stream) {
        Ok(context) if context != 0 => current::device_of(host, context),
        _ => host.current_device(),
    };
    host.default_pool(device.ok()?).ok()
}

/// Allocates memory in stream order, from the pool of the stream's device.
pub fn alloc<P: Platform>(
    host: P,
    bytes: u64,
    stream: Handle,
    call: CallFor<'_, Address>,
) -> Outcome<Address> {
    alloc_in(host, bytes, || default_pool(host, stream), stream, call)
}

/// Allocates memory in stream order, from a pool.
pub fn alloc_from<P: Platform>(
    host: P,
    bytes: u64,
    pool: Handle,
    stream: Handle,
    call: CallFor<'_, Address>,
) -> Outcome<Address> {
    alloc_in(host, bytes, || Some(pool), stream, call)
}

fn alloc_in<P: Platform>(
    host: P,
    bytes: u64,
    pool: impl FnOnce() -> Option<Handle>,
    stream: Handle,
    call: CallFor<'_, Address>,
) -> Outcome<Address> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if bytes == 0 {
        return Outcome::Pass(Reason::Invalid);
    }
    if capture_mode::any(host) {
        // It becomes a graph node, or another thread makes it during a capture: it is counted afterwards.
        let made = call();
        note_graphs(host);
        return Outcome::of(made);
    }
    match pool() {
        Some(pool) => grow(host, bytes, pool, stream, call),
        None => Outcome::Pass(Reason::Foreign),
    }
}

fn note_graphs<P: Platform>(host: P) {
    if let Ok(device) = host.current_device() {
        lock(&host.memory().pools).add_graphs(device);
    }
    refresh(host);
}

/// Reserves the growth of a pool within the limit. Returns whether there is room.
fn make_room<P: Platform>(host: P, pools: &mut Pools, pool: Handle, bytes: u64) -> bool {
    let needed = |pools: &mut Pools| {
        measure(host, pools);
        let attribute = |attribute| host.pool_attribute(pool, attribute).ok();
        let (reserved, used) = (attribute(RESERVED)?, attribute(USED)?);
        Some(used.saturating_add(bytes).saturating_sub(reserved))
    };
    // The driver does not know the pool, and will return an error.
    let Some(more) = needed(pools) else {
        return true;
    };
    if limit::try_reserve(host, Kind::Pool, more) {
        return true;
    }
    trim_all(host, pools);
    let Some(more) = needed(pools) else {
        return true;
    };
    spare::reserve(host, Kind::Pool, more).is_ok()
}

fn grow<P: Platform>(
    host: P,
    bytes: u64,
    pool: Handle,
    stream: Handle,
    call: CallFor<'_, Address>,
) -> Outcome<Address> {
    // Held over the call, so that the pool's growth is due to this call.
    let mut pools = lock(&host.memory().pools);
    if host.pool_attribute(pool, RESERVED).is_ok() {
        pools.add(pool);
    }
    if !make_room(host, &mut pools, pool, bytes) {
        return Outcome::Fail(OUT_OF_MEMORY);
    }
    let mut made = call();
    if matches!(made, Err(OUT_OF_MEMORY)) {
        trim_all(host, &mut pools);
        made = spare::with_room(host, call);
    }
    let is_within = measure(host, &mut pools);
    match made {
        Ok(made) if !is_within => {
            // Not returned to the program yet.
            host.free_async(made, stream);
            Outcome::Fail(limit::refuse(host, bytes))
        }
        made => Outcome::of(made),
    }
}

/// Frees memory in stream order. Plain memory may be freed this way too, which then waits as `cuMemFree` does.
pub fn free_async<P: Platform>(host: P, call: Call<'_>, address: Address) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if let Some(freed) = free::free_own(host, address) {
        return freed.into();
    }
    let code = call();
    refresh(host);
    Outcome::Done(code)
}

/// Creates a pool. `call` returns it unless the program asks for none.
pub fn create<P: Platform>(host: P, call: CallFor<'_, Option<Handle>>) -> Outcome<Option<Handle>> {
    let made = call();
    if let Ok(Some(pool)) = made
        && host.is_active()
    {
        lock(&host.memory().pools).add(pool);
    }
    Outcome::of(made)
}

/// Destroys a pool. Its used memory stays until it is freed, but can no longer be queried.
pub fn destroy<P: Platform>(host: P, call: Call<'_>, pool: Handle) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    let mut pools = lock(&host.memory().pools);
    let code = call();
    if code == SUCCESS {
        pools.remove(pool);
        measure(host, &mut pools);
    }
    Outcome::Done(code)
}

/// Trims a pool or the memory of graphs.
pub fn trimmed<P: Platform>(host: P, call: Call<'_>) -> Outcome {
    let code = call();
    if host.is_active() {
        refresh(host);
    }
    Outcome::Done(code)
}

/// Adds a memory node to a graph.
pub fn add_node<P: Platform>(host: P, call: Call<'_>) -> Outcome {
    let code = call();
    if code == SUCCESS && host.is_active() {
        note_graphs(host);
    }
    Outcome::Done(code)
}
