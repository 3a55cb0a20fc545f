//! Physical memory that several blocks share: see [`preload_state::memory::Extents`].

use std::ffi::c_int;
use std::sync::PoisonError;

use preload_state::memory::{Block, FreedMember, Kind, PART_GRANULES, Part, neighbours};

use super::make::RESERVE_GRANULES;
use super::movable::{MovableBlock, MovableDevice, is_of_program, movable};
use super::state::{Slot, lock};
use super::{limit, physical};
use crate::cuda::{Address, Code, INVALID_VALUE};
use crate::platform::{Platform, System};

/// Returns the blocks of a device that are to share memory, in groups: neighbours of which `is_meant` is true.
pub(crate) fn groups(
    device: &MovableDevice,
    is_meant: impl Fn(u64) -> bool,
) -> Vec<Vec<MovableBlock>> {
    let blocks = device.blocks.iter();
    let meant = blocks.filter(|block| !is_of_program(block.key) && is_meant(block.key));
    let mut meant: Vec<MovableBlock> = meant.copied().collect();
    meant.sort_unstable_by_key(|block| block.at);
    let groups = neighbours(&ranges(&meant), PART_GRANULES * device.granule);
    groups
        .into_iter()
        .filter_map(|group| meant.get(group).map(<[_]>::to_vec))
        .collect()
}

fn ranges(blocks: &[MovableBlock]) -> Vec<(Address, u64)> {
    let blocks = blocks.iter();
    blocks.map(|block| (block.at, block.bytes)).collect()
}

/// Creates one physical memory for neighbouring blocks that are away, maps it at their addresses, and grants access as for any mapping. Does
/// nothing if the program has freed one of them, or they are in different ranges of reserved addresses.
pub(crate) fn create<P: Platform>(
    host: P,
    ordinal: c_int,
    blocks: &[MovableBlock],
) -> Result<(), Code> {
    let slot = host.memory().slot(ordinal).ok_or(INVALID_VALUE)?;
    let _guard = slot.access.read().unwrap_or_else(PoisonError::into_inner);
    let mut table = lock(&slot.table);
    let ranges = ranges(blocks);
    let (Some(&(at, _)), true) = (ranges.first(), table.can_share(&ranges)) else {
        return Ok(());
    };
    let bytes = ranges.iter().map(|(_, bytes)| bytes).sum();
    let mut traits = table.traits.ok_or(INVALID_VALUE)?;
    let parts = physical::create_all(host, &mut traits, &[bytes])?;
    let access = table.access_list(slot.ordinal);
    if let Err(code) = physical::map_all(host, at, &parts, &access) {
        physical::release_all(host, &parts);
        return Err(code);
    }
    for part in parts {
        table.add_extent(part.handle, &ranges);
    }
    Ok(())
}

/// Unmaps and releases the extents of a device whose contents are on the host; their addresses stay reserved, but for those of freed blocks. `is_over`:
/// whether no copy of a block is in progress; before that, blocks which the program is freeing are needed as well.
pub(crate) fn release_left<P: Platform>(
    host: P,
    ordinal: c_int,
    is_over: bool,
) -> Result<(), Code> {
    let slot = host.memory().slot(ordinal).ok_or(INVALID_VALUE)?;
    loop {
        let mut table = lock(&slot.table);
        let Some((number, extent)) = table.extent_to_leave(is_over) else {
            return Ok(());
        };
        physical::unmap_and_release(host, &whole(extent.at, extent.bytes, extent.handle))?;
        let unused = table.extent_left(number);
        drop(table);
        if unused > 0 {
            limit::release(host, Kind::Spare, unused);
        }
    }
}

/// Returns the mapping of an extent as a block.
fn whole(at: Address, bytes: u64, handle: u64) -> Block {
    Block {
        at,
        bytes,
        parts: vec![Part { handle, bytes }],
        is_away: false,
        extent: None,
    }
}

/// Notes that the contents of all extents are on their devices after all: nothing of them was released.
pub(crate) fn stay<P: System>(host: P) {
    for slot in &host.memory().devices {
        lock(&slot.table).extents.stay();
    }
}

/// Releases a freed block of an extent, as far as nothing else needs the extent: otherwise its memory is spare.
pub(super) fn free<P: Platform>(
    host: P,
    slot: &Slot,
    number: u64,
    block: &Block,
    kind: Kind,
) -> Result<(), Code> {
    let freed = {
        let mut table = lock(&slot.table);
        let freed = table.free_in_extent(number, block);
        if !matches!(freed, FreedMember::Gone) {
            // Under the lock, so that it counts as spare when the extent leaves.
            limit::shift(host, kind, Kind::Spare, block.bytes);
        }
        freed
    };
    match freed {
        FreedMember::Gone => limit::release(host, kind, block.bytes),
        FreedMember::Kept => {}
        FreedMember::Last(extent) => {
            let released =
                physical::unmap_and_release(host, &whole(extent.at, extent.bytes, extent.handle));
            if let Err(code) = released {
                // It cannot be had again.
                limit::shift(host, Kind::Spare, kind, extent.bytes);
                return Err(code);
            }
            let unused = lock(&slot.table).free_unused(&extent);
            limit::release(host, Kind::Spare, unused);
        }
    }
    Ok(())
}

/// Returns the memory of freed blocks in extents of all devices, in bytes.
pub(crate) fn unused<P: System>(host: P) -> u64 {
    let devices = host.memory().devices.iter();
    devices.map(|slot| lock(&slot.table).extents.unused()).sum()
}

/// Returns the size of the blocks which a division moves that nothing has requested, in bytes.
pub(crate) fn beside_unused<P: System>(host: P) -> u64 {
    let devices = host.memory().devices.iter();
    devices
        .map(|slot| lock(&slot.table).extents.beside_unused())
        .sum()
}

/// Returns the memory of freed blocks up to which extents are kept as they are, in bytes: as much as the reserve for captures.
pub(crate) fn unused_max<P: System>(host: P) -> u64 {
    let devices = host.memory().devices.iter();
    let granules = devices.filter_map(|slot| Some(lock(&slot.table).traits?.granule));
    granules.max().unwrap_or(0) * RESERVE_GRANULES as u64
}

/// Marks the extent in which an address is, if there is one whose blocks can be exported. Returns whether there is.
pub(super) fn set_to_divide(slot: &Slot, address: Address) -> bool {
    let mut table = lock(&slot.table);
    let number = table.extent_of(address).filter(|_| table.is_shareable());
    if let Some(number) = number {
        table.extents.set_to_divide(number);
    }
    number.is_some()
}

/// Returns whether some extent is to be divided.
pub(crate) fn any_to_divide<P: System>(host: P) -> bool {
    let mut devices = host.memory().devices.iter();
    devices.any(|slot| lock(&slot.table).extents.any_to_divide())
}

/// Returns the blocks of the extents that are to be divided.
pub(crate) fn to_divide<P: Platform>(host: P) -> Vec<MovableDevice> {
    let mut devices = movable(host);
    for device in &mut devices {
        let Some(slot) = host.memory().slot(device.ordinal) else {
            continue;
        };
        let mut table = lock(&slot.table);
        device.blocks.retain(|block| {
            let own = table.block_mut(block.at);
            let number = own
                .filter(|_| !is_of_program(block.key))
                .and_then(|own| own.extent);
            number.is_some_and(|number| table.extents.is_to_divide(number))
        });
    }
    devices.retain(|device| !device.blocks.is_empty());
    devices
}
