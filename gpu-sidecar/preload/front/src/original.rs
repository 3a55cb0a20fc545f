//! The `dlsym` functions behind the exported one.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::asm::call_from_here;
use crate::entrance::real_dlsym;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's `dlsym`; null until [`find`] has run.
pub(crate) static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The next `dlsym` in the loader's order: another preloaded library's, else the C library's; null until [`find`] has run.
pub(crate) static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Symbol versions of glibc's `dlsym`, by architecture and release. The one that every release has comes first, because a failed
/// look-up makes glibc allocate a message.
const VERSIONS: [&CStr; 3] = if cfg!(target_arch = "x86_64") {
    [c"GLIBC_2.2.5", c"GLIBC_2.34", c"GLIBC_2.17"]
} else {
    [c"GLIBC_2.17", c"GLIBC_2.34", c"GLIBC_2.2.5"]
};

/// Finds both functions, stores them, and returns the next one; null if there is none. Called by assembler code only, when a slot
/// is null.
///
/// Uses `dlvsym`, which preloaded libraries do not export and which skips libraries without symbol versions. An unversioned
/// look-up would find the front's own `dlsym`, or that of another preloaded library.
pub(crate) extern "C-unwind" fn find() -> *mut c_void {
    let name = c"dlsym".as_ptr();
    let mut real = std::ptr::null_mut();
    for version in VERSIONS {
        // SAFETY: both strings are NUL-terminated.
        real = unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr()) };
        if !real.is_null() {
            break;
        }
    }
    if real.is_null() {
        return real;
    }
    // Every thread stores the same addresses.
    REAL.store(real, Ordering::Release);
    let mut next = real_at(libc::RTLD_NEXT, name);
    if next.is_null() {
        next = real;
    }
    NEXT.store(next, Ordering::Release);
    next
}

/// Returns the address that the C library's `dlsym` finds. `RTLD_NEXT` means after this library.
#[unsafe(naked)]
pub(crate) extern "C-unwind" fn real_at(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    call_from_here!(real_dlsym)
}

/// Returns the address that the next `dlsym` finds. `handle` must not be a pseudo-handle.
pub(crate) fn next_at(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let next = NEXT.load(Ordering::Acquire);
    if next.is_null() {
        return real_at(handle, name);
    }
    // SAFETY: `find` stores only addresses of `dlsym` functions.
    let next = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(next) };
    // SAFETY: the handle and the name are the caller's own arguments to `dlsym`.
    unsafe { next(handle, name) }
}

/// Returns whether another library's `dlsym` follows the front's.
pub(crate) fn is_followed() -> bool {
    let next = NEXT.load(Ordering::Acquire);
    // `NEXT` is null while another thread runs `find`.
    !next.is_null() && next != REAL.load(Ordering::Acquire)
}
