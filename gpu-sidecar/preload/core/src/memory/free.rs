//! `cuMemFree`. Like the driver's own, it waits for all work of the context in which the memory was allocated before anything is
//! unmapped. If the wait fails, nothing is unmapped, because it is unknown what still runs.
//!
//! During a capture the driver refuses to free unless the capture is relaxed; so does this ([`contexts::check`]). In a relaxed
//! capture waiting would invalidate the capture: the address becomes invalid for the program at once, and the memory is released
//! after the capture, with the next free or when it is needed. Until then it counts.

use super::account::Kind;
use super::device::{Allocation, Backing, Slot};
use super::{contexts, ipc, lock, native, peers, physical, state};
use crate::host::Host;
use preload_ops::System as _;
use preload_ops::capture;

use crate::driver::{Address, Code, Handle, INVALID_VALUE, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuMemFree_v2(address: Address) = free;
}

fn free(call: &dyn Fn() -> Code, address: Address) -> Code {
    if !Host.is_active() || address == 0 {
        return call();
    }
    match free_own(address) {
        Some(code) => code,
        None => native::free(call, address),
    }
}

/// Frees an allocation of this library. Returns `None` if the address is not in a reserved range.
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
    if capture::any(Host) {
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
    // `None` if its context was destroyed meanwhile, and the allocation with it.
    let freed = allocation.map_or(Ok(()), |allocation| dispose(slot, address, allocation));
    settle(slot);
    freed
}

/// Marks an allocation as being freed, so that a second free of it is refused while the first one waits. Returns its context.
fn begin(slot: &Slot, address: Address) -> Result<Handle, Code> {
    let mut table = lock(&slot.table);
    let allocation = table.allocations.get_mut(&address);
    match allocation {
        Some(allocation)
            if !allocation.is_freed && !matches!(allocation.backing, Backing::Opened(_)) =>
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

/// Waits for the work of a context, and of the contexts that may use its memory as peers.
fn wait(slot: &Slot, context: Handle) -> Result<(), Code> {
    for context in peers::users(slot, context) {
        match contexts::synchronise(context) {
            SUCCESS => {}
            code => return Err(code),
        }
    }
    Ok(())
}

/// Releases memory that is no longer used.
pub(super) fn dispose(slot: &Slot, at: Address, allocation: Allocation) -> Result<(), Code> {
    match allocation.backing {
        Backing::Own(block) => slot.release(block, Kind::Plain),
        Backing::Piece(bytes) => slot.piece_back(at, bytes),
        // It counts in the process that allocated it.
        Backing::Opened(block) => {
            ipc::closed(block.at);
            physical::unmap_and_release(&block)?;
            slot.give_addresses_back(block.at, block.bytes);
            Ok(())
        }
    }
}

/// Releases the memory that was freed during captures, unless one is in progress. Returns whether any was released.
pub(super) fn settle(slot: &Slot) -> bool {
    if capture::any(Host) {
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
