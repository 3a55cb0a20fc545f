//! `libweir_preload_core.so`: the wrappers of the CUDA driver API and NVML, loaded once a program uses CUDA.
//!
//! The front (`libweir_preload.so`) loads this library when a driver function is first looked up, and calls it for each look-up.
//! It returns a wrapper's address or the driver's own.
//!
//! | module | purpose |
//! |---|---|
//! | `launch`, `graphs`, `tensor_maps`, `touch`, `waits`, `capture`, `lifetime`, `memory`, `nvml`, `resolver` | wrappers: arguments of the program in, one operation of `preload-ops`, its outcome back |
//! | `hook`, `pointers`, `arguments` | declaration of wrappers; pointers of the program; arguments of kernels |
//! | `context`, `host`, `calls` | the one static; the process and the driver as operations see them |
//! | `front`, `driver` | the front; direct driver calls |
//! | `link`, `connection`, `threads`, `time`, `log` | carries out what `preload-state` decides about the agent; the socket; threads without signals; clock and futex |
//!
//! The library never unwinds into the program, handles no signals, and never ends the process. Without an agent all launches
//! pass.
//!
//! Deliberately absent: what a call becomes, which `preload-ops` decides, and turns, which are the agent's. Start reading in `launch`.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering;

use preload_table::abi::{ABI_VERSION, Core, Front};

use crate::context::{Hook, context};
#[cfg(feature = "bench")]
use crate::host::Host;

mod arguments;
mod calls;
mod capture;
mod connection;
mod context;
mod copiers;
mod driver;
mod front;
mod graphs;
mod hook;
mod host;
mod launch;
mod lifetime;
mod link;
mod log;
mod memory;
mod nvml;
mod pointers;
mod ranges;
mod resolver;
mod synchronizer;
mod tensor_maps;
mod threads;
mod time;
mod touch;
mod waits;

/// Runs the check of a launch at the gate, without the launch, and returns whether it would pass.
#[cfg(feature = "bench")]
#[must_use]
pub fn check_gate() -> bool {
    preload_ops::launch::check(Host)
}

/// Runs the check of a touch at the gate of memory, without the touch, and returns whether it would pass.
#[cfg(feature = "bench")]
#[must_use]
pub fn check_memory_gate() -> bool {
    preload_ops::touch::check(Host)
}

static CORE: Core = Core {
    abi_version: ABI_VERSION,
    wrap: wrap_for_front,
    wrap_nvml: wrap_nvml_for_front,
    unknown: unknown_for_front,
};

/// Entry point that the front looks up and calls. It may be called more than once.
///
/// # Safety
///
/// `front` is null or points to a [`Front`] that is neither moved nor freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_preload_core(front: *const Front) -> *const Core {
    // SAFETY: the caller guarantees that the pointer is null or valid.
    let version = unsafe { front.as_ref() }.map(|front| front.abi_version);
    if version != Some(ABI_VERSION) {
        return std::ptr::null();
    }
    front::set_front(front);
    let _first = context().hooks.set(HOOKS);
    register_fork_handler();
    &raw const CORE
}

/// Registers the handler that resets this library in the child of a fork, which is a separate process to the agent.
fn register_fork_handler() {
    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        fn __register_atfork(
            prepare: Handler,
            parent: Handler,
            child: Handler,
            library: *const c_void,
        ) -> i32;
    }
    extern "C" fn child() {
        context().fork();
    }
    if !context().has_fork_handler.swap(true, Ordering::AcqRel) {
        // SAFETY: glibc's function with this signature; the handler stays valid, since the library is never unloaded.
        let _registered = unsafe { __register_atfork(None, None, Some(child), std::ptr::null()) };
    }
}

/// Wrappers of all driver functions.
static HOOKS: &[&[Hook]] = &[
    resolver::HOOKS,
    lifetime::HOOKS,
    launch::HOOKS,
    graphs::HOOKS,
    tensor_maps::HOOKS,
    capture::HOOKS,
    waits::LEGACY,
    waits::PER_THREAD,
    waits::WAITS,
    waits::WAITS_PER_THREAD,
    waits::BLOCKING,
    touch::LEGACY,
    touch::PER_THREAD,
    touch::BLOCKING,
    touch::SETS,
    touch::SETS_PER_THREAD,
    touch::ADVICE,
    touch::WIDE,
    ranges::HOOKS,
    memory::alloc::HOOKS,
    memory::query::HOOKS,
    memory::peers::HOOKS,
    memory::ipc::HOOKS,
    memory::native::HOOKS,
    memory::pools::HOOKS,
    memory::program::HOOKS,
    memory::api32::HOOKS,
];

extern "C" fn wrap_for_front(symbol: *const c_char, real: *mut c_void) -> *mut c_void {
    // SAFETY: `Core` has the front pass a NUL-terminated string that lives over the call.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    std::panic::catch_unwind(|| hook::wrap(symbol, real)).unwrap_or(real)
}

extern "C" fn wrap_nvml_for_front(symbol: *const c_char, real: *mut c_void) -> *mut c_void {
    // SAFETY: `Core` has the front pass a NUL-terminated string that lives over the call.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    std::panic::catch_unwind(|| nvml::wrap(symbol, real)).unwrap_or(real)
}

extern "C" fn unknown_for_front(symbol: *const c_char) {
    // SAFETY: `Core` has the front pass a NUL-terminated string that lives over the call.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    let _panicked = std::panic::catch_unwind(|| hook::unknown(symbol));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use preload_table::{Class, ENTRIES};

    use super::*;

    #[test]
    fn every_launch_and_every_touch_has_a_wrapper() {
        let wrapped: BTreeSet<&str> = HOOKS
            .iter()
            .copied()
            .flatten()
            .map(|hook| hook.symbol)
            .collect();
        let all = ENTRIES
            .iter()
            .filter(|entry| matches!(entry.class(), Class::Launch | Class::Touch));
        let symbols: Vec<&str> = all.map(|entry| entry.symbol()).collect();
        assert!(symbols.len() > 150);
        let missing: Vec<_> = symbols
            .iter()
            .filter(|symbol| !wrapped.contains(**symbol))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_wrapper_is_that_of_one_function_of_the_table() {
        let mut seen = BTreeSet::new();
        for hook in HOOKS.iter().copied().flatten() {
            assert!(
                preload_table::entry(hook.symbol.as_bytes()).is_some(),
                "{}",
                hook.symbol
            );
            assert!(seen.insert(hook.symbol), "{} is wrapped twice", hook.symbol);
        }
    }

    /// The wrappers of several functions share a signature; what each has is stated in the table.
    #[test]
    fn streams_and_arguments_are_those_of_the_table() {
        let mut checked = 0;
        for text in [include_str!("touch.rs"), include_str!("waits.rs")] {
            for line in text.lines() {
                let words: Vec<_> = line.trim().trim_end_matches(',').split(' ').collect();
                if let [symbol, letter] = words[..]
                    && symbol.starts_with("cu")
                    && letter.len() == 1
                {
                    let entry = preload_table::entry(symbol.as_bytes()).unwrap();
                    let place = usize::from(letter.as_bytes()[0] - b'a');
                    assert_eq!(entry.stream(), Some(place), "{symbol}");
                    assert!(entry.signature().len() <= 6, "{symbol}");
                    checked += 1;
                }
                if let Some(rest) = line.trim().strip_prefix("fn cu")
                    && let Some((name, arguments)) = rest.split_once('(')
                {
                    let symbol = format!("cu{name}");
                    let entry = preload_table::entry(symbol.as_bytes()).unwrap();
                    let count = arguments.matches(": usize").count();
                    assert_eq!(entry.signature().len(), count, "{symbol}");
                    assert_eq!(entry.stream(), Some(count - 1), "{symbol}");
                    checked += 1;
                }
            }
        }
        assert!(checked > 90, "{checked}");
    }
}
