//! What the driver says about an address: as about an allocation of its own.
//!
//! It is asked first, so that it says what is wrong with a call; then what it has said about our mapping is replaced by what
//! holds for the allocation. Addresses are those of 64 bits: the historical functions cannot name one of ours.

use std::ffi::{c_int, c_uint, c_void};

use super::device::{Allocation, Place, Slot, Table};
use super::{lock, put, state};
use crate::driver::{self, Address, Code, Handle, INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::hook::hooks;
use crate::link;

hooks! { HOOKS:
    fn cuMemGetAddressRange_v2(base: *mut Address, bytes: *mut usize, address: Address) = address_range;
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: Address) = one_attribute;
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: Address) = several_attributes;
    fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: Address) = set_attribute;
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) = retain;
}

/// `CU_POINTER_ATTRIBUTE_…`
const CONTEXT: c_int = 1;
const SYNC_MEMOPS: c_int = 6;
const BUFFER_ID: c_int = 7;
const IS_IPC_CAPABLE: c_int = 10;
const RANGE_BEGIN: c_int = 11;
const RANGE_BYTES: c_int = 12;
const HANDLE_TYPES: c_int = 14;
const MAPPING_BYTES: c_int = 18;
const MAPPING_BEGIN: c_int = 19;
const BLOCK_ID: c_int = 20;

/// An address that belongs to nobody who has to do with CUDA: what the driver says of it, it says of any such.
fn nowhere() -> Address {
    static NOTHING: u64 = 0;
    (&raw const NOTHING).expose_provenance() as Address
}

fn address_range(
    call: &dyn Fn() -> Code,
    base: *mut Address,
    bytes: *mut usize,
    address: Address,
) -> Code {
    let Some(slot) = owner(address) else {
        return call();
    };
    let known = {
        let table = lock(&slot.table);
        let found = table.find(address);
        found.map(|(at, allocation)| (at, allocation.asked))
    };
    let Some((at, asked)) = known else {
        // SAFETY: the program's pointers, about an address that is no allocation, as this one is none.
        return unsafe { driver::cuMemGetAddressRange_v2(base, bytes, nowhere()) };
    };
    let code = call();
    if code == SUCCESS {
        put(base, at);
        put(bytes, super::physical::size(asked));
    }
    code
}

fn owner(address: Address) -> Option<&'static Slot> {
    if !link::is_active() {
        return None;
    }
    state().owner(address)
}

/// Replaces what the driver has said. The kinds of the values are the attributes'.
fn correct(
    table: &Table,
    at: Address,
    allocation: &Allocation,
    attribute: c_int,
    value: *mut c_void,
) {
    match attribute {
        CONTEXT => put(value.cast::<Handle>(), allocation.context),
        SYNC_MEMOPS => put(value.cast::<u8>(), u8::from(allocation.sync_memops)),
        BUFFER_ID | BLOCK_ID => put(value.cast::<u64>(), allocation.id),
        IS_IPC_CAPABLE => {
            let is_own = !matches!(allocation.place, Place::Opened(_));
            let is_capable = is_own && Slot::is_shareable(table);
            put(value.cast::<u8>(), u8::from(is_capable));
        }
        RANGE_BEGIN | MAPPING_BEGIN => put(value.cast::<Address>(), at),
        RANGE_BYTES => put(value.cast::<u64>(), allocation.asked),
        MAPPING_BYTES => put(value.cast::<u64>(), allocation.bytes()),
        HANDLE_TYPES => put(value.cast::<u32>(), 0),
        _ => {}
    }
}

fn one_attribute(
    call: &dyn Fn() -> Code,
    value: *mut c_void,
    attribute: c_int,
    address: Address,
) -> Code {
    let Some(slot) = owner(address) else {
        return call();
    };
    let table = lock(&slot.table);
    let Some((at, allocation)) = table.find(address) else {
        // SAFETY: the program's pointer, about an address that is no allocation.
        return unsafe { driver::cuPointerGetAttribute(value, attribute, nowhere()) };
    };
    let code = call();
    if code == SUCCESS {
        correct(&table, at, allocation, attribute, value);
    }
    code
}

fn several_attributes(
    call: &dyn Fn() -> Code,
    count: c_uint,
    attributes: *mut c_int,
    values: *mut *mut c_void,
    address: Address,
) -> Code {
    let Some(slot) = owner(address) else {
        return call();
    };
    let table = lock(&slot.table);
    let Some((at, allocation)) = table.find(address) else {
        // SAFETY: the program's pointers, about an address that is no allocation.
        return unsafe { driver::cuPointerGetAttributes(count, attributes, values, nowhere()) };
    };
    let code = call();
    if code != SUCCESS || attributes.is_null() || values.is_null() {
        return code;
    }
    for index in 0..count as usize {
        let which = attributes.wrapping_add(index);
        // SAFETY: the program has `count` attributes there, as the driver has found.
        let attribute = unsafe { which.read_unaligned() };
        let place = values.wrapping_add(index);
        // SAFETY: and as many pointers.
        let value = unsafe { place.read_unaligned() };
        correct(&table, at, allocation, attribute, value);
    }
    code
}

/// `SYNC_MEMOPS` is the only one that can be set. The driver sets it for the mapping too, where it can.
fn set_attribute(
    call: &dyn Fn() -> Code,
    value: *const c_void,
    attribute: c_int,
    address: Address,
) -> Code {
    let Some(slot) = owner(address) else {
        return call();
    };
    let mut table = lock(&slot.table);
    let Some(allocation) = table.find_mut(address) else {
        return INVALID_VALUE;
    };
    let code = call();
    if attribute != SYNC_MEMOPS || value.is_null() || !matches!(code, SUCCESS | NOT_SUPPORTED) {
        return code;
    }
    // SAFETY: not null, and the program says that a number lies there.
    allocation.sync_memops = unsafe { value.cast::<c_uint>().read_unaligned() } != 0;
    SUCCESS
}

/// Plain allocations have no handle that a program could get.
fn retain(call: &dyn Fn() -> Code, handle: *mut u64, address: *mut c_void) -> Code {
    if owner(address.expose_provenance() as Address).is_some() {
        return INVALID_VALUE;
    }
    super::program::retain(call, handle, address.expose_provenance() as Address)
}
