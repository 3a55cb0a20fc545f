//! The wrappers, by the names of the functions that they stand before.
//!
//! A wrapper never unwinds into the program: a panic inside sets a flag, and from then on everything passes to the driver
//! unchanged.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A wrapper and the function behind it.
#[derive(Debug)]
pub(crate) struct Hook {
    /// The symbol in the driver's file.
    pub(crate) symbol: &'static str,
    /// The wrapper's address.
    pub(crate) wrapper: fn() -> *mut c_void,
    /// The driver's function, once it was looked up.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

static BROKEN: AtomicBool = AtomicBool::new(false);

/// A wrapper has panicked: nothing is done any more but to pass calls on.
pub(crate) fn is_broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// A wrapper has panicked.
pub(crate) fn broke() {
    if !BROKEN.swap(true, Ordering::AcqRel) {
        crate::log::line("a defect in the preload library: from now on calls pass unchanged");
    }
}

/// The function that a hook stands before; looked up where the program has not come through a look-up.
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

/// Declares wrappers: `fn SYMBOL(arguments) = path;`. The function at the path gets the driver's own function as a closure
/// first, then the arguments, and its answer is the program's.
macro_rules! hooks {
    ($list:ident: $(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) = $body:expr;)*) => {
        /// The wrappers declared here.
        pub(crate) static $list: &[crate::hook::Hook] = &[
            $(crate::hook::Hook {
                symbol: stringify!($name),
                wrapper: || $name::wrapper as *mut std::ffi::c_void,
                real: &$name::REAL,
            },)*
        ];
        $(
            #[allow(non_snake_case, reason = "the names are the driver's")]
            mod $name {
                #[allow(unused_imports, reason = "not every signature has every type")]
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
                    // SAFETY: the driver's function of this name has this shape.
                    let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(real) };
                    // SAFETY: the program's own arguments, as it passed them.
                    let call = || unsafe { function($($argument),*) };
                    if crate::hook::is_broken() {
                        return call();
                    }
                    // Whether the driver was called: a defect after that must not call it twice.
                    let done = std::cell::Cell::new(None);
                    let once = || {
                        let code = call();
                        done.set(Some(code));
                        code
                    };
                    let body = std::panic::AssertUnwindSafe(|| ($body)(&once, $($argument),*));
                    match std::panic::catch_unwind(body) {
                        Ok(code) => code,
                        Err(_panic) => {
                            crate::hook::broke();
                            done.get().unwrap_or_else(call)
                        }
                    }
                }
            }
        )*
    };
}
pub(crate) use hooks;
