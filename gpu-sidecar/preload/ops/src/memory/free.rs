//! `cuMemFree`. Like the driver's own, it waits for all work of the context in which the memory was allocated before anything is
//! unmapped. If the wait fails, nothing is unmapped, because it is unknown what still runs.
//!
//! During a capture the driver refuses to free unless the capture is relaxed; so does this. In a relaxed
//! capture waiting would invalidate the capture: the address becomes invalid for the program at once, and the memory is released
//! after the capture, with the next free or when it is needed. Until then it counts.

use super::state::{Slot, lock};
use super::{contexts, current, native, release};
use crate::capture_mode;
use crate::cuda::{Address, Code, INVALID_VALUE};
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
    let current = current::current(host)?;
    let context = lock(&slot.table).begin_free(address);
    let context = context.ok_or(INVALID_VALUE)?;
    let undo = |code| {
        lock(&slot.table).undo_free(address);
        code
    };
    contexts::check(host, current).map_err(undo)?;
    if capture_mode::any(host) {
        lock(&slot.table).defer(address);
        return Ok(());
    }
    release::wait(host, slot, context).map_err(undo)?;
    let allocation = lock(&slot.table).remove(address);
    // `None` if its context was destroyed meanwhile, and the allocation with it.
    let freed = allocation.map_or(Ok(()), |allocation| {
        release::dispose(host, slot, address, allocation)
    });
    release::settle(host, slot);
    freed
}
