//! Peer access. The driver makes its own allocations accessible to a peer as soon as a context enables access; mappings need
//! access set one by one, both existing and future ones.

use crate::host::Host;
use preload_ops::System as _;
use std::ffi::{c_int, c_uint};
use std::sync::PoisonError;

use super::device::Slot;
use super::physical::{self, Access};
use super::{beside_captures, contexts, lock, state};
use crate::driver::{Code, Handle, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) = enable;
    fn cuCtxDisablePeerAccess(peer: Handle) = disable;
}

/// Permission of one context to use another one's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Context that may use the memory.
    user: Handle,
    /// Device of the using context.
    pub(super) device: c_int,
    /// Context that owns the memory.
    owner: Handle,
}

fn enable(call: &dyn Fn() -> Code, peer: Handle, _flags: c_uint) -> Code {
    let code = call();
    if code != SUCCESS || !Host.is_active() {
        return code;
    }
    let Some((pair, slot)) = pair_with(peer) else {
        return code;
    };
    let _guard = slot.access.write().unwrap_or_else(PoisonError::into_inner);
    lock(&slot.table).peers.push(pair);
    open_to_all(slot, &slot.access_list());
    code
}

fn disable(call: &dyn Fn() -> Code, peer: Handle) -> Code {
    let code = call();
    if code == SUCCESS
        && Host.is_active()
        && let Some((pair, slot)) = pair_with(peer)
    {
        remove(slot, |one| one.user == pair.user && one.owner == peer);
    }
    code
}

/// Returns the calling thread's context as a user of another one's memory, and the device of that memory.
fn pair_with(owner: Handle) -> Option<(Pair, &'static Slot)> {
    let pair = Pair {
        user: contexts::current().ok()?,
        device: contexts::device().ok()?,
        owner,
    };
    let slot = state().slot(contexts::device_of(owner).ok()?)?;
    Some((pair, slot))
}

/// Removes pairs, and revokes access from devices without a remaining pair.
fn remove(slot: &Slot, is_meant: impl Fn(&Pair) -> bool) {
    let _guard = slot.access.write().unwrap_or_else(PoisonError::into_inner);
    let gone: Vec<c_int> = {
        let mut table = lock(&slot.table);
        let gone: Vec<Pair> = table.peers.extract_if(.., |pair| is_meant(pair)).collect();
        let left = &table.peers;
        let is_left = |pair: &Pair| left.iter().any(|other| other.device == pair.device);
        let gone = gone.iter().filter(|pair| !is_left(pair));
        gone.map(|pair| pair.device).collect()
    };
    if gone.is_empty() {
        return;
    }
    let closed = gone.into_iter().map(Access::none);
    let list: Vec<Access> = closed.chain(slot.access_list()).collect();
    open_to_all(slot, &list);
}

fn open_to_all(slot: &Slot, access: &[Access]) {
    let mapped = lock(&slot.table).mapped();
    beside_captures(|| {
        for (at, bytes) in mapped {
            // Fails for memory that another thread has unmapped meanwhile, which is harmless.
            let _set = physical::set_access(at, bytes, access);
        }
    });
}

/// Returns a context and those that may use its memory on a device; a free waits for the work of all of them.
pub(super) fn users(slot: &Slot, owner: Handle) -> Vec<Handle> {
    let table = lock(&slot.table);
    let users = table.peers.iter().filter(|pair| pair.owner == owner);
    let mut all: Vec<Handle> = users.map(|pair| pair.user).collect();
    all.push(owner);
    all
}

/// Removes all pairs of a destroyed context.
pub(super) fn context_destroyed(context: Handle) {
    for slot in &state().devices {
        let is_its = |pair: &Pair| pair.user == context || pair.owner == context;
        if lock(&slot.table).peers.iter().any(is_its) {
            remove(slot, is_its);
        }
    }
}
