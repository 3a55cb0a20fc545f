//! The exported functions, for programs that are linked to the driver.
//!
//! A call jumps to the address in the function's slot. The first call binds the slot to the next definition in the loader's
//! order; else to the one in the scope of the calling library, which may have been opened with `RTLD_LOCAL`; else to that of any
//! loaded driver. A driver function is replaced by the core's wrapper. Another library's function of the same name is called
//! unchanged.
//!
//! Without a driver a function returns an error and stays unbound, since a program may load a driver later.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use preload_table::{ENTRIES, NVML, index, nvml};

use crate::asm::{jump, jump_through_slot, jump_to_answer};
use crate::core::query;
use crate::lookup::{in_driver, in_scope_of, own_symbol};
use crate::original::real_at;
use crate::provider::{Provider, forget_failure, provider};

const COUNT: usize = ENTRIES.len() + NVML.len();

/// Target of each function's calls; null while unbound.
static SLOTS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// Functions that some library resolved in its own local scope. Their slots stay unbound, because other callers may have another
/// definition. A library loaded after the driver's first caller gets the driver's function; two such definitions in one process
/// are not distinguished.
static PRIVATE: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

/// `CUDA_ERROR_NOT_INITIALIZED`, which a driver returns before `cuInit`. It is the only error that is both accurate without a
/// driver and documented for every function.
const CUDA_NOT_INITIALIZED: u32 = 3;
/// `NVML_ERROR_LIBRARY_NOT_FOUND`, returned by NVML functions while no NVML is loaded.
const NVML_NOT_FOUND: u32 = 12;

macro_rules! stubs {
    ($($name:ident $index:literal;)*) => {
        $(
            #[allow(non_snake_case, reason = "the interface's name")]
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub extern "C" fn $name() {
                jump_through_slot!(SLOTS, $index, bind_and_jump)
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

#[unsafe(naked)]
extern "C" fn bind_and_jump() {
    jump_to_answer!(bind)
}

extern "C" fn no_driver() -> u32 {
    CUDA_NOT_INITIALIZED
}

extern "C" fn no_nvml() -> u32 {
    NVML_NOT_FOUND
}

/// Returns the slot of a symbol; `None` if the front does not export it.
pub(crate) fn slot(symbol: &[u8]) -> Option<usize> {
    let slot = index(symbol).or_else(|| Some(nvml(symbol)?.wrapping_add(ENTRIES.len())))?;
    EXPORTED.get(slot)?.map(|_| slot)
}

/// Returns the address of the exported function of a slot; null if the slot has none.
pub(crate) fn address(slot: usize) -> *mut c_void {
    let function = EXPORTED.get(slot).copied().flatten();
    function.map_or(std::ptr::null_mut(), |function| function as *mut c_void)
}

/// Returns the address of the front's function with this symbol, for the core; null if there is none.
#[unsafe(naked)]
pub(crate) extern "C" fn own(symbol: *const c_char) -> *mut c_void {
    jump!(own_symbol)
}

/// Resolves the target of a slot for a call from the address `caller`, and stores it unless it holds for that caller only.
extern "C-unwind" fn bind(slot: usize, caller: *const c_void) -> *mut c_void {
    let entry = ENTRIES.get(slot);
    let nvml = NVML.get(slot.wrapping_sub(ENTRIES.len()));
    let symbol = match (entry, nvml) {
        (Some(entry), _) => entry.symbol_c(),
        (None, Some(name)) => name,
        (None, None) => return no_driver as *mut c_void,
    };
    let symbol = symbol.as_ptr();
    let mut real = real_at(libc::RTLD_NEXT, symbol);
    let is_seen_by_all = !real.is_null();
    if !is_seen_by_all {
        forget_failure();
        real = in_scope_of(caller, symbol);
    }
    if real.is_null() {
        real = in_driver(symbol);
    }
    if real.is_null() {
        return if entry.is_some() {
            no_driver as *mut c_void
        } else {
            no_nvml as *mut c_void
        };
    }
    let answer = match provider(real) {
        Provider::Driver => query(|core| (core.wrap)(symbol, real), real),
        Provider::Nvml => query(|core| (core.wrap_nvml)(symbol, real), real),
        Provider::Own | Provider::Other if is_seen_by_all => Some(real),
        Provider::Own | Provider::Other => {
            if let Some(private) = PRIVATE.get(slot) {
                private.store(true, Ordering::Relaxed);
            }
            None
        }
    };
    let Some(answer) = answer else {
        return real;
    };
    let is_private = PRIVATE
        .get(slot)
        .is_some_and(|slot| slot.load(Ordering::Relaxed));
    if let Some(slot) = SLOTS.get(slot).filter(|_| !is_private) {
        slot.store(answer, Ordering::Release);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hooked_function_has_a_stub_and_no_other_has() {
        for (at, entry) in ENTRIES.iter().enumerate() {
            let found = slot(entry.symbol().as_bytes());
            assert_eq!(found, entry.is_hooked().then_some(at), "{}", entry.symbol());
        }
        for name in NVML {
            assert!(slot(name.to_bytes()).is_some(), "{name:?}");
        }
        assert_eq!(own(std::ptr::null()), std::ptr::null_mut());
        assert_eq!(own(c"cuGetExportTable".as_ptr()), std::ptr::null_mut());
        assert_eq!(own(c"cuInit".as_ptr()), cuInit as *mut c_void);
    }

    #[test]
    fn without_a_driver_a_call_is_an_error() {
        // SAFETY: a stub passes its arguments on unchanged.
        let call =
            unsafe { std::mem::transmute::<extern "C" fn(), extern "C" fn(u32) -> u32>(cuInit) };
        assert_eq!(call(0), CUDA_NOT_INITIALIZED);
        // SAFETY: as above.
        let call = unsafe {
            std::mem::transmute::<extern "C" fn(), extern "C" fn(u32) -> u32>(
                nvmlDeviceGetMemoryInfo,
            )
        };
        assert_eq!(call(0), NVML_NOT_FOUND);
    }
}
