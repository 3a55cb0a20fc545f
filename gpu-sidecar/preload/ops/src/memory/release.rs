//! Release of memory that the program has freed.

use preload_state::memory::{Allocation, Backing, Kind};

use super::state::{Slot, lock};
use super::{current, device, physical, tickets};
use crate::capture_mode;
use crate::cuda::{Address, Code, Handle};
use crate::platform::Platform;

/// Waits for the work of a context, and of the contexts that may use its memory as peers.
pub(super) fn wait<P: Platform>(host: P, slot: &Slot, context: Handle) -> Result<(), Code> {
    let users = lock(&slot.table).users(context);
    users
        .into_iter()
        .try_for_each(|context| current::synchronize(host, context))
}

/// Releases memory that is no longer used.
pub(super) fn dispose<P: Platform>(
    host: P,
    slot: &Slot,
    at: Address,
    allocation: Allocation,
) -> Result<(), Code> {
    match allocation.backing {
        Backing::Own(block) => device::release(host, slot, block, Kind::Plain),
        Backing::Piece(bytes) => device::piece_back(host, slot, at, bytes),
        // It counts in the process that allocated it.
        Backing::Opened(block) => {
            tickets::closed(host, block.at);
            physical::unmap_and_release(host, &block)?;
            device::give_addresses_back(slot, block.at, block.bytes);
            Ok(())
        }
    }
}

/// Releases the memory that was freed during captures, unless one is in progress. Returns whether any was released.
pub(super) fn settle<P: Platform>(host: P, slot: &Slot) -> bool {
    if capture_mode::any(host) {
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
