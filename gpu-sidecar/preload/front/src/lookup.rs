//! Look-ups of the driver's and NVML's functions by name.

use std::ffi::{CStr, c_char, c_void};

use preload_table::{NVML, entry, nvml};

use crate::core::{notify, query};
use crate::original::{is_followed, next_at, real_at};
use crate::provider::{Provider, forget_failure, info, loaded, provider};
use crate::stubs::{address, slot};

/// The one driver function that must not be wrapped: the CUDA runtime checks the addresses of the tables it returns.
const NEVER_WRAPPED: &[u8] = b"cuGetExportTable";

fn bytes(name: &*const c_char) -> &[u8] {
    // SAFETY: `dlsym` is passed a NUL-terminated string; the assembler code has checked that it is not null.
    unsafe { CStr::from_ptr(*name) }.to_bytes()
}

/// Returns whether a name has the form of a driver function: `cu` and a capital letter, which names of the CUDA libraries lack.
fn is_drivers(name: &[u8]) -> bool {
    matches!(name, [b'c', b'u', third, ..] if third.is_ascii_uppercase())
}

/// Returns 1 if a look-up is to be handled by [`lookup`], else 0. Other look-ups jump on with their return address: those with
/// `RTLD_NEXT`, and with `RTLD_DEFAULT` unless the front exports the name.
pub(crate) extern "C-unwind" fn is_intercepted(handle: *mut c_void, name: *const c_char) -> usize {
    let name = bytes(&name);
    let is_intercepted = if handle == libc::RTLD_NEXT {
        false
    } else if handle == libc::RTLD_DEFAULT {
        slot(name).is_some()
    } else {
        (is_drivers(name) && name != NEVER_WRAPPED) || nvml(name).is_some()
    };
    usize::from(is_intercepted)
}

/// Looks up a symbol for which [`is_intercepted`] returned 1, as `dlsym` does when called from the address `caller`.
pub(crate) extern "C-unwind" fn lookup(
    handle: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
) -> *mut c_void {
    let found = real_at(handle, name);
    if found.is_null() {
        return other(found, handle, name);
    }
    let text = bytes(&name);
    match provider(found) {
        Provider::Driver => {
            let Some(entry) = entry(text) else {
                notify(|core| (core.unknown)(name));
                return found;
            };
            let symbol = entry.symbol_c().as_ptr();
            query(|core| (core.wrap)(symbol, found), found).unwrap_or(found)
        }
        Provider::Nvml => {
            let Some(name) = nvml(text).and_then(|at| NVML.get(at)) else {
                return found;
            };
            query(|core| (core.wrap_nvml)(name.as_ptr(), found), found).unwrap_or(found)
        }
        Provider::Own => present(found, name, caller),
        Provider::Other => other(found, handle, name),
    }
}

/// Returns the result for a symbol which is not the driver's: the next `dlsym`'s, where another preloaded library has one.
fn other(found: *mut c_void, handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let is_pseudo = handle == libc::RTLD_DEFAULT;
    if !is_pseudo && is_followed() {
        return next_at(handle, name);
    }
    found
}

/// Returns the result where the front's own function was found in place of a later definition. Programs use such a look-up to
/// test for a driver and for the functions it has, so the result is null where it would be null without the front.
///
/// A loaded driver counts as found even if the caller's scope lacks it, because the scopes of a caller cannot be determined
/// completely from here. The front's function works in that case too, although the loader alone would find none.
fn present(found: *mut c_void, name: *const c_char, caller: *const c_void) -> *mut c_void {
    let mut behind = real_at(libc::RTLD_NEXT, name);
    if behind.is_null() {
        forget_failure();
        let local = in_scope_of(caller, name);
        if !local.is_null() && provider(local) == Provider::Other {
            return local;
        }
        behind = in_driver(name);
    }
    if behind.is_null() {
        // Repeated so that `dlerror` returns the loader's message.
        return real_at(libc::RTLD_NEXT, name);
    }
    found
}

/// Looks a function up in the scope of the library that contains `caller`, for libraries that were opened with `RTLD_LOCAL`.
/// Returns null if there is none, or if it is the front's own.
pub(crate) fn in_scope_of(caller: *const c_void, name: *const c_char) -> *mut c_void {
    let Some(info) = info(caller) else {
        return std::ptr::null_mut();
    };
    // The main program has the global scope only; the loader has no name for it, or one that it cannot open.
    if info.dli_fname.is_null() {
        return std::ptr::null_mut();
    }
    let handle = loaded(info.dli_fname);
    if handle.is_null() {
        return handle;
    }
    let found = real_at(handle, name);
    // SAFETY: the handle was opened above; the library is in use and stays loaded.
    unsafe { libc::dlclose(handle) };
    if found.is_null() {
        forget_failure();
    } else if provider(found) == Provider::Own {
        return std::ptr::null_mut();
    }
    found
}

/// Looks a function up in a loaded driver or NVML that the front's scope lacks. Returns null if there is none.
pub(crate) fn in_driver(name: *const c_char) -> *mut c_void {
    let names: &[&CStr] = if is_drivers(bytes(&name)) {
        &[c"libcuda.so.1", c"libcuda.so"]
    } else {
        &[c"libnvidia-ml.so.1", c"libnvidia-ml.so"]
    };
    for file in names {
        let handle = loaded(file.as_ptr());
        if handle.is_null() {
            continue;
        }
        let found = real_at(handle, name);
        if found.is_null() {
            forget_failure();
        }
        // SAFETY: the handle was opened above; the file's user holds another one.
        unsafe { libc::dlclose(handle) };
        return found;
    }
    std::ptr::null_mut()
}

/// Returns the address of the exported function with this symbol; null if the front does not export it. Called by the core.
pub(crate) extern "C-unwind" fn own_symbol(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    slot(bytes(&name)).map_or(std::ptr::null_mut(), address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cuda_libraries_are_not_driver_functions() {
        for name in ["cuInit", "cuMemAlloc_v2", "cuNewInSomeVersion"] {
            assert!(is_drivers(name.as_bytes()), "{name}");
        }
        for name in [
            "cublasCreate_v2",
            "cudaMalloc",
            "cufftPlan1d",
            "cudnnCreate",
            "cu",
            "curandCreate",
        ] {
            assert!(!is_drivers(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn look_ups_that_depend_on_the_caller_are_left_to_the_loader() {
        let handle: *mut c_void = std::ptr::without_provenance_mut(8);
        for (handle, name, expected) in [
            (handle, c"cuInit", 1),
            (handle, c"cuSomethingNew", 1),
            (handle, c"cuGetExportTable", 0),
            (handle, c"cublasCreate_v2", 0),
            (handle, c"nvmlDeviceGetMemoryInfo", 1),
            (handle, c"nvmlInit_v2", 0),
            (libc::RTLD_DEFAULT, c"cuInit", 1),
            (libc::RTLD_DEFAULT, c"cuDriverGetVersion", 0),
            (libc::RTLD_NEXT, c"cuInit", 0),
        ] {
            assert_eq!(is_intercepted(handle, name.as_ptr()), expected, "{name:?}");
        }
    }
}
