//! Wrappers of queries of addresses. Addresses have 64 bits: the historical functions cannot refer to a reserved address.

use std::ffi::{c_int, c_uint, c_void};

use preload_ops::memory::program;
use preload_ops::memory::query::{self, Attribute};
use preload_state::memory::size;

use super::written;
use crate::driver::{self, Address, Code};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::{read, write_out};

hooks! { HOOKS:
    fn cuMemGetAddressRange_v2(base: *mut Address, bytes: *mut usize, address: Address) = address_range;
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: Address) = one_attribute;
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: Address) = several_attributes;
    fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: Address) = set_attribute;
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) = retain;
}

/// Returns an address unknown to CUDA, for which the driver returns the same error as for any unknown address.
fn nowhere() -> Address {
    (&raw const HOOKS).expose_provenance() as Address
}

fn address_range(
    real: &dyn Fn() -> Code,
    base: *mut Address,
    bytes: *mut usize,
    address: Address,
) -> Code {
    let unknown = || {
        // SAFETY: the program's pointers, which it guarantees to be null or valid for the driver, with another address.
        unsafe { driver::cuMemGetAddressRange_v2(base, bytes, nowhere()) }
    };
    let range = query::address_range(Host, address, real, &unknown);
    range.write_or_call(real, |(at, requested)| {
        write_out(base, at);
        write_out(bytes, size(requested));
    })
}

/// Writes the value of an attribute in its type.
fn write(to: *mut c_void, value: Attribute) {
    match value {
        Attribute::Wide(value) => write_out(to.cast(), value),
        Attribute::Narrow(value) => write_out(to.cast(), value),
        Attribute::Flag(value) => write_out(to.cast(), u8::from(value)),
    }
}

fn one_attribute(
    real: &dyn Fn() -> Code,
    value: *mut c_void,
    attribute: c_int,
    address: Address,
) -> Code {
    let unknown = || {
        // SAFETY: the program's pointer, valid for the attribute, with another address.
        unsafe { driver::cuPointerGetAttribute(value, attribute, nowhere()) }
    };
    let queried = query::attributes(Host, address, real, &unknown, |correct| {
        if let Some(corrected) = correct(attribute) {
            write(value, corrected);
        }
    });
    queried.or_call(real)
}

fn several_attributes(
    real: &dyn Fn() -> Code,
    count: c_uint,
    attributes: *mut c_int,
    values: *mut *mut c_void,
    address: Address,
) -> Code {
    let unknown = || {
        // SAFETY: the program's lists of `count` attributes and pointers, with another address.
        unsafe { driver::cuPointerGetAttributes(count, attributes, values, nowhere()) }
    };
    let queried = query::attributes(Host, address, real, &unknown, |correct| {
        if attributes.is_null() || values.is_null() {
            return;
        }
        for index in 0..count as usize {
            // The driver has read `count` attributes and as many pointers.
            let attribute = read(attributes.wrapping_add(index));
            let place = read(values.wrapping_add(index));
            if let (Some(attribute), Some(place)) = (attribute, place)
                && let Some(corrected) = correct(attribute)
            {
                write(place, corrected);
            }
        }
    });
    queried.or_call(real)
}

fn set_attribute(
    real: &dyn Fn() -> Code,
    value: *const c_void,
    attribute: c_int,
    address: Address,
) -> Code {
    let value = || read(value.cast::<c_uint>()).map(|value| value != 0);
    query::set_attribute(Host, address, attribute, real, value).or_call(real)
}

fn retain(real: &dyn Fn() -> Code, handle: *mut u64, address: *mut c_void) -> Code {
    let address = address.expose_provenance() as Address;
    let retained = program::retain(Host, address, &|| written(real, handle));
    retained.write_or_call(real, |known| {
        if let Some(known) = known {
            write_out(handle, known);
        }
    })
}
