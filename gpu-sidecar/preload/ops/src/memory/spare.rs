//! Memory that is mapped but unused: a reserve for allocations during captures, in which the driver may be unable to map memory,
//! empty slabs, and freed blocks that share a handle with others. It counts against the limit, is reported to the program as free, and is released before anything is refused.

use preload_state::memory::{Block, Kind};

use super::state::{Slot, lock};
use super::{device, limit, measure, release};
use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::platform::Platform;
use crate::residency::divide;

/// Takes `bytes` from the reserve, which become plain memory; `None` if no block is large enough.
pub(super) fn take<P: Platform>(host: P, slot: &Slot, bytes: u64) -> Option<Block> {
    let mut table = lock(&slot.table);
    let taken = table.take_reserve(bytes)?;
    limit::shift(host, Kind::Spare, Kind::Plain, taken.bytes);
    Some(taken)
}

/// Releases the spare memory that nothing else needs, after waiting for the work that uses memory freed during a capture. Returns whether there was any.
pub(super) fn reclaim<P: Platform>(host: P) -> bool {
    let devices = host.memory().devices.iter();
    let settled = devices.filter(|slot| release::settle(host, slot));
    let is_any = settled.count() > 0;
    give_up(host) | is_any
}

/// Releases memory that cannot be in use: reserves, empty slabs, and what pools keep. Does not wait. Returns whether there was
/// any; that of a slab which shares a handle stays with the handle.
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
    let reserved = with_room(host, || match limit::try_reserve(host, kind, bytes) {
        true => Ok(()),
        false => Err(OUT_OF_MEMORY),
    });
    reserved.map_err(|_out_of_memory| limit::refuse(host, bytes))
}

/// Makes an attempt to create memory, and again after releasing spare memory for as long as there is none: first what nothing else needs, then what is
/// freed amid other blocks.
pub(super) fn with_room<P: Platform, T>(
    host: P,
    mut attempt: impl FnMut() -> Result<T, Code>,
) -> Result<T, Code> {
    let mut made = attempt();
    for release in [reclaim::<P>, divide::divided::<P>] {
        if !matches!(made, Err(OUT_OF_MEMORY)) {
            break;
        }
        if release(host) {
            made = attempt();
        }
    }
    made
}

/// Returns the whole unused part of the claim, as requested by the agent because another process of the pod was refused. Spare
/// memory is released first; extents with unused memory are divided afterwards.
pub fn relinquish<P: Platform>(host: P) {
    if !host.is_active() {
        return;
    }
    let _given_up = give_up(host);
    let limit = host.process().memory_limit();
    limit::lower(host, |account| account.unused(limit));
    divide::request(host);
}
