//! Access to the front, which has loaded this library.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering;

use preload_table::abi::Front;

use crate::context::context;

/// Stores the front's interface, which is valid as long as the process.
pub(crate) fn set_front(front: *const Front) {
    context().front.store(front.cast_mut(), Ordering::Release);
}

fn front() -> Option<&'static Front> {
    // SAFETY: null, or the pointer that the front has passed to `weir_preload_core`, whose caller guarantees that it stays valid.
    unsafe { context().front.load(Ordering::Acquire).as_ref() }
}

/// Returns the folder of the preload library; `None` if it is unknown.
pub(crate) fn folder() -> Option<&'static CStr> {
    let folder = front()?.folder;
    // SAFETY: not null, and then a static NUL-terminated string: `Front` requires it.
    (!folder.is_null()).then(|| unsafe { CStr::from_ptr(folder) })
}

/// Returns the address of the driver's own function with this symbol, never a wrapper's; null if the driver lacks it.
pub(crate) fn real(symbol: &CStr) -> *mut c_void {
    let Some(front) = front() else {
        return std::ptr::null_mut();
    };
    let mut driver = context().library.load(Ordering::Acquire);
    if driver.is_null() {
        // SAFETY: a NUL-terminated string; `RTLD_NOLOAD` opens loaded libraries only.
        driver = unsafe {
            libc::dlopen(
                c"libcuda.so.1".as_ptr(),
                libc::RTLD_LAZY | libc::RTLD_NOLOAD,
            )
        };
        if driver.is_null() {
            // A program linked to the driver may have it loaded under this name.
            // SAFETY: as for the first name.
            driver = unsafe {
                libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD)
            };
        }
        context().library.store(driver, Ordering::Release);
    }
    if driver.is_null() {
        return std::ptr::null_mut();
    }
    let symbol: *const c_char = symbol.as_ptr();
    // The C library's `dlsym`: the exported one would return a wrapper.
    (front.real_dlsym)(driver, symbol)
}

/// Returns the address at which the front exports this symbol; null if it does not.
pub(crate) fn exported(symbol: &CStr) -> *mut c_void {
    front().map_or(std::ptr::null_mut(), |front| (front.own)(symbol.as_ptr()))
}
