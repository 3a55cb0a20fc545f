//! Peer access. The driver makes its own allocations accessible to a peer as soon as a context enables access; mappings need
//! access set one by one, both existing and future ones.

use std::sync::PoisonError;

use preload_state::memory::{Access, Pair};

use super::state::{Slot, lock};
use super::{current, device};
use crate::capture_mode;
use crate::cuda::{Handle, SUCCESS};
use crate::outcome::{Call, Outcome};
use crate::platform::Platform;

/// Permits the calling thread's context to use the memory of another one.
pub fn enable<P: Platform>(host: P, call: Call<'_>, peer: Handle) -> Outcome {
    let code = call();
    if code == SUCCESS
        && host.is_active()
        && let Some((pair, slot)) = pair_with(host, peer)
    {
        let _guard = slot.access.write().unwrap_or_else(PoisonError::into_inner);
        lock(&slot.table).add_peer(pair);
        set_on_all(host, slot, &device::access_list(slot));
    }
    Outcome::Done(code)
}

/// Ends such a permission.
pub fn disable<P: Platform>(host: P, call: Call<'_>, peer: Handle) -> Outcome {
    let code = call();
    if code == SUCCESS
        && host.is_active()
        && let Some((pair, slot)) = pair_with(host, peer)
    {
        remove(host, slot, |one| one.user == pair.user && one.owner == peer);
    }
    Outcome::Done(code)
}

/// Returns the calling thread's context as a user of another one's memory, and the device of that memory.
fn pair_with<P: Platform>(host: P, owner: Handle) -> Option<(Pair, &'static Slot)> {
    let pair = Pair {
        user: current::current(host).ok()?,
        device: host.current_device().ok()?,
        owner,
    };
    let slot = host.memory().slot(current::device_of(host, owner).ok()?)?;
    Some((pair, slot))
}

/// Removes pairs, and revokes access from devices without a remaining pair.
fn remove<P: Platform>(host: P, slot: &Slot, is_meant: impl Fn(&Pair) -> bool) {
    let _guard = slot.access.write().unwrap_or_else(PoisonError::into_inner);
    let gone = lock(&slot.table).remove_peers(is_meant);
    if gone.is_empty() {
        return;
    }
    let closed = gone.into_iter().map(Access::none);
    let list: Vec<Access> = closed.chain(device::access_list(slot)).collect();
    set_on_all(host, slot, &list);
}

fn set_on_all<P: Platform>(host: P, slot: &Slot, access: &[Access]) {
    let mapped = lock(&slot.table).mapped();
    capture_mode::relaxed(host, || {
        for (at, bytes) in mapped {
            // Fails for memory that another thread has unmapped meanwhile, which is harmless.
            let _set = host.set_access(at, bytes, access);
        }
    });
}

/// Removes all pairs of a destroyed context.
pub(super) fn context_destroyed<P: Platform>(host: P, context: Handle) {
    for slot in &host.memory().devices {
        let is_its = |pair: &Pair| pair.user == context || pair.owner == context;
        let has_any = lock(&slot.table).has_peer(is_its);
        if has_any {
            remove(host, slot, is_its);
        }
    }
}
