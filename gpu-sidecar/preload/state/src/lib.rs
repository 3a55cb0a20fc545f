//! State of the preload library: structures and machines which the library holds once per process, and a simulator once per
//! simulated process.
//!
//! Nothing here has a static, a thread-local variable, I/O or a clock. Methods take the time as `now`, in nanoseconds of
//! `CLOCK_MONOTONIC`, and the agent's page as a [`protocol::page::Orders`]; they return what is to be done. What happens beside the
//! call of a method, such as a barrier over all threads, is named in its documentation.
//!
//! | module | contents |
//! |---|---|
//! | [`gate`] | the gate at each launch: its word, launches in progress, parked threads, the return of a token |
//! | [`memory_gate`] | the gate at each touch of device memory |
//! | [`mover`] | its moves to the host and back |
//! | [`divisions`] | requests that blocks which share physical memory get their own |
//! | [`restoring`] | what of it is there while it is being restored and the program computes |
//! | [`watch`] | the watch thread: answers a closed gate, returns a token that is not used |
//! | [`link`] | the process with respect to its agent: start, attachment, loss, reconnection |
//! | [`waiters`] | threads that wait on the agent's page, across a change of page |
//! | [`silence`] | missing heartbeats of the agent |
//! | [`memory`] | device memory: account, addresses, allocations, slabs, tickets |
//! | [`claims`] | claims of device memory and their answers |
//! | [`streams`], [`functions`], [`events`], [`captures`] | work in flight and its run time; the events which measure it |
//! | [`graphs`], [`tensor_maps`] | memory that launches use without naming it in their arguments |
//! | [`busy`] | periods in which kernels of the process ran |
//! | [`process`] | all of these for one process |
//! | [`counters`] | the page of facts: hello, change of page, sticky errors |
//!
//! Deliberately absent: calls of the driver (`preload-ops`), and threads, sockets and pointers (`weir-preload-core`). Start reading in
//! [`gate`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::time::Duration;

pub mod busy;
pub mod captures;
pub mod claims;
pub mod counters;
pub mod divisions;
pub mod events;
#[cfg(test)]
mod explore;
pub mod functions;
pub mod gate;
pub mod graphs;
pub mod link;
pub mod memory;
pub mod memory_gate;
pub mod mover;
pub mod process;
pub mod restoring;
pub mod silence;
pub mod streams;
pub mod tensor_maps;
pub mod waiters;
pub mod watch;

/// Address in device memory.
pub type Address = u64;

/// Handle of the driver: stream, event, context or function.
pub type Handle = usize;

/// Returns a span in nanoseconds, saturating.
#[must_use]
pub fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_beyond_the_range_saturates() {
        assert_eq!(nanoseconds(Duration::from_micros(3)), 3_000);
        assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
    }
}
