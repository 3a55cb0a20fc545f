//! Wrappers of driver functions, declared by the macro `hooks!`.
//!
//! A wrapper never unwinds into the program. A panic inside it sets a flag, after which every call passes to the driver
//! unchanged.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::context::context;

/// A wrapper and the driver function that it wraps.
#[derive(Debug)]
pub(crate) struct Hook {
    /// Symbol in the driver's file.
    pub(crate) symbol: &'static str,
    /// Returns the wrapper's address.
    pub(crate) wrapper: fn() -> *mut c_void,
    /// Address of the driver's function; null until it is looked up.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

/// Returns whether a wrapper has panicked, in which case every call passes to the driver unchanged.
pub(crate) fn is_broken() -> bool {
    context().is_broken.load(Ordering::Relaxed)
}

/// Disables all wrappers after a panic in one of them.
pub(crate) fn disable() {
    if !context().is_broken.swap(true, Ordering::AcqRel) {
        crate::log::line(
            "internal error in the preload library: from now on all calls pass to the driver unchanged",
        );
    }
}

/// Returns the driver's function of a hook; looks it up if the program reached the wrapper without a look-up, and returns null if
/// the driver lacks it.
pub(crate) fn real(hook: &'static AtomicPtr<c_void>, symbol: &CStr) -> *mut c_void {
    let known = hook.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = crate::front::real(symbol);
    if !found.is_null() {
        hook.store(found, Ordering::Release);
    }
    found
}

/// Declares wrappers: `fn SYMBOL(arguments) = body;`. The body gets the driver's own function as a closure, then the arguments.
/// Its result is returned to the program.
macro_rules! hooks {
    ($list:ident: $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) = $body:expr;)*) => {
        /// Wrappers declared in this module.
        pub(crate) static $list: &[crate::hook::Hook] = &[
            $(crate::hook::Hook {
                symbol: stringify!($name),
                wrapper: || $name::wrapper as *mut std::ffi::c_void,
                real: &$name::REAL,
            },)*
        ];
        $(
            #[allow(non_snake_case, reason = "named as in the driver API")]
            mod $name {
                #[allow(unused_imports, reason = "not every signature uses every type")]
                use super::*;

                pub(super) static REAL: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

                pub(super) extern "C" fn wrapper($($argument: $kind),*) -> crate::driver::Code {
                    const SYMBOL: &str = concat!(stringify!($name), "\0");
                    let Ok(symbol) = std::ffi::CStr::from_bytes_with_nul(SYMBOL.as_bytes()) else {
                        return crate::driver::NOT_SUPPORTED;
                    };
                    let real = crate::hook::real(&REAL, symbol);
                    if real.is_null() {
                        return crate::driver::NOT_SUPPORTED;
                    }
                    type Function = unsafe extern "C" fn($($kind),*) -> crate::driver::Code;
                    // SAFETY: the driver's function with this name has this signature.
                    let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(real) };
                    // SAFETY: the program's own arguments, unchanged.
                    let call = || unsafe { function($($argument),*) };
                    if crate::hook::is_broken() {
                        return call();
                    }
                    // The driver's result if it was called: after a later panic it must not be called again.
                    let result = std::cell::Cell::new(None);
                    let once = || {
                        let code = call();
                        result.set(Some(code));
                        code
                    };
                    let body = std::panic::AssertUnwindSafe(|| ($body)(&once, $($argument),*));
                    match std::panic::catch_unwind(body) {
                        Ok(code) => code,
                        Err(_panic) => {
                            crate::hook::disable();
                            result.get().unwrap_or_else(call)
                        }
                    }
                }
            }
        )*
    };
}
pub(crate) use hooks;
