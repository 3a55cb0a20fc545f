//! Wrappers of the functions that concern device memory: see [`preload_ops::memory`].

use preload_ops::memory::{contexts, make, spare};

use crate::driver::{Code, Handle, SUCCESS};
use crate::host::Host;
use crate::pointers::read;

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

/// Returns what a call of the driver has written, if it succeeds; `None` if the program wants nothing written.
fn written<T: Copy>(call: &dyn Fn() -> Code, out: *mut T) -> Result<Option<T>, Code> {
    match call() {
        SUCCESS => Ok(read(out)),
        code => Err(code),
    }
}
