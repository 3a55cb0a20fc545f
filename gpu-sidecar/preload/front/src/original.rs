//! `dlsym` as it is without us.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::entrance::real_dlsym;
use crate::machine::call_from_here;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's.
pub(crate) static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The next one after ours in the loader's order: another preloaded library's, else the C library's.
pub(crate) static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The versions that the C library's symbol has, on one machine or another, since one release or another. The one that every
/// release has is first: a version that is not there makes the C library allocate a message.
const VERSIONS: [&CStr; 3] = if cfg!(target_arch = "x86_64") {
    [c"GLIBC_2.2.5", c"GLIBC_2.34", c"GLIBC_2.17"]
} else {
    [c"GLIBC_2.17", c"GLIBC_2.34", c"GLIBC_2.2.5"]
};

/// Finds both, and gives the next; null if there is none. Called by assembler code alone, which has seen that one is missing.
///
/// By `dlvsym`, which no library of this kind exports, and which passes by libraries whose symbols have no version; a symbol
/// looked for without version would be ours, or that of another library that waits for us.
pub(crate) extern "C-unwind" fn find() -> *mut c_void {
    let name = c"dlsym".as_ptr();
    let mut real = std::ptr::null_mut();
    for version in VERSIONS {
        // SAFETY: texts that end.
        real = unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr()) };
        if !real.is_null() {
            break;
        }
    }
    if real.is_null() {
        return real;
    }
    // Every thread finds the same.
    REAL.store(real, Ordering::Release);
    let mut next = real_at(libc::RTLD_NEXT, name);
    if next.is_null() {
        next = real;
    }
    NEXT.store(next, Ordering::Release);
    next
}

/// What the C library finds. `RTLD_NEXT` means after this library.
#[unsafe(naked)]
pub(crate) extern "C-unwind" fn real_at(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    call_from_here!(real_dlsym)
}

/// What the next `dlsym` finds, for a handle that is no pseudo-handle.
pub(crate) fn next_at(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let next = NEXT.load(Ordering::Acquire);
    if next.is_null() {
        return real_at(handle, name);
    }
    // SAFETY: the address of a `dlsym`, which was found as the next.
    let next = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(next) };
    // SAFETY: the handle and the name are as our own caller has passed them.
    unsafe { next(handle, name) }
}

/// Whether another library's `dlsym` is behind ours.
pub(crate) fn is_followed() -> bool {
    let next = NEXT.load(Ordering::Acquire);
    // Null while another thread is finding them.
    !next.is_null() && next != REAL.load(Ordering::Acquire)
}
