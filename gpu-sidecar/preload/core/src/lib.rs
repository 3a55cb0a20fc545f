//! `libweir_preload_core.so`: what the preload library does once a program uses CUDA.
//!
//! The front (`libweir_preload.so`) loads it at the first look-up of a function of the driver and asks it for each one: the
//! answer is a wrapper or the driver's own address.
//!
//! | module | what |
//! |---|---|
//! | `front`, `driver`, `hook`, `resolver` | what the front lends; the driver past all wrappers; wrappers; `cuGetProcAddress` |
//! | `link`, `connection`, `threads` | the agent: hello, pages, its loss; the socket; threads without signals |
//! | `gate`, `launch` | the gate at each launch, and everything that launches |
//! | `streams`, `events`, `functions`, `busy`, `waits`, `capture` | what is in flight, how long it runs, and what it is not measured by |
//! | `watch` | waits for what is in flight when the gate shuts; gives back what is not used |
//! | `memory`, `nvml` | device memory within its limit, and what the program is told of it |
//! | `lifetime` | the begin and end of the driver, contexts and streams |
//!
//! Nothing here unwinds into the program, delivers its signals, or ends it. Without an agent all launches pass.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering;

use preload_table::abi::{ABI_VERSION, Core, Front};
use protocol::message::Report;

use crate::hook::Hook;

mod busy;
mod capture;
mod claims;
mod connection;
mod driver;
mod events;
mod front;
mod functions;
mod gate;
mod hook;
mod launch;
mod lifetime;
mod link;
mod log;
mod memory;
mod nvml;
mod resolver;
mod silence;
mod streams;
mod threads;
mod time;
mod waits;
mod watch;

#[cfg(feature = "bench")]
pub use gate::check as check_gate;

static CORE: Core = Core {
    abi_version: ABI_VERSION,
    wrap: wrap_for_front,
    wrap_nvml: wrap_nvml_for_front,
    unknown: unknown_for_front,
};

/// The one function that the front looks up. It may be called more than once.
///
/// # Safety
/// The pointer is null, or that of a [`Front`] that stays where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_preload_core(front: *const Front) -> *const Core {
    // SAFETY: as above.
    let version = unsafe { front.as_ref() }.map(|front| front.abi_version);
    if version != Some(ABI_VERSION) {
        return std::ptr::null();
    }
    front::keep(front);
    follow_forks();
    &raw const CORE
}

/// A child of a fork is another process.
fn follow_forks() {
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn __register_atfork(
            prepare: Handler,
            parent: Handler,
            child: Handler,
            library: *const c_void,
        ) -> i32;
    }
    static DONE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    extern "C" fn child() {
        link::child();
        memory::child();
    }
    if !DONE.swap(true, Ordering::AcqRel) {
        // SAFETY: a function that stays; the library is never unloaded.
        let _registered = unsafe { __register_atfork(None, None, Some(child), std::ptr::null()) };
    }
}

fn hooks() -> impl Iterator<Item = &'static Hook> {
    let lists = [
        resolver::HOOKS,
        lifetime::HOOKS,
        launch::HOOKS,
        capture::HOOKS,
    ];
    lists
        .into_iter()
        .chain(waits::HOOKS.iter().copied())
        .chain(memory::HOOKS.iter().copied())
        .flatten()
}

/// The address that a program gets for a function of the driver.
pub(crate) fn wrap(symbol: &CStr, real: *mut c_void) -> *mut c_void {
    let Some(hook) = hooks().find(|hook| hook.symbol.as_bytes() == symbol.to_bytes()) else {
        if preload_table::entry(symbol.to_bytes()).is_none() {
            unknown(symbol);
        }
        return real;
    };
    let wrapper = (hook.wrapper)();
    // A driver whose references to its own functions the loader has bound to the front answers with the front's address.
    let real = if real == front::own(symbol) {
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

/// A function was looked up that the declaration table does not know: the program gets the driver's own, and it is counted.
pub(crate) fn unknown(symbol: &CStr) {
    link::facts()
        .unknown_symbols
        .fetch_add(1, Ordering::Relaxed);
    link::report(Report::UnknownSymbol(symbol.to_string_lossy().into_owned()));
}

extern "C" fn wrap_for_front(symbol: *const c_char, real: *mut c_void) -> *mut c_void {
    // SAFETY: the front passes a text that ends.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    std::panic::catch_unwind(|| wrap(symbol, real)).unwrap_or(real)
}

extern "C" fn wrap_nvml_for_front(symbol: *const c_char, real: *mut c_void) -> *mut c_void {
    // SAFETY: the front passes a text that ends.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    std::panic::catch_unwind(|| nvml::wrap(symbol, real)).unwrap_or(real)
}

extern "C" fn unknown_for_front(symbol: *const c_char) {
    // SAFETY: the front passes a text that ends.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    let _nothing = std::panic::catch_unwind(|| unknown(symbol));
}
