//! A device's memory: addresses, slabs and mappings.

use std::sync::PoisonError;

use preload_state::memory::{Access, Block, Kind, Part, Table, Traits};

use super::state::{Slot, lock};
use super::{extents, limit, movable, physical, tickets};
use crate::capture_mode;
use crate::cuda::{Address, Code, OUT_OF_MEMORY};
use crate::platform::Platform;

/// Returns the device's properties; `None` if its memory cannot be mapped and stays the driver's.
pub(super) fn traits<P: Platform>(host: P, slot: &Slot) -> Option<Traits> {
    let mut table = lock(&slot.table);
    if table.traits.is_none() && !table.is_native {
        table.traits = physical::traits(host, slot.ordinal);
        table.is_native = table.traits.is_none();
    }
    table.traits
}

/// Takes addresses for `bytes`, reserving more if needed.
fn take_addresses<P: Platform>(
    host: P,
    slot: &Slot,
    traits: &Traits,
    bytes: u64,
) -> Result<Address, Code> {
    let mut table = lock(&slot.table);
    if let Some(at) = table.take_addresses(bytes) {
        return Ok(at);
    }
    let mut sizes = Table::arena_sizes(traits, bytes).into_iter();
    let reserved = sizes.find_map(|wanted| {
        let reserve = || host.reserve_addresses(wanted, traits.granule);
        Some((capture_mode::relaxed(host, reserve).ok()?, wanted))
    });
    let (begin, reserved) = reserved.ok_or(OUT_OF_MEMORY)?;
    table.add_arena(begin, reserved);
    {
        let ranges = host.memory().ranges.write();
        let mut ranges = ranges.unwrap_or_else(PoisonError::into_inner);
        ranges.add(begin, reserved, slot.ordinal);
    }
    table.take_addresses(bytes).ok_or(OUT_OF_MEMORY)
}

/// Returns addresses that are unused.
pub(super) fn give_addresses_back(slot: &Slot, at: Address, bytes: u64) {
    lock(&slot.table).give_addresses_back(at, bytes);
}

/// Returns the access to grant: to all peers, and last to the device itself.
pub(super) fn access_list(slot: &Slot) -> Vec<Access> {
    lock(&slot.table).access_list(slot.ordinal)
}

/// Maps existing physical memory and passes the block to `keep`, which enters it in the table. No other thread sees the block
/// before that. Returns the parts on failure.
pub(super) fn map<P: Platform, T>(
    host: P,
    slot: &Slot,
    traits: &Traits,
    parts: Vec<Part>,
    keep: impl FnOnce(&mut Table, Block) -> T,
) -> Result<T, (Code, Vec<Part>)> {
    let bytes = parts.iter().map(|part| part.bytes).sum();
    let at = match take_addresses(host, slot, traits, bytes) {
        Ok(at) => at,
        Err(code) => return Err((code, parts)),
    };
    let _guard = slot.access.read().unwrap_or_else(PoisonError::into_inner);
    if let Err(code) = physical::map_all(host, at, &parts, &access_list(slot)) {
        give_addresses_back(slot, at, bytes);
        return Err((code, parts));
    }
    let block = Block {
        at,
        bytes,
        parts,
        is_away: false,
        extent: None,
    };
    Ok(keep(&mut lock(&slot.table), block))
}

/// Returns an unused piece to its slab. One empty slab is kept.
pub(super) fn piece_back<P: Platform>(
    host: P,
    slot: &Slot,
    at: Address,
    bytes: u64,
) -> Result<(), Code> {
    {
        let mut table = lock(&slot.table);
        if let Some(slab) = table.give_piece_back(at, bytes) {
            limit::shift(host, Kind::Plain, Kind::Spare, slab);
        }
    }
    release_empty_slabs(host, slot, 1).map(|_released| ())
}

/// Releases empty slabs except `keep` of them. Returns whether there were any.
pub(super) fn release_empty_slabs<P: Platform>(
    host: P,
    slot: &Slot,
    keep: usize,
) -> Result<bool, Code> {
    let blocks = lock(&slot.table).remove_empty_slabs(keep);
    let mut result = Ok(!blocks.is_empty());
    for block in blocks {
        if let Err(code) = release(host, slot, block, Kind::Spare) {
            result = Err(code);
        }
    }
    result
}

/// Unmaps and releases unused memory, or leaves it to others with which it shares a handle. After an error of the driver the mappings are unknown: the addresses are not reused,
/// and the memory stays counted.
pub(super) fn release<P: Platform>(
    host: P,
    slot: &Slot,
    block: Block,
    kind: Kind,
) -> Result<(), Code> {
    tickets::withdraw(host, block.at);
    // Also waits for a move in progress.
    movable::forget(host, block.at);
    if let Some(number) = block.extent {
        return extents::free(host, slot, number, &block, kind);
    }
    physical::unmap_and_release(host, &block)?;
    give_addresses_back(slot, block.at, block.bytes);
    limit::release(host, kind, block.bytes);
    Ok(())
}
