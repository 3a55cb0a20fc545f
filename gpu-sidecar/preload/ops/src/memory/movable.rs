//! Memory that moves between device and host: the blocks of plain allocations and slabs, and the program's own mapped memory.

use std::ffi::c_int;
use std::sync::{MutexGuard, PoisonError};

use preload_state::memory::{Access, Account, Kind, Table};

use super::state::{Memory, Slot, lock};
use super::{current, limit, physical, release, spare};
use crate::capture_mode;
use crate::cuda::{Address, Code, Handle, INVALID_VALUE};
use crate::platform::{Platform, System};
use crate::residency::Moves;

/// Bit of the key of memory that the program has created: no address has it.
const OF_PROGRAM: u64 = 1 << 63;

/// Returns the key of memory that the program has created.
pub(super) const fn program_key(id: u64) -> u64 {
    OF_PROGRAM | id
}

/// Returns the number of memory that the program has created; `None` for a key of this library's blocks.
fn program_id(key: u64) -> Option<u64> {
    (key & OF_PROGRAM != 0).then_some(key & !OF_PROGRAM)
}

/// Returns whether a key is that of memory which the program has created.
pub(crate) const fn is_of_program(key: u64) -> bool {
    key & OF_PROGRAM != 0
}

/// A block that can move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MovableBlock {
    /// Key of the block, under which its copy is kept: its first address, or that of memory which the program has created.
    pub(crate) key: u64,
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
    /// Contexts in which the memory may be copied, the likeliest first; one may be destroyed.
    pub(crate) contexts: Vec<Handle>,
    /// Granule of physical memory, in bytes.
    pub(crate) granule: u64,
    /// Blocks in the order of their addresses.
    pub(crate) blocks: Vec<MovableBlock>,
}

impl MovableDevice {
    /// Returns the addresses of all granules, in the order of the blocks.
    pub(crate) fn granules(&self) -> Vec<Address> {
        let blocks = self.blocks.iter();
        blocks
            .flat_map(|block| {
                let count = block.bytes / self.granule;
                (0..count).map(|number| block.at + number * self.granule)
            })
            .collect()
    }
}

impl Memory {
    /// Returns the contexts in which memory of this library is allocated.
    pub(crate) fn contexts_with_memory(&self) -> Vec<Handle> {
        let mut contexts: Vec<Handle> = Vec::new();
        for slot in &self.devices {
            contexts.extend(lock(&slot.table).contexts());
        }
        let of_program = lock(&self.program).blocks(false);
        let own = of_program.iter().map(|block| block.context);
        contexts.extend(own.filter(|context| *context != 0));
        contexts.sort_unstable();
        contexts.dedup();
        contexts
    }
}

#[cfg(test)]
impl Memory {
    /// Returns whether no thread holds the lock of the moves.
    pub(crate) fn is_free_of_moves(&self) -> bool {
        self.moves.try_lock().is_ok()
    }

    /// Removes an allocation as a thread does that frees it, up to where it waits for a move in progress. Returns the rest of the free.
    pub(crate) fn begin_free(
        &'static self,
        host: &'static crate::fake::Fake,
        at: Address,
    ) -> impl FnOnce() -> Result<(), Code> {
        let slot = &self.devices[0];
        let allocation = lock(&slot.table).remove(at).unwrap();
        move || release::dispose(host, slot, at, allocation)
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

/// Returns the bytes that cannot leave the device, without the contexts' own.
pub(crate) fn fixed<P: System>(host: P) -> u64 {
    limit::read(host, Account::fixed)
}

/// Returns whether other processes may have mapped memory of this one.
pub(crate) fn is_exported<P: Platform>(host: P) -> bool {
    !lock(&host.memory().ipc).offers.is_empty() || lock(&host.memory().program).has_exported()
}

/// Returns whether memory of other processes is mapped.
pub(crate) fn has_imported<P: Platform>(host: P) -> bool {
    let mut devices = host.memory().devices.iter();
    devices.any(|slot| lock(&slot.table).has_opened())
        || lock(&host.memory().program).has_imported()
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
    listed(host, false)
}

/// Returns the blocks which are on the host.
pub(crate) fn away<P: Platform>(host: P) -> Vec<MovableDevice> {
    listed(host, true)
}

fn listed<P: Platform>(host: P, is_away: bool) -> Vec<MovableDevice> {
    let of_program = lock(&host.memory().program).blocks(is_away);
    let registered: Vec<Handle> = lock(&host.memory().contexts).live().collect();
    let registered: Vec<(Handle, c_int)> = registered
        .into_iter()
        .filter_map(|context| Some((context, current::device_of(host, context).ok()?)))
        .collect();
    let devices = host.memory().devices.iter();
    let devices = devices.filter_map(|slot| {
        let table = lock(&slot.table);
        let blocks = table.blocks().map(|(block, _)| block);
        let meant = blocks.filter(|block| block.is_away == is_away);
        let own = meant.map(|block| MovableBlock {
            key: block.at,
            at: block.at,
            bytes: block.bytes,
        });
        let others = of_program.iter().filter(|own| own.device == slot.ordinal);
        let own_contexts = others.clone().map(|own| own.context);
        let own_contexts = own_contexts.filter(|context| *context != 0);
        let on_device = registered.iter().filter(|(_, on)| *on == slot.ordinal);
        let mut contexts: Vec<Handle> = Vec::new();
        for context in table
            .any_context()
            .into_iter()
            .chain(own_contexts)
            .chain(on_device.map(|(context, _)| *context))
        {
            if !contexts.contains(&context) {
                contexts.push(context);
            }
        }
        let others = others.map(|own| MovableBlock {
            key: program_key(own.id),
            at: own.at,
            bytes: own.bytes,
        });
        let mut blocks: Vec<_> = own.chain(others).collect();
        blocks.sort_unstable_by_key(|block| block.at);
        let device = MovableDevice {
            ordinal: slot.ordinal,
            contexts,
            granule: table.traits?.granule,
            blocks,
        };
        // Without any context nothing can be copied out; what is away are then empty slabs, which return all the same.
        let is_listed = is_away || !device.contexts.is_empty();
        (is_listed && !device.blocks.is_empty()).then_some(device)
    });
    devices.collect()
}

fn with_block<P: Platform>(
    host: P,
    ordinal: c_int,
    at: Address,
    change: impl FnOnce(&Slot, &mut Table) -> Result<(), Code>,
) -> Result<bool, Code> {
    let slot = host.memory().slot(ordinal).ok_or(INVALID_VALUE)?;
    let _guard = slot.access.read().unwrap_or_else(PoisonError::into_inner);
    let mut table = lock(&slot.table);
    // A block that was freed meanwhile has nothing to move.
    if table.block_mut(at).is_none() {
        return Ok(false);
    }
    change(slot, &mut table).map(|()| true)
}

/// Unmaps and releases a block, whose contents nothing uses; its addresses stay reserved. Does nothing to one that is away. One that shares its memory
/// is released with the others, by [`super::extents::release_left`].
pub(crate) fn release_block<P: Platform>(
    host: P,
    ordinal: c_int,
    block: &MovableBlock,
) -> Result<(), Code> {
    if let Some(id) = program_id(block.key) {
        return release_of_program(host, id);
    }
    with_block(host, ordinal, block.at, |_, table| {
        let Some(block) = table.block_mut(block.at) else {
            return Ok(());
        };
        if let Some(number) = block.extent {
            let at = block.at;
            table.extents.leave(number, at);
            return Ok(());
        }
        physical::unmap_and_release(host, block)?;
        block.is_away = true;
        Ok(())
    })
    .map(|_is_there| ())
}

fn release_of_program<P: Platform>(host: P, id: u64) -> Result<(), Code> {
    let mut program = lock(&host.memory().program);
    if program.to_create(id).is_some() {
        return Ok(());
    }
    let mappings = program.mappings_of(id);
    capture_mode::relaxed(host, || {
        for (at, bytes, _) in mappings {
            host.unmap(at, bytes)?;
        }
        for handle in program.left(id) {
            host.release_memory(handle);
        }
        Ok(())
    })
}

/// Creates the physical memory of a block that is away, maps it at the same addresses, and grants access as for any mapping. Returns
/// `false` if the program has freed it meanwhile, so that nothing is mapped.
pub(crate) fn create_block<P: Platform>(
    host: P,
    ordinal: c_int,
    block: &MovableBlock,
) -> Result<bool, Code> {
    if let Some(id) = program_id(block.key) {
        return create_of_program(host, ordinal, id);
    }
    let at = block.at;
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

fn create_of_program<P: Platform>(host: P, ordinal: c_int, id: u64) -> Result<bool, Code> {
    let mut program = lock(&host.memory().program);
    let Some((properties, bytes)) = program.to_create(id) else {
        return Ok(false);
    };
    let mappings = program.mappings_of(id);
    capture_mode::relaxed(host, || {
        let real = host.create_memory(&properties, bytes)?;
        let mut mapped = Vec::new();
        let made = mappings.iter().try_for_each(|(at, bytes, _)| {
            host.map(*at, *bytes, real)?;
            mapped.push((*at, *bytes));
            // The contents are copied there, whatever the program may do; its own access follows.
            host.set_access(*at, *bytes, &[Access::full(ordinal)])
        });
        if let Err(code) = made {
            for (at, bytes) in mapped {
                let _unmapped = host.unmap(at, bytes);
            }
            host.release_memory(real);
            return Err(code);
        }
        if let Some(surplus) = program.returned(id, real) {
            host.release_memory(surplus);
        }
        Ok(true)
    })
}

/// Grants the access that the program has set to a block whose contents are there.
pub(crate) fn finish_block<P: Platform>(
    host: P,
    ordinal: c_int,
    block: &MovableBlock,
) -> Result<(), Code> {
    let Some(id) = program_id(block.key) else {
        return Ok(());
    };
    let program = lock(&host.memory().program);
    let own = [Access::full(ordinal)];
    program
        .mappings_of(id)
        .iter()
        .filter(|(_, _, access)| access[..] != own)
        .try_for_each(|(at, bytes, access)| {
            let has_own = access.iter().any(|one| one.is_of_same(&own[0]));
            let none = (!has_own).then(|| Access::none(ordinal));
            let all: Vec<Access> = access.iter().copied().chain(none).collect();
            host.set_access(*at, *bytes, &all)
        })
}

/// Returns whether the program has set another access to some mapping of its own that is away than all of its device's: it is granted once the contents are
/// there.
pub(crate) fn has_other_access<P: Platform>(host: P) -> bool {
    let devices = away(host);
    devices.iter().any(|device| {
        let own = [Access::full(device.ordinal)];
        let ids = device
            .blocks
            .iter()
            .filter_map(|block| program_id(block.key));
        let program = lock(&host.memory().program);
        ids.into_iter().any(|id| {
            let mappings = program.mappings_of(id);
            mappings.iter().any(|(_, _, access)| access[..] != own)
        })
    })
}

/// Returns all ranges of addresses at which the memory of a block is mapped, as first address and size in bytes.
pub(crate) fn ranges_of<P: Platform>(host: P, block: &MovableBlock) -> Vec<(Address, u64)> {
    let Some(id) = program_id(block.key) else {
        return vec![(block.at, block.bytes)];
    };
    let mappings = lock(&host.memory().program).mappings_of(id);
    let ranges = mappings.into_iter();
    ranges.map(|(at, bytes, _)| (at, bytes)).collect()
}

/// Drops the copy of a block that is released for good, after waiting for a move in progress.
pub(super) fn forget<P: Platform>(host: P, key: u64) {
    moves(host).forget(key);
}

/// Returns the bytes of a device's blocks which are on the host; of all devices for `None`.
pub(crate) fn away_bytes<P: Platform>(host: P, ordinal: Option<c_int>) -> u64 {
    let devices = away(host);
    let own = devices
        .iter()
        .filter(|device| ordinal.is_none_or(|ordinal| device.ordinal == ordinal));
    let blocks = own.flat_map(|device| &device.blocks);
    blocks.map(|block| block.bytes).sum()
}

/// Returns whether the contents at an address are on the host.
pub(super) fn is_away(slot: &Slot, address: Address) -> bool {
    lock(&slot.table).is_away(address)
}
