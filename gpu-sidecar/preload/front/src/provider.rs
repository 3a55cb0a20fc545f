//! Whose a function is.
//!
//! A name says nothing: there are other libraries with a `cuInit`, and a function of the driver's name may be in the program
//! itself. What counts is the file that the address is in.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The file that an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Driver,
    Nvml,
    /// This library.
    Own,
    Other,
}

const DRIVER: &[u8] = b"libcuda.so";
const NVML: &[u8] = b"libnvidia-ml.so";

/// What the loader knows of an address. `dladdr` allocates nothing.
pub(crate) fn info(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::uninit();
    // SAFETY: any address may be asked for.
    let is_found = unsafe { libc::dladdr(address, info.as_mut_ptr()) } != 0;
    // SAFETY: it is written when something was found.
    is_found.then(|| unsafe { info.assume_init() })
}

/// An address in this library.
pub(crate) fn own_address() -> *const c_void {
    (own_address as fn() -> *const c_void as *const ()).cast()
}

/// Whose it is.
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
    // SAFETY: the loader's name of a file that is loaded.
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

/// Files that stay, by the address at which each begins: there are no more than the driver and NVML.
static KEPT: [AtomicPtr<c_void>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

/// Sees to it that the file of a function that is in our hands is not unloaded, as a program might that opened it.
fn keep(info: &libc::Dl_info) {
    for kept in &KEPT {
        let base = kept.load(Ordering::Relaxed);
        if base == info.dli_fbase {
            return;
        }
        if base.is_null() {
            // SAFETY: the loader's name of a file that is loaded; nothing new is.
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

/// The handle of a file that is loaded under this name; null: none is.
pub(crate) fn loaded(name: *const c_char) -> *mut c_void {
    // SAFETY: a text that ends; nothing new is loaded.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        forget_failure();
    }
    handle
}

/// A program that asks `dlerror` is not told of what we have tried.
pub(crate) fn forget_failure() {
    // SAFETY: it takes nothing.
    unsafe { libc::dlerror() };
}
