//! Memory that is mapped but unused: a reserve for allocations during captures, in which the driver may be unable to map memory,
//! and empty slabs. It counts against the limit, is reported to the program as free, and is released before anything is refused.

use preload_state::memory::{Block, Kind};

use super::state::{Slot, lock};
use super::{device, limit, measure, release};
use crate::cuda::Code;
use crate::platform::Platform;

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
    let settled = devices.filter(|slot| release::settle(host, slot));
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
            is_any |= device::release(host, slot, block, Kind::Spare).is_ok();
        }
        is_any |= device::release_empty_slabs(host, slot, 0).unwrap_or(false);
    }
    is_any | measure::trim(host)
}

/// Counts memory that is about to be allocated, releasing spare memory if needed. Counts and reports a refusal.
pub(super) fn reserve<P: Platform>(host: P, kind: Kind, bytes: u64) -> Result<(), Code> {
    if limit::try_reserve(host, kind, bytes)
        || reclaim(host) && limit::try_reserve(host, kind, bytes)
    {
        return Ok(());
    }
    Err(limit::refuse(host, bytes))
}

/// Returns the whole unused part of the claim, as requested by the agent because another process of the pod was refused. Spare
/// memory is released first.
pub fn relinquish<P: Platform>(host: P) {
    if !host.is_active() {
        return;
    }
    let _given_up = give_up(host);
    let limit = host.process().memory_limit();
    limit::lower(host, |account| account.unused(limit));
}
