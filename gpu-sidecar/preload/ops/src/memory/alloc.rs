//! `cuMemAlloc` and `cuMemAllocPitch`: physical memory is created, mapped at reserved addresses, and made accessible to the
//! device and its peers.

use preload_state::memory::{Backing, Kind, Traits, part_sizes};

use super::state::{Slot, lock};
use super::{contexts, current, device, extents, limit, make, native, spare};
use crate::capture_mode;
use crate::cuda::{Address, Code, Handle, INVALID_VALUE, OUT_OF_MEMORY};
use crate::outcome::{CallFor, Outcome, Reason};
use crate::platform::Platform;
use crate::residency::divide;
use crate::touch;

/// Alignment of rows of `cuMemAllocPitch` in bytes, the same as the driver's.
const PITCH: usize = 512;

/// Allocates memory in the calling thread's context. `call` lets the driver allocate it, where its memory cannot be mapped.
pub fn alloc<P: Platform>(host: P, bytes: u64, call: CallFor<'_, Address>) -> Outcome<Address> {
    // The driver reports the errors of invalid calls.
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if bytes == 0 {
        return Outcome::Pass(Reason::Invalid);
    }
    claim_before(host, bytes);
    let _there = touch::hold(host);
    let allocated = allocate(host, bytes);
    Outcome::of(allocated.and_then(|at| match at {
        Some(at) => Ok(at),
        None => native::memory(host, bytes, call),
    }))
}

/// Allocates rows of memory. Returns the address, and the length of a row in bytes unless the driver has written it.
pub fn alloc_pitch<P: Platform>(
    host: P,
    width: usize,
    height: usize,
    element: u32,
    call: CallFor<'_, Address>,
) -> Outcome<(Address, Option<usize>)> {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Outcome::Pass(Reason::Invalid);
    }
    let Some(row) = width.checked_next_multiple_of(PITCH) else {
        return Outcome::Fail(INVALID_VALUE);
    };
    let Some(bytes) = row.checked_mul(height) else {
        return Outcome::Fail(OUT_OF_MEMORY);
    };
    let bytes = bytes as u64;
    claim_before(host, bytes);
    let _there = touch::hold(host);
    let allocated = allocate(host, bytes);
    Outcome::of(allocated.and_then(|at| match at {
        Some(at) => Ok((at, Some(row))),
        None => Ok((native::memory(host, bytes, call)?, None)),
    }))
}

/// Claims the memory of an allocation that gets handles of its own.
fn claim_before<P: Platform>(host: P, requested: u64) {
    if host.process().memory_limit() == 0 || current::current(host).is_err() {
        return;
    }
    let Ok(ordinal) = host.current_device() else {
        return;
    };
    let slot = host.memory().slot(ordinal);
    let traits = slot.and_then(|slot| device::traits(host, slot));
    if let Some(traits) = traits
        && requested >= traits.own_min()
        && requested <= traits.total
    {
        let bytes = requested.next_multiple_of(traits.granule);
        if bytes >= extents::unused_max(host) && extents::unused(host) >= bytes {
            // Rather than having other processes leave for so much.
            let _divided = divide::divided(host);
        }
        limit::claim_before(host, bytes);
    }
}

/// Allocates memory in the calling thread's context. Returns `None` if this device's memory cannot be mapped.
fn allocate<P: Platform>(host: P, requested: u64) -> Result<Option<Address>, Code> {
    let context = current::current(host)?;
    let ordinal = host.current_device()?;
    let Some(slot) = host.memory().slot(ordinal) else {
        return Ok(None);
    };
    let Some(traits) = device::traits(host, slot) else {
        return Ok(None);
    };
    contexts::check(host, context)?;
    if requested > traits.total {
        let has_limit = host.process().memory_limit() > 0;
        return Err(if has_limit {
            limit::refuse(host, requested)
        } else {
            OUT_OF_MEMORY
        });
    }
    if requested < traits.own_min() {
        return make::piece(host, slot, traits, requested, context).map(Some);
    }
    let bytes = requested.next_multiple_of(traits.granule);
    if capture_mode::any(host)
        && let Some(block) = spare::take(host, slot, bytes)
    {
        let at = block.at;
        let backing = Backing::Own(block);
        let allocation = host.memory().allocation(requested, context, backing);
        lock(&slot.table).insert(at, allocation);
        return Ok(Some(at));
    }
    own(host, slot, traits, requested, bytes, context).map(Some)
}

/// Makes a large allocation, with physical memory of its own.
fn own<P: Platform>(
    host: P,
    slot: &Slot,
    traits: Traits,
    requested: u64,
    bytes: u64,
    context: Handle,
) -> Result<Address, Code> {
    let sizes = part_sizes(bytes, traits.granule);
    make::make(host, slot, traits, Kind::Plain, &sizes, |table, block| {
        let at = block.at;
        let backing = Backing::Own(block);
        let allocation = host.memory().allocation(requested, context, backing);
        table.insert(at, allocation);
        at
    })
}
