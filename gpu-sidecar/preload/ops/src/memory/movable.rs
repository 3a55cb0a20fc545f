//! Memory that moves between device and host: the blocks of plain allocations and slabs.

use std::ffi::c_int;
use std::sync::{MutexGuard, PoisonError};

use preload_state::memory::{Block, Kind, Table};

use super::state::{Memory, Slot, lock};
use super::{current, limit, physical, release, spare};
use crate::cuda::{Address, Code, Handle, INVALID_VALUE};
use crate::platform::Platform;
use crate::residency::Moves;

/// A block that can move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MovableBlock {
    /// First address of the block.
    pub(crate) at: Address,
    /// Size of the block in bytes.
    pub(crate) bytes: u64,
}

/// Blocks of one device.
#[derive(Debug)]
pub(crate) struct MovableDevice {
    /// Ordinal of the device.
    pub(crate) ordinal: c_int,
    /// A context on the device in which memory is allocated.
    pub(crate) context: Handle,
    /// Granule of physical memory, in bytes.
    pub(crate) granule: u64,
    /// Blocks in the order of their addresses.
    pub(crate) blocks: Vec<MovableBlock>,
}

impl Memory {
    /// Returns the contexts in which memory of this library is allocated.
    pub(crate) fn contexts_with_memory(&self) -> Vec<Handle> {
        let mut contexts: Vec<Handle> = Vec::new();
        for slot in &self.devices {
            contexts.extend(lock(&slot.table).contexts());
        }
        contexts.sort_unstable();
        contexts.dedup();
        contexts
    }
}

/// Takes the lock of the moves, which is held over a move.
pub(crate) fn moves<P: Platform>(host: P) -> MutexGuard<'static, Moves> {
    lock(&host.memory().moves)
}

/// Returns the bytes held of a kind.
pub(crate) fn total_of_kind<P: Platform>(host: P, kind: Kind) -> u64 {
    limit::read(host, |account| account.of(kind))
}

/// Returns whether other processes may have mapped memory of this one.
pub(crate) fn has_offers<P: Platform>(host: P) -> bool {
    !lock(&host.memory().ipc).offers.is_empty()
}

/// Returns whether memory of other processes is mapped.
pub(crate) fn has_opened<P: Platform>(host: P) -> bool {
    let mut devices = host.memory().devices.iter();
    devices.any(|slot| lock(&slot.table).has_opened())
}

/// Waits for all work of a context.
pub(crate) fn synchronize<P: Platform>(host: P, context: Handle) -> Result<(), Code> {
    current::synchronize(host, context)
}

/// Releases what has no contents: memory freed during captures, reserves, empty slabs, and what pools keep.
pub(crate) fn give_up_spare<P: Platform>(host: P) {
    for slot in &host.memory().devices {
        release::settle(host, slot);
    }
    spare::give_up(host);
}

/// Returns the blocks which are on their devices.
pub(crate) fn movable<P: Platform>(host: P) -> Vec<MovableDevice> {
    listed(host, |block| !block.is_away)
}

/// Returns the blocks which are on the host.
pub(crate) fn away<P: Platform>(host: P) -> Vec<MovableDevice> {
    listed(host, |block| block.is_away)
}

fn listed<P: Platform>(host: P, is_meant: impl Fn(&Block) -> bool) -> Vec<MovableDevice> {
    let devices = host.memory().devices.iter();
    let devices = devices.filter_map(|slot| {
        let table = lock(&slot.table);
        let blocks = table.blocks().map(|(block, _)| block);
        let meant = blocks.filter(|block| is_meant(block));
        let mut blocks: Vec<_> = meant
            .map(|block| MovableBlock {
                at: block.at,
                bytes: block.bytes,
            })
            .collect();
        blocks.sort_unstable_by_key(|block| block.at);
        let device = MovableDevice {
            ordinal: slot.ordinal,
            context: table.any_context()?,
            granule: table.traits?.granule,
            blocks,
        };
        (!device.blocks.is_empty()).then_some(device)
    });
    devices.collect()
}

fn with_block<P: Platform>(
    host: P,
    ordinal: c_int,
    at: Address,
    change: impl FnOnce(&Slot, &mut Table) -> Result<(), Code>,
) -> Result<(), Code> {
    let slot = host.memory().slot(ordinal).ok_or(INVALID_VALUE)?;
    let _guard = slot.access.read().unwrap_or_else(PoisonError::into_inner);
    let mut table = lock(&slot.table);
    // A block that was freed meanwhile has nothing to move.
    if table.block_mut(at).is_none() {
        return Ok(());
    }
    change(slot, &mut table)
}

/// Unmaps and releases a block, whose contents nothing uses; its addresses stay reserved. Does nothing to one that is away.
pub(crate) fn release_block<P: Platform>(host: P, ordinal: c_int, at: Address) -> Result<(), Code> {
    with_block(host, ordinal, at, |_, table| {
        let Some(block) = table.block_mut(at) else {
            return Ok(());
        };
        physical::unmap_and_release(host, block)?;
        block.is_away = true;
        Ok(())
    })
}

/// Creates the physical memory of a block that is away, maps it at the same addresses, and grants access as for any mapping.
pub(crate) fn create_block<P: Platform>(host: P, ordinal: c_int, at: Address) -> Result<(), Code> {
    with_block(host, ordinal, at, |slot, table| {
        let access = table.access_list(slot.ordinal);
        let mut traits = table.traits.ok_or(INVALID_VALUE)?;
        let Some(block) = table.block_mut(at).filter(|block| block.is_away) else {
            return Ok(());
        };
        let sizes: Vec<u64> = block.parts.iter().map(|part| part.bytes).collect();
        let parts = physical::create_all(host, &mut traits, &sizes)?;
        if let Err(code) = physical::map_all(host, at, &parts, &access) {
            physical::release_all(host, &parts);
            return Err(code);
        }
        block.parts = parts;
        block.is_away = false;
        Ok(())
    })
}

/// Drops the copy of a block that is released for good, after waiting for a move in progress.
pub(super) fn forget<P: Platform>(host: P, at: Address) {
    moves(host).host.forget(at);
}

/// Returns the bytes of blocks which are on the host.
pub(crate) fn away_bytes<P: Platform>(host: P) -> u64 {
    let devices = away(host);
    let blocks = devices.iter().flat_map(|device| &device.blocks);
    blocks.map(|block| block.bytes).sum()
}

/// Returns whether the contents at an address are on the host.
pub(super) fn is_away(slot: &Slot, address: Address) -> bool {
    lock(&slot.table).is_away(address)
}
