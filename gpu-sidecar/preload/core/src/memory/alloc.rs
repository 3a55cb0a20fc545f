//! Wrappers of allocation, free and sizes.

use std::ffi::{c_int, c_uint};

use preload_ops::System as _;
use preload_ops::memory::{alloc, free, info};
use preload_state::memory::size;

use super::written;
use crate::driver::{Address, Code, INVALID_VALUE, SUCCESS};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::{read, write_out};

hooks! { HOOKS:
    fn cuMemAlloc_v2(address: *mut Address, bytes: usize) = allocate;
    fn cuMemAllocPitch_v2(address: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint) = allocate_pitch;
    fn cuMemFree_v2(address: Address) = |real, address| free::free(Host, real, address).or_call(real);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = get_info;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) = total;
}

/// Returns a call of the driver with the address that it writes to `out`, which is not null.
pub(super) fn native(
    real: &dyn Fn() -> Code,
    out: *mut Address,
) -> impl Fn() -> Result<Address, Code> {
    move || written(real, out)?.ok_or(INVALID_VALUE)
}

fn allocate(real: &dyn Fn() -> Code, out: *mut Address, bytes: usize) -> Code {
    if out.is_null() {
        return real();
    }
    let allocated = alloc::alloc(Host, bytes as u64, &native(real, out));
    allocated.write_or_call(real, |at| write_out(out, at))
}

fn allocate_pitch(
    real: &dyn Fn() -> Code,
    out: *mut Address,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    if out.is_null() || pitch.is_null() {
        return real();
    }
    let allocated = alloc::alloc_pitch(Host, width, height, element, &native(real, out));
    allocated.write_or_call(real, |(at, row)| {
        write_out(out, at);
        if let Some(row) = row {
            write_out(pitch, row);
        }
    })
}

fn get_info(real: &dyn Fn() -> Code, free: *mut usize, total: *mut usize) -> Code {
    info::info(Host, real).write_or_call(real, |view| {
        if let Some(view) = view {
            write_out(free, size(view.free));
            write_out(total, size(view.total));
        }
    })
}

fn total(real: &dyn Fn() -> Code, bytes: *mut usize, _device: c_int) -> Code {
    let code = real();
    if code == SUCCESS
        && Host.is_active()
        && let Some(there) = read(bytes)
    {
        write_out(bytes, size(info::total_of(Host, there as u64)));
    }
    code
}
