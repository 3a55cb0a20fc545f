//! Memory that is mapped but unused: a reserve for allocations during captures, in which the driver may be unable to map memory,
//! and empty slabs. It counts against the limit, is reported to the program as free, and is released before anything is refused.

use preload_state::memory::{Block, Kind};

use super::device::Slot;
use super::{free, limit, lock, pools};
use crate::capture;
use crate::platform::Platform;

/// Size of a device's reserve in granules: 32 MiB with granules of 2 MiB.
pub(super) const RESERVE_GRANULES: usize = 16;

/// Creates a reserve on the device of the calling thread's context, if it has less than half of one and the limit has room. To be
/// called before the driver begins a capture. Processes that capture nothing have no reserve.
pub fn before_capture<P: Platform>(host: P) {
    if !host.is_active() || capture::any(host) {
        return;
    }
    let Ok(ordinal) = host.current_device() else {
        return;
    };
    let Some(slot) = host.memory().slot(ordinal) else {
        return;
    };
    let Some(traits) = slot.traits(host) else {
        return;
    };
    let there = lock(&slot.table).reserved_parts();
    if there >= RESERVE_GRANULES / 2 {
        return;
    }
    let sizes = vec![traits.granule; RESERVE_GRANULES - there];
    // Without a reserve, allocations during the capture are mapped at that time.
    let _made = slot.make(host, traits, Kind::Spare, &sizes, |table, block| {
        table.add_reserve(block);
    });
}

/// Takes `bytes` from the reserve, which become plain memory; `None` if no block is large enough.
pub(super) fn take<P: Platform>(host: P, slot: &Slot, bytes: u64) -> Option<Block> {
    let mut table = lock(&slot.table);
    let taken = table.take_reserve(bytes)?;
    limit::shift(host, Kind::Spare, Kind::Plain, taken.bytes);
    Some(taken)
}

/// Releases all spare memory, after waiting for the work that uses memory freed during a capture. Returns whether there was any.
pub(super) fn reclaim<P: Platform>(host: P) -> bool {
    let devices = host.memory().devices.iter();
    let settled = devices.filter(|slot| free::settle(host, slot));
    let is_any = settled.count() > 0;
    give_up(host) | is_any
}

/// Releases memory that cannot be in use: reserves, empty slabs, and what pools keep. Does not wait. Returns whether there was
/// any.
pub(super) fn give_up<P: Platform>(host: P) -> bool {
    let mut is_any = false;
    for slot in &host.memory().devices {
        let reserve = lock(&slot.table).take_whole_reserve();
        for block in reserve {
            is_any |= slot.release(host, block, Kind::Spare).is_ok();
        }
        is_any |= slot.release_empty_slabs(host, 0).unwrap_or(false);
    }
    is_any | pools::trim(host)
}
