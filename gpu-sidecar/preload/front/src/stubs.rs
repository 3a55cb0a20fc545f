//! The exported functions, for programs that are linked to the driver.
//!
//! A call jumps to the address in the function's slot. The first one finds it: the next definition after ours in the loader's
//! order; if there is none, the one in the scope of the library that calls, which may have been opened for itself alone; then the
//! one of a driver that is loaded anywhere. If it is the driver's, the core says what
//! stands before it. Another library's function of the same name is called as it is.
//!
//! Without any driver a function returns an error and will look again: a program may load one later.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use preload_table::{ENTRIES, NVML, index, nvml};

use crate::core::ask;
use crate::look::{in_driver, in_scope_of, own_symbol};
use crate::machine::{jump, jump_through_slot, jump_to_answer};
use crate::original::real_at;
use crate::provider::{Provider, forget_failure, provider};

const COUNT: usize = ENTRIES.len() + NVML.len();

/// Where each function's calls go; null: not known yet.
static SLOTS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT];

/// Functions that a library had for itself alone when it called one: what another caller's goes to is not kept. A library that
/// comes later than the driver's first caller gets the driver's; two such in one process are not known.
static PRIVATE: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

/// `CUDA_ERROR_NOT_INITIALIZED`, which a driver says of itself before it is made ready. Nothing else is true of one that is
/// not there and expected of every function.
const CUDA_NOT_INITIALIZED: u32 = 3;
/// `NVML_ERROR_LIBRARY_NOT_FOUND`
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

/// The slot of a function that we export.
pub(crate) fn slot(symbol: &[u8]) -> Option<usize> {
    let slot = index(symbol).or_else(|| Some(nvml(symbol)?.wrapping_add(ENTRIES.len())))?;
    EXPORTED.get(slot)?.map(|_| slot)
}

/// The address of an exported function.
pub(crate) fn address(slot: usize) -> *mut c_void {
    let function = EXPORTED.get(slot).copied().flatten();
    function.map_or(std::ptr::null_mut(), |function| function as *mut c_void)
}

/// For the core: where one of our functions is.
#[unsafe(naked)]
pub(crate) extern "C" fn own(symbol: *const c_char) -> *mut c_void {
    jump!(own_symbol)
}

/// Finds what a slot's calls go to, for somebody there.
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
        Provider::Driver => ask(|core| (core.wrap)(symbol, real), real),
        Provider::Nvml => ask(|core| (core.wrap_nvml)(symbol, real), real),
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
        // SAFETY: the stub passes on whatever it is given.
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
