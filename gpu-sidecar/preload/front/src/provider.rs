//! Classification of a function by the file that contains it.
//!
//! A name is not sufficient: other libraries define a `cuInit`, and the program itself may define a function with a driver
//! function's name.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Kind of file that contains an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Driver,
    Nvml,
    /// This library, `libweir_preload.so`.
    Own,
    Other,
}

const DRIVER: &[u8] = b"libcuda.so";
const NVML: &[u8] = b"libnvidia-ml.so";

/// Returns the loader's information about an address; `None` if no loaded file contains it. Does not allocate.
pub(crate) fn info(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::uninit();
    // SAFETY: `dladdr` accepts any address.
    let is_found = unsafe { libc::dladdr(address, info.as_mut_ptr()) } != 0;
    // SAFETY: `dladdr` has written it, since it did not return 0.
    is_found.then(|| unsafe { info.assume_init() })
}

/// Returns an address in this library.
pub(crate) fn own_address() -> *const c_void {
    (own_address as fn() -> *const c_void as *const ()).cast()
}

/// Returns the kind of file that contains an address. Keeps the driver and NVML loaded from then on.
pub(crate) fn provider(address: *const c_void) -> Provider {
    let Some(info) = info(address) else {
        return Provider::Other;
    };
    let own = self::info(own_address());
    if own.is_some_and(|own| own.dli_fbase == info.dli_fbase) {
        return Provider::Own;
    }
    if info.dli_fname.is_null() {
        return Provider::Other;
    }
    // SAFETY: the loader's name of a loaded file, NUL-terminated.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if file.starts_with(DRIVER) {
        keep(&info);
        Provider::Driver
    } else if file.starts_with(NVML) {
        keep(&info);
        Provider::Nvml
    } else {
        Provider::Other
    }
}

/// Base addresses of the files that are kept loaded: at most the driver and NVML.
static KEPT: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

/// Keeps the file of a function that the front returns or calls loaded, even if the program closes its handle.
fn keep(info: &libc::Dl_info) {
    for kept in &KEPT {
        let base = kept.load(Ordering::Relaxed);
        if base == info.dli_fbase {
            return;
        }
        if base.is_null() {
            // SAFETY: the loader's name of a loaded file; `RTLD_NOLOAD` loads nothing new.
            let handle =
                unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if handle.is_null() {
                forget_failure();
            }
            kept.store(info.dli_fbase, Ordering::Relaxed);
            return;
        }
    }
}

/// Returns a handle of the file that is loaded under this name; null if none is. The caller closes the handle.
pub(crate) fn loaded(name: *const c_char) -> *mut c_void {
    // SAFETY: a NUL-terminated string; `RTLD_NOLOAD` loads nothing new.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        forget_failure();
    }
    handle
}

/// Clears the error of the front's own look-up, so that the program's `dlerror` does not return it.
pub(crate) fn forget_failure() {
    // SAFETY: the call takes no arguments.
    unsafe { libc::dlerror() };
}
