//! The token service, which schedules the pods. One thread owns all slots, connections and pages; [`policy::tokens`] makes
//! every decision.
//!
//! | module | contents |
//! |---|---|
//! | `turn` | the event loop |
//! | `commands`, `connections`, `greeting`, `gates` | commands of the other parts, and processes: from hello to tokens and claims |
//! | `poll`, `figures` | polling of state without events; figures for metrics and the control API |
//! | `slot` | a slot's scheduler, and the execution of its actions |
//! | `pod` | a pod's socket, memory and counters |
//! | `process` | one connection, its pages, and the validation of what the process publishes |
//! | `memory` | sharing of a pod's memory limit among its processes |
//! | `settle` | kernel time, from what processes publish to what the scheduler is charged |
//! | `roster` | processes that an earlier agent served |

mod commands;
mod connections;
mod figures;
mod gates;
mod greeting;
mod memory;
mod pod;
mod poll;
mod process;
mod roster;
mod settle;
mod slot;
mod turn;

use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::state::{ServiceHandle, ServiceSettings, service_channel};

/// Starts the service's thread and returns the handle to it.
///
/// # Errors
/// Returns an error when no thread or file descriptor is left.
pub fn start(settings: ServiceSettings) -> std::io::Result<ServiceHandle> {
    // Each process needs four descriptors, and there may be thousands of processes. A failure leaves the limit unchanged.
    let files = getrlimit(Resource::Nofile);
    let _unchanged = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            ..files
        },
    );
    let (handle, inbox) = service_channel()?;
    let service = turn::Service::new(settings, inbox)?;
    thread::Builder::new()
        .name("tokens".to_owned())
        .spawn(move || service.run())?;
    Ok(handle)
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds, the clock of the pages.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let rest = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
