//! The historical functions with addresses and sizes of 32 bits. Their memory stays the driver's, since reserved addresses do not
//! fit. Sizes that do not fit are reported as the largest that does.

use crate::host::Host;
use preload_ops::System as _;
use std::ffi::{c_int, c_uint};

use super::{info, native, write_out};
use crate::driver::{Code, SUCCESS};
use crate::hook::hooks;

hooks! { HOOKS:
    fn cuMemAlloc(address: *mut u32, bytes: c_uint) = alloc;
    fn cuMemAllocPitch(address: *mut u32, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) = alloc_pitch;
    fn cuMemFree(address: u32) = free;
    fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) = get_info;
    fn cuDeviceTotalMem(bytes: *mut c_uint, device: c_int) = total;
}

/// Alignment of rows in bytes.
const PITCH: u64 = 512;

/// Converts a size to 32 bits, saturating.
fn cut(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn alloc(call: &dyn Fn() -> Code, out: *mut u32, bytes: c_uint) -> Code {
    if !Host.is_active() || out.is_null() || bytes == 0 {
        return call();
    }
    native::alloc32(call, out, bytes.into())
}

fn alloc_pitch(
    call: &dyn Fn() -> Code,
    out: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    _element: c_uint,
) -> Code {
    if !Host.is_active() || out.is_null() || pitch.is_null() {
        return call();
    }
    let row = u64::from(width).next_multiple_of(PITCH);
    native::alloc32(call, out, row.saturating_mul(height.into()))
}

fn free(call: &dyn Fn() -> Code, address: u32) -> Code {
    if !Host.is_active() || address == 0 {
        return call();
    }
    native::free(call, address.into())
}

fn get_info(call: &dyn Fn() -> Code, free: *mut c_uint, total: *mut c_uint) -> Code {
    let code = call();
    if code == SUCCESS
        && Host.is_active()
        && let Ok((there, all)) = info::physical()
    {
        let view = info::view(there, all);
        write_out(free, cut(view.free));
        write_out(total, cut(view.total));
    }
    code
}

/// Queries the driver in 64 bits, because the historical result is truncated.
fn total(call: &dyn Fn() -> Code, bytes: *mut c_uint, device: c_int) -> Code {
    let code = call();
    let mut there = 0;
    if code == SUCCESS && Host.is_active() && Host.process().memory_limit() > 0 {
        // SAFETY: the number is valid for writes.
        let queried = unsafe { crate::driver::cuDeviceTotalMem_v2(&raw mut there, device) };
        if queried == SUCCESS {
            write_out(bytes, cut(info::total_of(there as u64)));
        }
    }
    code
}
