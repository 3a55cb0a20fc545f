//! The exported `dlsym`, and the C library's `dlsym` for the core.

use std::ffi::{c_char, c_void};

use crate::asm::{jump_by_name, jump_through};
use crate::lookup::{is_intercepted, lookup};
use crate::original::{NEXT, REAL, find};

/// Replaces the C library's `dlsym` in programs. Test binaries do not export it and keep the C library's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    jump_by_name!(NEXT, find, is_intercepted, lookup)
}

/// Calls the C library's `dlsym` with the return address of the caller.
#[unsafe(naked)]
pub(crate) extern "C" fn real_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    jump_through!(REAL, find)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_symbols_are_those_that_the_c_library_finds() {
        let malloc = libc::malloc as *mut c_void;
        for function in [dlsym, real_dlsym] {
            assert_eq!(function(libc::RTLD_DEFAULT, c"malloc".as_ptr()), malloc);
            assert!(function(libc::RTLD_DEFAULT, c"cuInit".as_ptr()).is_null());
            assert!(function(libc::RTLD_DEFAULT, c"cu".as_ptr()).is_null());
            assert!(function(libc::RTLD_DEFAULT, c"n".as_ptr()).is_null());
            assert!(function(libc::RTLD_DEFAULT, c"".as_ptr()).is_null());
            assert!(!function(libc::RTLD_NEXT, c"dlsym".as_ptr()).is_null());
        }
    }
}
