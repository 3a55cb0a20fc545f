//! Wrappers of the functions that concern device memory: see [`preload_ops::memory`].
//!
//! A pointer of the program is read and written as the driver's function with the same name reads and writes it: the program
//! guarantees to the driver, and thereby to its wrapper, that it is null or valid for that, aligned or not.

use preload_ops::memory::{contexts, make, spare};

use crate::driver::{Code, Handle, SUCCESS};
use crate::host::Host;

pub(crate) mod alloc;
pub(crate) mod api32;
pub(crate) mod ipc;
pub(crate) mod native;
pub(crate) mod peers;
pub(crate) mod pools;
pub(crate) mod program;
pub(crate) mod query;

/// Creates a reserve of memory before a capture begins.
pub(crate) fn before_capture() {
    make::before_capture(Host);
}

/// Removes the memory of a destroyed context.
pub(crate) fn context_destroyed(gone: Handle) {
    contexts::context_destroyed(Host, gone);
}

/// Returns the whole unused part of the claim, as requested by the agent.
pub(crate) fn relinquish() {
    spare::relinquish(Host);
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
