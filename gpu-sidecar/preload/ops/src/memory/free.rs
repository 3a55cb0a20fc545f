//! `cuMemFree`. Like the driver's own, it waits for all work of the context in which the memory was allocated before anything is
//! unmapped. If the wait fails, nothing is unmapped, because it is unknown what still runs.
//!
//! During a capture the driver refuses to free unless the capture is relaxed; so does this. In a relaxed
//! capture waiting would invalidate the capture: the address becomes invalid for the program at once, and the memory is released
//! after the capture, with the next free or when it is needed. Until then it counts.

use preload_state::memory::{Allocation, Backing, Kind};

use super::device::Slot;
use super::{contexts, ipc, lock, native, physical};
use crate::capture;
use crate::cuda::{Address, Code, Handle, INVALID_VALUE};
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::Platform;

/// Frees memory of this library or of the driver.
pub fn free<P: Platform>(host: P, call: Call<'_>, address: Address) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if address == 0 {
        return Outcome::Pass(Reason::Invalid);
    }
    match free_own(host, address) {
        Some(freed) => freed.into(),
        None => native::free(host, call, address),
    }
}

/// Frees an allocation of this library. Returns `None` if the address is not in a reserved range.
pub(super) fn free_own<P: Platform>(host: P, address: Address) -> Option<Result<(), Code>> {
    let slot = host.memory().owner(address)?;
    Some(free_at(host, slot, address))
}

fn free_at<P: Platform>(host: P, slot: &Slot, address: Address) -> Result<(), Code> {
    let current = contexts::current(host)?;
    let context = lock(&slot.table).begin_free(address);
    let context = context.ok_or(INVALID_VALUE)?;
    let undo = |code| {
        lock(&slot.table).undo_free(address);
        code
    };
    contexts::check(host, current).map_err(undo)?;
    if capture::any(host) {
        lock(&slot.table).defer(address);
        return Ok(());
    }
    wait(host, slot, context).map_err(undo)?;
    let allocation = lock(&slot.table).remove(address);
    // `None` if its context was destroyed meanwhile, and the allocation with it.
    let freed = allocation.map_or(Ok(()), |allocation| {
        dispose(host, slot, address, allocation)
    });
    settle(host, slot);
    freed
}

/// Waits for the work of a context, and of the contexts that may use its memory as peers.
fn wait<P: Platform>(host: P, slot: &Slot, context: Handle) -> Result<(), Code> {
    let users = lock(&slot.table).users(context);
    users
        .into_iter()
        .try_for_each(|context| contexts::synchronize(host, context))
}

/// Releases memory that is no longer used.
pub(super) fn dispose<P: Platform>(
    host: P,
    slot: &Slot,
    at: Address,
    allocation: Allocation,
) -> Result<(), Code> {
    match allocation.backing {
        Backing::Own(block) => slot.release(host, block, Kind::Plain),
        Backing::Piece(bytes) => slot.piece_back(host, at, bytes),
        // It counts in the process that allocated it.
        Backing::Opened(block) => {
            ipc::closed(host, block.at);
            physical::unmap_and_release(host, &block)?;
            slot.give_addresses_back(block.at, block.bytes);
            Ok(())
        }
    }
}

/// Releases the memory that was freed during captures, unless one is in progress. Returns whether any was released.
pub(super) fn settle<P: Platform>(host: P, slot: &Slot) -> bool {
    if capture::any(host) {
        return false;
    }
    let deferred = lock(&slot.table).take_deferred();
    let mut is_any = false;
    for (at, allocation) in deferred {
        if wait(host, slot, allocation.context).is_err() {
            lock(&slot.table).defer_again(at, allocation);
            continue;
        }
        is_any |= dispose(host, slot, at, allocation).is_ok();
    }
    is_any
}
