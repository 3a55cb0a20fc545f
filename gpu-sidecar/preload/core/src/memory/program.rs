//! Wrappers of memory that the program creates and maps itself.

use std::ffi::{c_int, c_void};

use preload_ops::memory::program;
use preload_state::memory::Properties;

use super::written;
use crate::driver::{Address, Code, INVALID_VALUE};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::read;

hooks! { HOOKS:
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) = create;
    fn cuMemRelease(handle: u64) = |real, handle| program::release(Host, real, handle).or_call(real);
    fn cuMemImportFromShareableHandle(handle: *mut u64, file: *mut c_void, kind: c_int) =
        |real, out: *mut u64, _file, _kind| program::import(Host, &|| written(real, out)).write_or_call(real, |_handle| {});
    fn cuMemMap(address: Address, bytes: usize, offset: usize, handle: u64, flags: u64) =
        |real, address, bytes: usize, _offset, handle, _flags| program::map(Host, real, address, bytes as u64, handle).or_call(real);
    fn cuMemUnmap(address: Address, bytes: usize) = |real, address, bytes: usize| program::unmap(Host, real, address, bytes as u64).or_call(real);
    fn cuMemSetAccess(address: Address, bytes: usize, descriptors: *const c_void, count: usize) =
        |real, address, _bytes, _descriptors, _count| program::touch(Host, address).or_call(real);
    fn cuMemAddressFree(address: Address, bytes: usize) = |real, address, _bytes| program::touch(Host, address).or_call(real);
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
    let created = program::create(Host, bytes as u64, properties.location, &call);
    // The driver has written the handle.
    created.write_or_call(real, |_handle| {})
}
