//! Wrappers of driver functions, declared by the macro `hooks!`.
//!
//! A wrapper never unwinds into the program. A panic inside it sets a flag, after which every call passes to the driver
//! unchanged.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use preload_ops::System as _;
use protocol::message::Report;

use crate::context::context;
use crate::front;
use crate::host::Host;

/// Returns the address that a program gets for a driver function: the wrapper's, or `real` if there is none.
pub(crate) fn wrap(symbol: &CStr, real: *mut c_void) -> *mut c_void {
    let lists = context().hooks.get().copied().unwrap_or(&[]);
    let mut hooks = lists.iter().copied().flatten();
    let Some(hook) = hooks.find(|hook| hook.symbol.as_bytes() == symbol.to_bytes()) else {
        if preload_table::entry(symbol.to_bytes()).is_none() {
            unknown(symbol);
        }
        return real;
    };
    let wrapper = (hook.wrapper)();
    // A driver whose references to its own functions were bound to the front returns the front's address.
    let real = if real == front::exported(symbol) {
        front::real(symbol)
    } else {
        real
    };
    if real != wrapper && !real.is_null() {
        let _first = hook.real.compare_exchange(
            std::ptr::null_mut(),
            real,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }
    wrapper
}

/// Counts and reports a driver function that the table lacks. The program gets the driver's own function.
pub(crate) fn unknown(symbol: &CStr) {
    let facts = Host.facts();
    facts.unknown_symbols.fetch_add(1, Ordering::Relaxed);
    Host.report(Report::UnknownSymbol(symbol.to_string_lossy().into_owned()));
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
    let found = front::real(symbol);
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
        pub(crate) static $list: &[crate::context::Hook] = &[
            $(crate::context::Hook {
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
                    // SAFETY: not null, and the driver's function with this symbol, which its documentation and `functions.txt` give this signature.
                    let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(real) };
                    // SAFETY: the program's own arguments, unchanged, which it guarantees to be valid for this function.
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

/// Declares a wrapper per name of a function with at most six integers and pointers; the letter after it is the argument that holds the
/// stream.
macro_rules! in_stream {
    ($list:ident, $default:expr, $by:path: $($name:ident $stream:ident,)*) => {
        hooks! { $list: $(
            fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) =
                |real, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize| {
                    let stream = pick!($stream, a, b, c, d, e, f);
                    $by(real, stream, $default)
                };
        )* }
    };
}

/// Returns the argument with this letter.
macro_rules! pick {
    (a, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($b, $c, $d, $e, $f);
        $a
    }};
    (b, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $c, $d, $e, $f);
        $b
    }};
    (c, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $b, $d, $e, $f);
        $c
    }};
    (d, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $b, $c, $e, $f);
        $d
    }};
    (e, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $b, $c, $d, $f);
        $e
    }};
    (f, $a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident) => {{
        let _others = ($a, $b, $c, $d, $e);
        $f
    }};
}

/// Declares a wrapper per name of a function with at most six integers and pointers, none of which the wrapper reads.
macro_rules! blocking {
    ($list:ident, $by:path: $($name:ident,)*) => {
        hooks! { $list: $(
            fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) =
                |real, _a: usize, _b: usize, _c: usize, _d: usize, _e: usize, _f: usize| $by(real);
        )* }
    };
}
pub(crate) use {blocking, in_stream, pick};
