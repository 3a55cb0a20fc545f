//! The front, which has loaded this library: what it lends.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use preload_table::abi::Front;

static FRONT: AtomicPtr<Front> = AtomicPtr::new(std::ptr::null_mut());
/// The handle of `libcuda.so.1`, which the program has opened.
static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps what the front lends. It lives as long as the process.
pub(crate) fn keep(front: *const Front) {
    FRONT.store(front.cast_mut(), Ordering::Release);
}

fn front() -> Option<&'static Front> {
    // SAFETY: the front passes a static of its own, once, before anything else is called.
    unsafe { FRONT.load(Ordering::Acquire).as_ref() }
}

/// The folder in which the library lies.
pub(crate) fn folder() -> Option<&'static CStr> {
    let folder = front()?.folder;
    // SAFETY: the front passes a text that ends and stays, or null.
    (!folder.is_null()).then(|| unsafe { CStr::from_ptr(folder) })
}

/// A function of the driver itself, past all wrappers; null: it has none of that name.
pub(crate) fn real(symbol: &CStr) -> *mut c_void {
    let Some(front) = front() else {
        return std::ptr::null_mut();
    };
    let mut driver = DRIVER.load(Ordering::Acquire);
    if driver.is_null() {
        // SAFETY: a text that ends, and flags of the C library; only what is loaded already is opened.
        driver = unsafe {
            libc::dlopen(
                c"libcuda.so.1".as_ptr(),
                libc::RTLD_LAZY | libc::RTLD_NOLOAD,
            )
        };
        if driver.is_null() {
            // A program that links it dynamically has it loaded under another name at most.
            // SAFETY: as above.
            driver = unsafe {
                libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD)
            };
        }
        DRIVER.store(driver, Ordering::Release);
    }
    if driver.is_null() {
        return std::ptr::null_mut();
    }
    let symbol: *const c_char = symbol.as_ptr();
    // The front's own function: ours would be the front's wrapper again.
    (front.real_dlsym)(driver, symbol)
}

/// The address at which the front exports this symbol; null: it does not.
pub(crate) fn own(symbol: &CStr) -> *mut c_void {
    front().map_or(std::ptr::null_mut(), |front| (front.own)(symbol.as_ptr()))
}
