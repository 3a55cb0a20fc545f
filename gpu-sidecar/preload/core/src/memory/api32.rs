//! Wrappers of the historical functions with addresses and sizes of 32 bits. Their memory stays the driver's, since reserved addresses
//! do not fit. Sizes that do not fit are reported as the largest that does.

use std::ffi::{c_int, c_uint};

use preload_ops::memory::{info, native};
use preload_ops::{Driver as _, System as _};
use preload_state::memory::Kind;

use super::written;
use crate::driver::{Address, Code, INVALID_VALUE, SUCCESS};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::write_out;

hooks! { HOOKS:
    fn cuMemAlloc(address: *mut u32, bytes: c_uint) = |real, out, bytes: c_uint| allocate(real, out, bytes.into());
    fn cuMemAllocPitch(address: *mut u32, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) = allocate_pitch;
    fn cuMemFree(address: u32) = |real, address: u32| native::free(Host, real, address.into()).or_call(real);
    fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) = get_info;
    fn cuDeviceTotalMem(bytes: *mut c_uint, device: c_int) = total;
}

/// Alignment of rows in bytes.
const PITCH: u64 = 512;

/// Converts a size to 32 bits, saturating.
fn cut(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn allocate(real: &dyn Fn() -> Code, out: *mut u32, bytes: u64) -> Code {
    if out.is_null() {
        return real();
    }
    let call = || written(real, out)?.map(Address::from).ok_or(INVALID_VALUE);
    // The driver has written the address.
    native::alloc(Host, Kind::Native, bytes, &call).write_or_call(real, |_address| {})
}

fn allocate_pitch(
    real: &dyn Fn() -> Code,
    out: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    _element: c_uint,
) -> Code {
    if pitch.is_null() {
        return real();
    }
    let row = u64::from(width).next_multiple_of(PITCH);
    allocate(real, out, row.saturating_mul(height.into()))
}

fn get_info(real: &dyn Fn() -> Code, free: *mut c_uint, total: *mut c_uint) -> Code {
    info::info_32(Host, real).write_or_call(real, |view| {
        if let Some(view) = view {
            write_out(free, cut(view.free));
            write_out(total, cut(view.total));
        }
    })
}

/// Queries the driver in 64 bits, because the historical result is truncated.
fn total(real: &dyn Fn() -> Code, bytes: *mut c_uint, device: c_int) -> Code {
    let code = real();
    if code == SUCCESS
        && Host.is_active()
        && Host.process().memory_limit() > 0
        && let Ok(there) = Host.total_memory(device)
    {
        write_out(bytes, cut(info::total_of(Host, there)));
    }
    code
}
