//! What becomes of a look-up of one of the driver's functions.

use std::ffi::{CStr, c_char, c_void};

use preload_table::{NVML, entry, nvml};

use crate::core::{ask, tell};
use crate::original::{is_followed, next_at, real_at};
use crate::provider::{Provider, forget_failure, info, loaded, provider};
use crate::stubs::{address, slot};

/// The one function of the driver's that nobody may stand before: a runtime checks where the tables are that it gives.
const NEVER: &[u8] = b"cuGetExportTable";

fn bytes(name: &*const c_char) -> &[u8] {
    // SAFETY: a text that ends, as `dlsym` is given it; assembler code has seen that it is not null.
    unsafe { CStr::from_ptr(*name) }.to_bytes()
}

/// Whether a name begins as the driver's do: with `cu` and a capital, which those of its libraries have not.
fn is_drivers(name: &[u8]) -> bool {
    matches!(name, [b'c', b'u', third, ..] if third.is_ascii_uppercase())
}

/// Whether a look-up is one for [`look`]. The rest jumps on, with its caller's place: `RTLD_NEXT` always, and `RTLD_DEFAULT` unless
/// the name is one that we export ourselves.
pub(crate) extern "C-unwind" fn matters(handle: *mut c_void, name: *const c_char) -> usize {
    let name = bytes(&name);
    let matters = if handle == libc::RTLD_NEXT {
        false
    } else if handle == libc::RTLD_DEFAULT {
        slot(name).is_some()
    } else {
        (is_drivers(name) && name != NEVER) || nvml(name).is_some()
    };
    usize::from(matters)
}

/// Looks up what matters, for somebody there.
pub(crate) extern "C-unwind" fn look(
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
                tell(|core| (core.unknown)(name));
                return found;
            };
            let symbol = entry.symbol_c().as_ptr();
            ask(|core| (core.wrap)(symbol, found), found).unwrap_or(found)
        }
        Provider::Nvml => {
            let Some(name) = nvml(text).and_then(|at| NVML.get(at)) else {
                return found;
            };
            ask(|core| (core.wrap_nvml)(name.as_ptr(), found), found).unwrap_or(found)
        }
        Provider::Own => present(found, name, caller),
        Provider::Other => other(found, handle, name),
    }
}

/// What is not the driver's: another preloaded library may know better.
fn other(found: *mut c_void, handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let is_pseudo = handle == libc::RTLD_DEFAULT;
    if !is_pseudo && is_followed() {
        return next_at(handle, name);
    }
    found
}

/// Our own function was found, in the place of the one behind it. Programs ask in this way whether there is a driver, and which
/// functions it has: where there would be nothing without us, there is nothing.
///
/// A driver that is loaded counts as seen, though the caller's scope may be without it: which scopes a caller has cannot be
/// told from here in full. Our function is found where none would be then, and works.
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
        // The message stays which `dlerror` would give.
        return real_at(libc::RTLD_NEXT, name);
    }
    found
}

/// The function that somebody there sees in a library's own scope, for one that was opened for itself alone; null: there is
/// none, or it is ours.
pub(crate) fn in_scope_of(caller: *const c_void, name: *const c_char) -> *mut c_void {
    let Some(info) = info(caller) else {
        return std::ptr::null_mut();
    };
    // The program itself has no other scope than all have; the loader has no name for it, or a name it does not know.
    if info.dli_fname.is_null() {
        return std::ptr::null_mut();
    }
    let handle = loaded(info.dli_fname);
    if handle.is_null() {
        return handle;
    }
    let found = real_at(handle, name);
    // SAFETY: the handle that was just given; the library is in use.
    unsafe { libc::dlclose(handle) };
    if found.is_null() {
        forget_failure();
    } else if provider(found) == Provider::Own {
        return std::ptr::null_mut();
    }
    found
}

/// The function of a driver, or of NVML, that is loaded where the caller sees it and we do not; null: there is none.
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
        // SAFETY: the handle that was just given; whoever loaded the file has another.
        unsafe { libc::dlclose(handle) };
        return found;
    }
    std::ptr::null_mut()
}

/// The core asks for the address of one of our functions.
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
    fn names_of_the_drivers_libraries_are_not_the_drivers() {
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
    fn what_depends_on_the_caller_is_left_to_the_loader() {
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
            assert_eq!(matters(handle, name.as_ptr()), expected, "{name:?}");
        }
    }
}
