//! `cuMemAlloc` and `cuMemAllocPitch`: physical memory is created, mapped at reserved addresses, and made accessible to the
//! device and its peers.

use crate::host::Host;
use preload_ops::System as _;
use preload_ops::capture;
use std::ffi::c_uint;

use super::account::Kind;
use super::device::{Allocation, Backing, OWN_MIN, Slot};
use super::physical::{Traits, part_sizes};
use super::{contexts, limit, lock, native, spare, state, write_out};
use crate::driver::{Address, Code, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuMemAlloc_v2(address: *mut Address, bytes: usize) = alloc;
    fn cuMemAllocPitch_v2(address: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint) = alloc_pitch;
}

/// Alignment of rows of `cuMemAllocPitch` in bytes, the same as the driver's.
const PITCH: usize = 512;

fn alloc(call: &dyn Fn() -> Code, out: *mut Address, bytes: usize) -> Code {
    // The driver reports the errors of invalid calls.
    if !Host.is_active() || out.is_null() || bytes == 0 {
        return call();
    }
    match allocate(bytes as u64) {
        Ok(Some(at)) => {
            write_out(out, at);
            SUCCESS
        }
        Ok(None) => native::alloc(call, out, bytes as u64),
        Err(code) => code,
    }
}

fn alloc_pitch(
    call: &dyn Fn() -> Code,
    out: *mut Address,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    let is_wrong = out.is_null() || pitch.is_null() || width == 0 || height == 0;
    if !Host.is_active() || is_wrong || !matches!(element, 4 | 8 | 16) {
        return call();
    }
    let Some(row) = width.checked_next_multiple_of(PITCH) else {
        return INVALID_VALUE;
    };
    let Some(bytes) = row.checked_mul(height) else {
        return OUT_OF_MEMORY;
    };
    match allocate(bytes as u64) {
        Ok(Some(at)) => {
            write_out(out, at);
            write_out(pitch, row);
            SUCCESS
        }
        Ok(None) => native::alloc(call, out, bytes as u64),
        Err(code) => code,
    }
}

/// Allocates memory in the calling thread's context. Returns `None` if this device's memory cannot be mapped.
fn allocate(requested: u64) -> Result<Option<Address>, Code> {
    let context = contexts::current()?;
    let ordinal = contexts::device()?;
    let Some(slot) = state().slot(ordinal) else {
        return Ok(None);
    };
    let Some(traits) = slot.traits() else {
        return Ok(None);
    };
    contexts::check(context)?;
    if requested > traits.total {
        let has_limit = Host.process().memory_limit() > 0;
        return Err(if has_limit {
            limit::refuse(requested)
        } else {
            OUT_OF_MEMORY
        });
    }
    if requested < OWN_MIN {
        return slot.piece(traits, requested, context).map(Some);
    }
    let bytes = requested.next_multiple_of(traits.granule);
    if capture::any(Host)
        && let Some(block) = spare::take(slot, bytes)
    {
        let at = block.at;
        let allocation = Allocation::new(requested, context, Backing::Own(block));
        lock(&slot.table).allocations.insert(at, allocation);
        return Ok(Some(at));
    }
    own(slot, traits, requested, bytes, context).map(Some)
}

/// Makes a large allocation, with physical memory of its own.
fn own(
    slot: &Slot,
    traits: Traits,
    requested: u64,
    bytes: u64,
    context: crate::driver::Handle,
) -> Result<Address, Code> {
    let sizes = part_sizes(bytes, traits.granule);
    slot.make(traits, Kind::Plain, &sizes, |table, block| {
        let at = block.at;
        let allocation = Allocation::new(requested, context, Backing::Own(block));
        table.allocations.insert(at, allocation);
        at
    })
}
