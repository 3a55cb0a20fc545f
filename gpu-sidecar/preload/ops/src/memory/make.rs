//! New mapped memory: blocks, pieces of slabs, and the reserve for captures.

use preload_state::memory::{Backing, Block, Kind, Table, Traits, piece_bytes};

use super::state::{Slot, lock};
use super::{device, limit, physical, spare};
use crate::capture_mode;
use crate::cuda::{Address, Code, Handle, OUT_OF_MEMORY};
use crate::platform::Platform;
use crate::residency;

/// Size of a device's reserve in granules: 32 MiB with granules of 2 MiB.
pub(super) const RESERVE_GRANULES: usize = 16;

/// Creates a reserve on the device of the calling thread's context, if it has less than half of one and the limit has room. To be
/// called before the driver begins a capture. Processes that capture nothing have no reserve.
pub fn before_capture<P: Platform>(host: P) {
    if !host.is_active() || capture_mode::any(host) {
        return;
    }
    let Ok(ordinal) = host.current_device() else {
        return;
    };
    let Some(slot) = host.memory().slot(ordinal) else {
        return;
    };
    let Some(traits) = device::traits(host, slot) else {
        return;
    };
    let there = lock(&slot.table).reserved_parts();
    if there >= RESERVE_GRANULES / 2 {
        return;
    }
    let sizes = vec![traits.granule; RESERVE_GRANULES - there];
    // Without a reserve, allocations during the capture are mapped at that time.
    let _made = make(host, slot, traits, Kind::Spare, &sizes, |table, block| {
        table.add_reserve(block);
    });
}

/// Creates, counts and maps physical memory. If the driver is out of memory, spare memory is released.
pub(super) fn make<P: Platform, T>(
    host: P,
    slot: &Slot,
    mut traits: Traits,
    kind: Kind,
    sizes: &[u64],
    keep: impl FnOnce(&mut Table, Block) -> T,
) -> Result<T, Code> {
    let bytes = sizes.iter().sum();
    if kind == Kind::Spare {
        if !limit::try_reserve(host, kind, bytes) {
            return Err(OUT_OF_MEMORY);
        }
    } else {
        spare::reserve(host, kind, bytes)?;
    }
    let mut create = || physical::create_all(host, &mut traits, sizes);
    let parts = match kind {
        Kind::Spare => create(),
        _ => spare::with_room(host, create),
    };
    let made = parts.and_then(|parts| {
        let made = device::map(host, slot, &traits, parts, keep);
        made.map_err(|(code, parts)| {
            capture_mode::relaxed(host, || physical::release_all(host, &parts));
            code
        })
    });
    if made.is_err() {
        limit::release(host, kind, bytes);
    } else {
        if let Some(stored) = &mut lock(&slot.table).traits {
            // Creation may have found that the memory cannot be shared.
            *stored = traits;
        }
        // More host memory may be needed for a copy.
        residency::wake_mover(host);
    }
    made
}

/// Makes a small allocation, as a piece of a slab.
pub(super) fn piece<P: Platform>(
    host: P,
    slot: &Slot,
    traits: Traits,
    requested: u64,
    context: Handle,
) -> Result<Address, Code> {
    let bytes = piece_bytes(requested).ok_or(OUT_OF_MEMORY)?;
    let slab = traits.slab_bytes();
    loop {
        {
            let mut table = lock(&slot.table);
            if let Some(taken) = table.take_piece(bytes) {
                let backing = Backing::Piece(bytes);
                let allocation = host.memory().allocation(requested, context, backing);
                table.insert(taken.at, allocation);
                if let Some(slab) = taken.from_empty {
                    limit::shift(host, Kind::Spare, Kind::Plain, slab);
                }
                return Ok(taken.at);
            }
        }
        // Counted as plain and then as spare under the table's lock, so that the account is never short.
        make(host, slot, traits, Kind::Plain, &[slab], |table, block| {
            limit::shift(host, Kind::Plain, Kind::Spare, block.bytes);
            table.add_slab(block);
        })?;
    }
}
