//! The interface between `libweir_preload.so`, the front, and `libweir_preload_core.so`, the core.
//!
//! Both files are in one folder and come from one build. [`ABI_VERSION`] protects against a mismatch: the front then uses the
//! driver as if there were no core.
//!
//! The front holds no lock of its own while it calls the core, and never waits. Two threads that use CUDA for the first time at
//! once therefore both load the core and both call its entry: the loader's lock serialises the loads, and the core must tolerate
//! the second call. **The entry may be called more than once, by several threads at a time, and returns the same address each
//! time.** It stores the pointer it is given and returns the address of a static; slower initialisation is left to the first call
//! that needs it.

use std::ffi::{c_char, c_void};

/// Version of the interface, raised with every change to the types in this module.
pub const ABI_VERSION: u32 = 1;

/// Symbol of the core's only exported function, an [`Entry`].
pub const CORE_ENTRY: &str = "weir_preload_core";

/// Type of the core's entry. It returns null if the core cannot be used in this process; every call then passes to the driver
/// unchanged.
pub type Entry = extern "C" fn(*const Front) -> *const Core;

/// Data and functions that the front provides to the core. Static and immutable.
#[derive(Debug)]
#[repr(C)]
pub struct Front {
    /// [`ABI_VERSION`] of the front.
    pub abi_version: u32,
    /// The C library's `dlsym`, which never returns a wrapper of the core. `RTLD_NEXT` is relative to the caller of this
    /// function.
    pub real_dlsym: extern "C" fn(handle: *mut c_void, symbol: *const c_char) -> *mut c_void,
    /// Folder of `libweir_preload.so`, NUL-terminated and without a trailing slash, in the form the loader has it: absolute if
    /// the environment named it by an absolute path.
    pub folder: *const c_char,
    /// Returns the address of the front's exported function with this symbol; null if it exports none.
    pub own: extern "C" fn(symbol: *const c_char) -> *mut c_void,
}

/// Functions that the core provides to the front. Static and immutable.
///
/// Any number of threads may call them at once, before `main`, under the loader's lock and while another thread holds that lock.
/// They must not wait for a thread which could need it.
#[derive(Debug)]
#[repr(C)]
pub struct Core {
    /// [`ABI_VERSION`] of the core.
    pub abi_version: u32,
    /// Called when a program looks up a driver function, with its symbol in the driver's file and its address. Returns the
    /// address that the program gets: a wrapper's, or the function's own.
    pub wrap: extern "C" fn(symbol: *const c_char, real: *mut c_void) -> *mut c_void,
    /// Called when a program looks up a function of NVML, with its symbol and its address. Returns the address that the program
    /// gets, as [`Core::wrap`].
    pub wrap_nvml: extern "C" fn(symbol: *const c_char, real: *mut c_void) -> *mut c_void,
    /// Called when a program looks up a driver function that the table lacks. The program gets the driver's own function.
    pub unknown: extern "C" fn(symbol: *const c_char),
}
