//! Memory that is mapped but unused: a reserve for allocations during captures, in which the driver may be unable to map memory,
//! and empty slabs. It counts against the limit, is reported to the program as free, and is released before anything is refused.

use super::account::Kind;
use super::device::Slot;
use super::physical::{Block, Part};
use super::{contexts, free, limit, lock, pools, state};
use crate::host::Host;
use preload_ops::System as _;
use preload_ops::capture;

/// Size of a device's reserve in granules: 32 MiB with granules of 2 MiB.
const RESERVE_GRANULES: usize = 16;

/// Creates a reserve on the device of the calling thread's context, if it has less than half of one and the limit has room. To be
/// called before the driver begins a capture. Processes that capture nothing have no reserve.
pub(crate) fn before_capture() {
    if !Host.is_active() || capture::any(Host) {
        return;
    }
    let Ok(ordinal) = contexts::device() else {
        return;
    };
    let Some(slot) = state().slot(ordinal) else {
        return;
    };
    let Some(traits) = slot.traits() else {
        return;
    };
    let there: usize = lock(&slot.table)
        .reserve
        .iter()
        .map(|block| block.parts.len())
        .sum();
    if there >= RESERVE_GRANULES / 2 {
        return;
    }
    let sizes = vec![traits.granule; RESERVE_GRANULES - there];
    // Without a reserve, allocations during the capture are mapped at that time.
    let _made = slot.make(traits, Kind::Spare, &sizes, |table, block| {
        table.reserve.push(block);
    });
}

/// Takes `bytes` from the reserve, which become plain memory; `None` if no block is large enough.
pub(super) fn take(slot: &Slot, bytes: u64) -> Option<Block> {
    let mut table = lock(&slot.table);
    let reserve = &mut table.reserve;
    let which = reserve.iter().position(|block| block.bytes >= bytes)?;
    let block = reserve.get_mut(which)?;
    let taken = split(block, bytes);
    if block.bytes == 0 {
        reserve.swap_remove(which);
    }
    limit::shift(Kind::Spare, Kind::Plain, taken.bytes);
    Some(taken)
}

/// Splits whole parts of at least `bytes` in total off the front of a block.
fn split(block: &mut Block, bytes: u64) -> Block {
    let mut front = Block {
        at: block.at,
        bytes: 0,
        parts: Vec::new(),
    };
    let mut rest: Vec<Part> = Vec::new();
    for part in block.parts.drain(..) {
        if front.bytes < bytes {
            front.bytes += part.bytes;
            front.parts.push(part);
        } else {
            rest.push(part);
        }
    }
    block.parts = rest;
    block.at += front.bytes;
    block.bytes -= front.bytes;
    front
}

/// Releases all spare memory, after waiting for the work that uses memory freed during a capture. Returns whether there was any.
pub(super) fn reclaim() -> bool {
    let settled = state().devices.iter().filter(|slot| free::settle(slot));
    let is_any = settled.count() > 0;
    give_up() | is_any
}

/// Releases memory that cannot be in use: reserves, empty slabs, and what pools keep. Does not wait. Returns whether there was
/// any.
pub(super) fn give_up() -> bool {
    let mut is_any = false;
    for slot in &state().devices {
        let reserve = std::mem::take(&mut lock(&slot.table).reserve);
        for block in reserve {
            is_any |= slot.release(block, Kind::Spare).is_ok();
        }
        is_any |= slot.release_empty_slabs(0).unwrap_or(false);
    }
    is_any | pools::trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_split_between_its_parts() {
        let part = |handle| Part { handle, bytes: 10 };
        let mut block = Block {
            at: 100,
            bytes: 40,
            parts: (0..4).map(part).collect(),
        };
        let taken = split(&mut block, 20);
        assert_eq!((taken.at, taken.bytes, taken.parts.len()), (100, 20, 2));
        assert_eq!((block.at, block.bytes, block.parts.len()), (120, 20, 2));
        assert_eq!(block.parts[0].handle, 2);
        let rest = split(&mut block, 20);
        assert_eq!((rest.at, rest.bytes), (120, 20));
        assert_eq!((block.bytes, block.parts.len()), (0, 0));
    }
}
