//! `cuGetProcAddress`: the driver resolves the name, and the result is wrapped by the symbol of the function it returned.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use crate::driver::{Code, SUCCESS};
use crate::hook::hooks;
use crate::pointers::{read, write_out};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;

fn wrap_result(
    real: &dyn Fn() -> Code,
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    is_per_thread: bool,
) -> Code {
    let code = real();
    if code != SUCCESS || name.is_null() {
        return code;
    }
    let Some(address) = read(out).filter(|address| !address.is_null()) else {
        return code;
    };
    // SAFETY: not null, and the driver has accepted the name, so the program has passed a NUL-terminated string, which lives as long as the
    // call.
    let name = unsafe { CStr::from_ptr(name) };
    let own = symbol(address).filter(|own| own.to_bytes().starts_with(name.to_bytes()));
    let declared =
        || preload_table::resolve(name.to_bytes(), version.unsigned_abs(), is_per_thread);
    let wrapped = match own {
        Some(own) => crate::hook::wrap(own, address),
        // The symbol at the address belongs to another function which shares the address.
        None => match declared() {
            Ok(entry) => crate::hook::wrap(entry.symbol_c(), address),
            Err(_) => {
                crate::hook::unknown(name);
                address
            }
        },
    };
    write_out(out, wrapped);
    code
}

/// Returns the symbol of the function at an address, from its ELF file; `None` if no symbol has exactly this address.
fn symbol(address: *mut c_void) -> Option<&'static CStr> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `found` is valid for writes; `dladdr` accepts any address.
    let is_known = unsafe { libc::dladdr(address, found.as_mut_ptr()) } != 0;
    // SAFETY: all-zero is a valid value, and the loader writes valid ones.
    let found = unsafe { found.assume_init() };
    if !is_known || found.dli_sname.is_null() || found.dli_saddr != address {
        return None;
    }
    // SAFETY: not null, and the loader returns NUL-terminated names from files; the driver stays loaded once a function of it is known.
    Some(unsafe { CStr::from_ptr(found.dli_sname) })
}

hooks! { HOOKS:
    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) =
        |real, name, out, version, flags: u64| wrap_result(real, name, out, version, flags & PER_THREAD != 0);
    fn cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) =
        |real, name, out, version, flags: u64, _status| wrap_result(real, name, out, version, flags & PER_THREAD != 0);
    fn cuGetProcAddress_v2_ptsz(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) =
        |real, name, out, version, flags: u64, _status| wrap_result(real, name, out, version, flags & 1 == 0);
}
