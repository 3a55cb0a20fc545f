//! Access of one device to the memory of another. The driver's own allocations are open to a peer as soon as a context has
//! enabled access; mappings have to be opened one by one, those that are there and those that come.

use std::ffi::{c_int, c_uint};
use std::sync::PoisonError;

use super::device::Slot;
use super::physical::{self, Access};
use super::{beside_captures, contexts, lock, state};
use crate::driver::{Code, Handle, SUCCESS};
use crate::hook::hooks;
use crate::link;

hooks! { HOOKS:
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) = enable;
    fn cuCtxDisablePeerAccess(peer: Handle) = disable;
}

/// One context may use another's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// The one that may.
    user: Handle,
    /// Its device.
    pub(super) device: c_int,
    /// The one whose memory it is.
    owner: Handle,
}

fn enable(call: &dyn Fn() -> Code, peer: Handle, _flags: c_uint) -> Code {
    let code = call();
    if code != SUCCESS || !link::is_active() {
        return code;
    }
    let Some((pair, slot)) = meant(peer) else {
        return code;
    };
    let _no_mapping_is_made = slot.access.write().unwrap_or_else(PoisonError::into_inner);
    lock(&slot.table).peers.push(pair);
    open_to_all(slot, &slot.access_list());
    code
}

fn disable(call: &dyn Fn() -> Code, peer: Handle) -> Code {
    let code = call();
    if code == SUCCESS
        && link::is_active()
        && let Some((pair, slot)) = meant(peer)
    {
        remove(slot, |one| one.user == pair.user && one.owner == peer);
    }
    code
}

/// The calling thread's context as the user of another one's memory, and the device that this memory is on.
fn meant(owner: Handle) -> Option<(Pair, &'static Slot)> {
    let pair = Pair {
        user: contexts::current().ok()?,
        device: contexts::device().ok()?,
        owner,
    };
    let slot = state().slot(contexts::device_of(owner).ok()?)?;
    Some((pair, slot))
}

/// Forgets pairs, and closes the device's memory to those that no pair speaks for any more.
fn remove(slot: &Slot, is_meant: impl Fn(&Pair) -> bool) {
    let _no_mapping_is_made = slot.access.write().unwrap_or_else(PoisonError::into_inner);
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
            // What another thread has unmapped meanwhile is refused, and is no matter any more.
            let _set = physical::set_access(at, bytes, access);
        }
    });
}

/// A context and those that may use its memory on a device: whose work a free waits for.
pub(super) fn users(slot: &Slot, owner: Handle) -> Vec<Handle> {
    let table = lock(&slot.table);
    let users = table.peers.iter().filter(|pair| pair.owner == owner);
    let mut all: Vec<Handle> = users.map(|pair| pair.user).collect();
    all.push(owner);
    all
}

/// A context is gone, and nobody uses its memory, and it nobody's.
pub(super) fn context_gone(context: Handle) {
    for slot in &state().devices {
        let is_its = |pair: &Pair| pair.user == context || pair.owner == context;
        if lock(&slot.table).peers.iter().any(is_its) {
            remove(slot, is_its);
        }
    }
}
