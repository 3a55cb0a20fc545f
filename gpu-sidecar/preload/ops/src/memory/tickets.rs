//! Tickets of memory that is unmapped.

use super::state::lock;
use crate::cuda::Address;
use crate::platform::System;

/// Invalidates the tickets of a block that is about to be unmapped. Processes that have opened one keep the memory.
pub(super) fn withdraw<P: System>(host: P, at: Address) {
    lock(&host.memory().ipc).offers.remove(&at);
}

/// Forgets an opened block that is destroyed with its context.
pub(super) fn closed<P: System>(host: P, at: Address) {
    lock(&host.memory().ipc).opened.forget(at);
}
