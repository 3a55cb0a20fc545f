//! `cuMemFree`: as the driver's own, it waits for all work of the context that the memory was allocated in. Only then is
//! anything unmapped, and nothing is where the wait ends in an error: what still runs, nobody knows.
//!
//! During a capture the driver refuses to free unless the capture is relaxed; so does this ([`contexts::check`]). Where it
//! would not refuse, waiting would break the capture: the memory is taken from the program at once and goes back after the
//! capture, with the next free or when it is needed. Until then it counts.

use super::account::Kind;
use super::device::{Allocation, Place, Slot};
use super::{contexts, ipc, lock, native, peers, physical, state};

use crate::driver::{Address, Code, Handle, INVALID_VALUE, SUCCESS};
use crate::hook::hooks;
use crate::link;

hooks! { HOOKS:
    fn cuMemFree_v2(address: Address) = free;
}

fn free(call: &dyn Fn() -> Code, address: Address) -> Code {
    if !link::is_active() || address == 0 {
        return call();
    }
    match free_own(address) {
        Some(code) => code,
        None => native::free(call, address),
    }
}

/// Frees what lies in reserved addresses. Nothing: the address is not one of them, and none of this is about it.
pub(super) fn free_own(address: Address) -> Option<Code> {
    let slot = state().owner(address)?;
    Some(match free_at(slot, address) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    })
}

fn free_at(slot: &Slot, address: Address) -> Result<(), Code> {
    let current = contexts::current()?;
    let context = begin(slot, address)?;
    if let Err(code) = contexts::check(current) {
        undo(slot, address);
        return Err(code);
    }
    if crate::capture::any() {
        let mut table = lock(&slot.table);
        let taken = table.allocations.remove_entry(&address);
        table.deferred.extend(taken);
        return Ok(());
    }
    if let Err(code) = wait(slot, context) {
        undo(slot, address);
        return Err(code);
    }
    let allocation = lock(&slot.table).allocations.remove(&address);
    // Nothing: its context has gone meanwhile, and it with it.
    let freed = allocation.map_or(Ok(()), |allocation| dispose(slot, address, allocation));
    settle(slot);
    freed
}

/// Marks what is to be freed, so that a second free of it is refused while the first one waits. The context that it is of.
fn begin(slot: &Slot, address: Address) -> Result<Handle, Code> {
    let mut table = lock(&slot.table);
    let allocation = table.allocations.get_mut(&address);
    match allocation {
        Some(allocation)
            if !allocation.is_freed && !matches!(allocation.place, Place::Opened(_)) =>
        {
            allocation.is_freed = true;
            Ok(allocation.context)
        }
        _ => Err(INVALID_VALUE),
    }
}

fn undo(slot: &Slot, address: Address) {
    if let Some(allocation) = lock(&slot.table).allocations.get_mut(&address) {
        allocation.is_freed = false;
    }
}

/// Waits for the work of a context, and of those that may use its memory as peers.
fn wait(slot: &Slot, context: Handle) -> Result<(), Code> {
    for context in peers::users(slot, context) {
        match contexts::synchronise(context) {
            SUCCESS => {}
            code => return Err(code),
        }
    }
    Ok(())
}

/// Gives back memory that nothing uses any more.
pub(super) fn dispose(slot: &Slot, at: Address, allocation: Allocation) -> Result<(), Code> {
    match allocation.place {
        Place::Own(block) => slot.release(block, Kind::Plain),
        Place::Piece(bytes) => slot.piece_back(at, bytes),
        // It counts in the process that made it.
        Place::Opened(block) => {
            ipc::closed(block.at);
            physical::unmap_and_release(&block)?;
            slot.give_addresses_back(block.at, block.bytes);
            Ok(())
        }
    }
}

/// Gives back what was freed during captures, if none is under way. Whether there was any.
pub(super) fn settle(slot: &Slot) -> bool {
    if crate::capture::any() {
        return false;
    }
    let deferred = std::mem::take(&mut lock(&slot.table).deferred);
    let mut is_any = false;
    for (at, allocation) in deferred {
        if wait(slot, allocation.context).is_err() {
            lock(&slot.table).deferred.push((at, allocation));
            continue;
        }
        is_any |= dispose(slot, at, allocation).is_ok();
    }
    is_any
}
