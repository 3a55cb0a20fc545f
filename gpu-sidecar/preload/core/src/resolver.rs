//! `cuGetProcAddress`: the driver answers first, and what it answers is wrapped by the name that it really has.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use crate::driver::{Code, SUCCESS};
use crate::hook::hooks;

/// The flag by which per-thread default streams are asked for.
const PER_THREAD: u64 = 2;

fn found(
    real: &dyn Fn() -> Code,
    name: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    is_per_thread: bool,
) -> Code {
    let code = real();
    if code != SUCCESS || name.is_null() || out.is_null() {
        return code;
    }
    // SAFETY: the driver has written there.
    let address = unsafe { *out };
    if address.is_null() {
        return code;
    }
    // SAFETY: the driver has read the name, so it is a text that ends.
    let name = unsafe { CStr::from_ptr(name) };
    let own = symbol(address).filter(|own| own.to_bytes().starts_with(name.to_bytes()));
    let declared =
        || preload_table::resolve(name.to_bytes(), version.unsigned_abs(), is_per_thread);
    let wrapped = match own {
        Some(own) => crate::wrap(own, address),
        // Functions that share an address have one name between them.
        None => match declared() {
            Ok(entry) => crate::wrap(entry.symbol_c(), address),
            Err(_) => {
                crate::unknown(name);
                address
            }
        },
    };
    // SAFETY: as above.
    unsafe { *out = wrapped };
    code
}

/// The name of the function at an address, as its file has it.
fn symbol(address: *mut c_void) -> Option<&'static CStr> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a place to write to; any address may be asked for.
    let is_known = unsafe { libc::dladdr(address, found.as_mut_ptr()) } != 0;
    // SAFETY: zeroes, or what the loader has written.
    let found = unsafe { found.assume_init() };
    if !is_known || found.dli_sname.is_null() || found.dli_saddr != address {
        return None;
    }
    // SAFETY: a name in a file that stays loaded.
    Some(unsafe { CStr::from_ptr(found.dli_sname) })
}

hooks! { HOOKS:
    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) =
        |real, name, out, version, flags: u64| found(real, name, out, version, flags & PER_THREAD != 0);
    fn cuGetProcAddress_v2(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) =
        |real, name, out, version, flags: u64, _status| found(real, name, out, version, flags & PER_THREAD != 0);
    fn cuGetProcAddress_v2_ptsz(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) =
        |real, name, out, version, flags: u64, _status| found(real, name, out, version, flags & 1 == 0);
}
