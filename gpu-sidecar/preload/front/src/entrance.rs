//! Our `dlsym`, and the C library's for the core.

use std::ffi::{c_char, c_void};

use crate::look::{look, matters};
use crate::machine::{jump_by_name, jump_through};
use crate::original::{NEXT, REAL, find};

/// Called by programs in place of the C library's; not exported from a binary of tests, which has the C library's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    jump_by_name!(NEXT, find, matters, look)
}

/// The C library's, with the caller's place as it is.
#[unsafe(naked)]
pub(crate) extern "C" fn real_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    jump_through!(REAL, find)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_none_of_ours_is_what_the_c_library_finds() {
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
