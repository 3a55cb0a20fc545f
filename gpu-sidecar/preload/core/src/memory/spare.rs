//! Memory that is mapped and with nobody: a reserve for allocations during captures, which may not be able to wait for the
//! driver to map anything, and what is left of slabs. It counts against the limit, is told to the program as free, and is
//! given up before anything is refused.

use super::account::Kind;
use super::device::Slot;
use super::physical::{Block, Part};
use super::{contexts, free, limit, lock, pools, state};
use crate::link;

/// How many granules the reserve of a device has: 32 MiB where a granule is 2 MiB.
const RESERVE_GRANULES: usize = 16;

/// A capture is about to begin: the device of the calling thread's context gets a reserve, if it has none and the limit has
/// room for one. To be called before the driver's own call. Processes that capture nothing have none.
pub(crate) fn capture_begins() {
    if !link::is_active() || crate::capture::any() {
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
    // Without it, allocations during the capture are mapped then.
    let _made = slot.make(traits, Kind::Spare, &sizes, |table, block| {
        table.reserve.push(block);
    });
}

/// Takes so many bytes from the reserve; they are plain memory from then on.
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

/// Takes the front off a block, in whole parts.
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

/// Gives up all that lies idle, after waiting for what still uses memory that was freed during a capture. Whether there was
/// anything.
pub(super) fn reclaim() -> bool {
    let settled = state().devices.iter().filter(|slot| free::settle(slot));
    let is_any = settled.count() > 0;
    give_up() | is_any
}

/// Gives up what nothing can be using: reserves, empty slabs, what pools keep. It waits for nothing. Whether there was anything.
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
    fn the_reserve_is_split_between_its_parts() {
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
