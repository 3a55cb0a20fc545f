//! Wrappers of memory that the program creates and maps itself.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd as _;

use preload_ops::memory::program;
use preload_state::memory::{Access, POSIX_FD, Properties};

use super::written;
use crate::driver::{Address, Code, INVALID_VALUE};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::{read, write_out};

hooks! { HOOKS:
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) = create;
    fn cuMemRelease(handle: u64) = |real, handle| program::release(Host, real, handle).or_call(real);
    fn cuMemImportFromShareableHandle(handle: *mut u64, file: *mut c_void, kind: c_int) =
        |real, out: *mut u64, _file, _kind| program::import(Host, &|| written(real, out)).write_or_call(real, |handle| write_handle(out, handle));
    fn cuMemExportToShareableHandle(file: *mut c_void, handle: u64, kind: c_int, flags: u64) = export;
    fn cuMemGetAllocationPropertiesFromHandle(out: *mut Properties, handle: u64) =
        |real, out: *mut Properties, handle| program::properties(Host, handle).write_or_call(real, |properties| write_out(out, properties));
    fn cuMemMap(address: Address, bytes: usize, offset: usize, handle: u64, flags: u64) =
        |real, address, bytes: usize, _offset, handle, _flags| program::map(Host, real, address, bytes as u64, handle).or_call(real);
    fn cuMemUnmap(address: Address, bytes: usize) = |real, address, bytes: usize| program::unmap(Host, real, address, bytes as u64).or_call(real);
    fn cuMemSetAccess(address: Address, bytes: usize, descriptors: *const c_void, count: usize) =
        |real, address, bytes: usize, descriptors, count| program::set_access(Host, real, address, bytes as u64, &access(descriptors, count)).or_call(real);
    fn cuMemAddressFree(address: Address, bytes: usize) = |real, address, _bytes| program::free_addresses(Host, address).or_call(real);
    fn cuMulticastCreate(handle: *mut u64, properties: *const c_void) = |real, _handle, _properties| program::bind(Host, real).or_call(real);
    fn cuMemMapArrayAsync(list: *mut c_void, count: c_uint, stream: usize) = |real, _list, _count, _stream| program::bind(Host, real).or_call(real);
    fn cuMemMapArrayAsync_ptsz(list: *mut c_void, count: c_uint, stream: usize) = |real, _list, _count, _stream| program::bind(Host, real).or_call(real);
}

/// Writes the handle that the program is to know over the driver's.
fn write_handle(out: *mut u64, handle: Option<u64>) {
    if let Some(handle) = handle {
        write_out(out, handle);
    }
}

/// Returns the access descriptors that the program passes.
fn access(descriptors: *const c_void, count: usize) -> Vec<Access> {
    let descriptors: *const Access = descriptors.cast();
    (0..count)
        .map_while(|index| read(descriptors.wrapping_add(index)))
        .collect()
}

fn export(
    real: &dyn Fn() -> Code,
    file: *mut c_void,
    handle: u64,
    kind: c_int,
    _flags: u64,
) -> Code {
    if kind != POSIX_FD.cast_signed() {
        return real();
    }
    let exported = program::export(Host, real, handle, |owned| {
        write_out(file.cast::<c_int>(), owned.into_raw_fd());
    });
    exported.or_call(real)
}

fn create(
    real: &dyn Fn() -> Code,
    out: *mut u64,
    bytes: usize,
    properties: *const Properties,
    _flags: u64,
) -> Code {
    let Some(properties) = read(properties).filter(|_| !out.is_null()) else {
        return real();
    };
    let call = || written(real, out)?.ok_or(INVALID_VALUE);
    let created = program::create(Host, bytes as u64, &properties, &call);
    created.write_or_call(real, |handle| write_out(out, handle))
}
