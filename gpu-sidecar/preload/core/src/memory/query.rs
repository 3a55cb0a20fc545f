//! Queries of addresses, answered as for an allocation of the driver's own.
//!
//! The driver is called first, so that it reports errors. Its results for the mapping are then replaced by those of the
//! allocation. Addresses have 64 bits: the historical functions cannot refer to a reserved address.

use crate::host::Host;
use preload_ops::System as _;
use std::ffi::{c_int, c_uint, c_void};

use super::device::{Allocation, Backing, Slot, Table};
use super::{lock, state, write_out};
use crate::driver::{self, Address, Code, Handle, INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuMemGetAddressRange_v2(base: *mut Address, bytes: *mut usize, address: Address) = address_range;
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: Address) = one_attribute;
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: Address) = several_attributes;
    fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: Address) = set_attribute;
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) = retain;
}

/// `CU_POINTER_ATTRIBUTE_CONTEXT`; the constants below are attributes of the same enumeration.
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

/// Returns an address unknown to CUDA, for which the driver returns the same error as for any unknown address.
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
        found.map(|(at, allocation)| (at, allocation.requested))
    };
    let Some((at, requested)) = known else {
        // SAFETY: the program's pointers, with an address that is in no allocation.
        return unsafe { driver::cuMemGetAddressRange_v2(base, bytes, nowhere()) };
    };
    let code = call();
    if code == SUCCESS {
        write_out(base, at);
        write_out(bytes, super::physical::size(requested));
    }
    code
}

fn owner(address: Address) -> Option<&'static Slot> {
    if !Host.is_active() {
        return None;
    }
    state().owner(address)
}

/// Replaces the driver's value of an attribute. The type written is the attribute's.
fn correct(
    table: &Table,
    at: Address,
    allocation: &Allocation,
    attribute: c_int,
    value: *mut c_void,
) {
    match attribute {
        CONTEXT => write_out(value.cast::<Handle>(), allocation.context),
        SYNC_MEMOPS => write_out(value.cast::<u8>(), u8::from(allocation.sync_memops)),
        BUFFER_ID | BLOCK_ID => write_out(value.cast::<u64>(), allocation.id),
        IS_IPC_CAPABLE => {
            let is_own = !matches!(allocation.backing, Backing::Opened(_));
            let is_capable = is_own && Slot::is_shareable(table);
            write_out(value.cast::<u8>(), u8::from(is_capable));
        }
        RANGE_BEGIN | MAPPING_BEGIN => write_out(value.cast::<Address>(), at),
        RANGE_BYTES => write_out(value.cast::<u64>(), allocation.requested),
        MAPPING_BYTES => write_out(value.cast::<u64>(), allocation.bytes()),
        HANDLE_TYPES => write_out(value.cast::<u32>(), 0),
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
        // SAFETY: the program's pointer, with an address that is in no allocation.
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
        // SAFETY: the program's pointers, with an address that is in no allocation.
        return unsafe { driver::cuPointerGetAttributes(count, attributes, values, nowhere()) };
    };
    let code = call();
    if code != SUCCESS || attributes.is_null() || values.is_null() {
        return code;
    }
    for index in 0..count as usize {
        let which = attributes.wrapping_add(index);
        // SAFETY: the driver has read `count` attributes from there.
        let attribute = unsafe { which.read_unaligned() };
        let place = values.wrapping_add(index);
        // SAFETY: the driver has read `count` pointers from there.
        let value = unsafe { place.read_unaligned() };
        correct(&table, at, allocation, attribute, value);
    }
    code
}

/// Sets `SYNC_MEMOPS`, the only settable attribute. The driver sets it for the mapping too, where it can.
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
    // SAFETY: not null, and the program guarantees that a number is there.
    allocation.sync_memops = unsafe { value.cast::<c_uint>().read_unaligned() } != 0;
    SUCCESS
}

/// Refuses addresses of this library: plain allocations have no handle that a program could get.
fn retain(call: &dyn Fn() -> Code, handle: *mut u64, address: *mut c_void) -> Code {
    if owner(address.expose_provenance() as Address).is_some() {
        return INVALID_VALUE;
    }
    super::program::retain(call, handle, address.expose_provenance() as Address)
}
