//! The interface between `libweir_preload.so`, the front, and `libweir_preload_core.so`, the core.
//!
//! The two lie in one folder and come from one build. [`ABI_VERSION`] is there for the day on which they do not: the front then
//! uses the driver as if there were no core.
//!
//! The front holds no lock of its own while it calls the core, and waits for nobody. Two threads that meet CUDA for the first
//! time at once therefore both load the core and both call its entry: the loader's own lock puts the first in order, and the
//! second is the core's to bear. **The entry may be called more than once, by several threads at a time, and gives the same
//! answer each time.** It keeps the pointer it is given and returns the address of a static; whatever takes longer waits for
//! the first call that needs it.

use std::ffi::{c_char, c_void};

/// Raised with every change of what is below.
pub const ABI_VERSION: u32 = 1;

/// The symbol of the core's one function, an [`Entry`].
pub const CORE_ENTRY: &str = "weir_preload_core";

/// What the core's entry is. Null as an answer: the core is of no use here, and everything passes to the driver unchanged.
pub type Entry = extern "C" fn(*const Front) -> *const Core;

/// What the front lends to the core. It lies in a static and does not change.
#[derive(Debug)]
#[repr(C)]
pub struct Front {
    /// [`ABI_VERSION`] of the front.
    pub abi_version: u32,
    /// The C library's `dlsym`: what it finds is never a wrapper of the core. The caller's own place counts for `RTLD_NEXT`.
    pub real_dlsym: extern "C" fn(handle: *mut c_void, symbol: *const c_char) -> *mut c_void,
    /// The folder of `libweir_preload.so`, without a slash at its end, as the loader has its name: absolute, where the
    /// environment named it so.
    pub folder: *const c_char,
    /// The address of the function that the front exports by this symbol; null: it exports none.
    pub own: extern "C" fn(symbol: *const c_char) -> *mut c_void,
}

/// What the core does for the front. It lies in a static and does not change.
///
/// All of it may be called by any number of threads, before `main`, under the loader's lock and while another thread holds that
/// lock. So nothing here may wait for a thread that could need it.
#[derive(Debug)]
#[repr(C)]
pub struct Core {
    /// [`ABI_VERSION`] of the core.
    pub abi_version: u32,
    /// A function of the driver was looked up: its symbol in the driver's file and its address. The answer is what the program
    /// gets: a wrapper, or the address itself.
    pub wrap: extern "C" fn(symbol: *const c_char, real: *mut c_void) -> *mut c_void,
    /// The same for a function of NVML.
    pub wrap_nvml: extern "C" fn(symbol: *const c_char, real: *mut c_void) -> *mut c_void,
    /// A function of the driver was looked up that the table does not have; the program gets the driver's own.
    pub unknown: extern "C" fn(symbol: *const c_char),
}
