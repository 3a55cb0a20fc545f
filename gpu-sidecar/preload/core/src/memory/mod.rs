//! Wrappers of the functions that concern device memory: see [`preload_ops::memory`].
//!
//! A pointer of the program is read and written as the driver's function with the same name reads and writes it: the program
//! guarantees to the driver, and thereby to its wrapper, that it is null or valid for that, aligned or not.

use std::sync::atomic::Ordering;

use preload_ops::memory::{Memory, contexts, limit, spare};

use crate::context::context;
use crate::driver::{Code, Handle, SUCCESS};
use crate::hook::Hook;
use crate::host::Host;

mod alloc;
mod api32;
mod ipc;
mod native;
mod peers;
mod pools;
mod program;
mod query;

/// Wrappers of all functions that concern memory.
pub(crate) static HOOKS: &[&[Hook]] = &[
    alloc::HOOKS,
    query::HOOKS,
    peers::HOOKS,
    ipc::HOOKS,
    native::HOOKS,
    pools::HOOKS,
    program::HOOKS,
    api32::HOOKS,
];

/// Returns the memory state of this process, created at the first call and never dropped.
pub(crate) fn state() -> &'static Memory {
    let place = &context().memory;
    let existing = place.load(Ordering::Acquire);
    // SAFETY: null, or a box that was leaked below and is shared by reference alone.
    if let Some(existing) = unsafe { existing.as_ref() } {
        return existing;
    }
    let new = Box::into_raw(Box::new(Memory::new()));
    let put = place.compare_exchange(
        std::ptr::null_mut(),
        new,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    let kept = match put {
        Ok(_null) => new,
        Err(other) => {
            // SAFETY: from the box above, and shared with no other thread, since the exchange has failed.
            drop(unsafe { Box::from_raw(new) });
            other
        }
    };
    // SAFETY: a leaked box, from this thread or from the one that stored it first.
    unsafe { &*kept }
}

/// Creates a reserve of memory before a capture begins.
pub(crate) fn before_capture() {
    spare::before_capture(Host);
}

/// Removes the memory of a destroyed context.
pub(crate) fn context_destroyed(gone: Handle) {
    contexts::context_destroyed(Host, gone);
}

/// Returns the whole unused part of the claim, as requested by the agent.
pub(crate) fn relinquish() {
    limit::relinquish(Host);
}

/// Writes a result to the program's memory. Does nothing if the pointer is null.
fn write_out<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the program guarantees that the driver's function may write a `T` there, which it is done with.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads a structure of the program's, or a result that the driver has written; `None` if the pointer is null.
fn read<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: not null, and the program guarantees that the driver's function may read a `T` there, or the driver has written one.
    (!from.is_null()).then(|| unsafe { from.read_unaligned() })
}

/// Returns what a call of the driver has written, if it succeeds; `None` if the program wants nothing written.
fn written<T: Copy>(call: &dyn Fn() -> Code, out: *mut T) -> Result<Option<T>, Code> {
    match call() {
        SUCCESS => Ok(read(out)),
        code => Err(code),
    }
}
