//! The token service: who computes when. One thread owns all slots, connections and pages; every decision is made by
//! [`policy::tokens`].
//!
//! | module | what |
//! |---|---|
//! | `turn` | the thread: what is ready, what is due |
//! | `commands`, `connections`, `greeting`, `gates` | what the parts around it say, and processes: from hello to tokens and claims |
//! | `look`, `figures` | what nobody tells; what metrics and control API are told |
//! | `slot` | a slot's scheduler, and carrying out what it says |
//! | `pod` | a pod's socket, memory and counters |
//! | `process` | one connection, its pages, what it says of itself and what of that is believed |
//! | `memory` | how the processes of a pod share its memory limit |
//! | `settle` | kernel time, from what processes publish to what the scheduler is told |
//! | `roster` | which processes there were before the agent was started anew |

mod commands;
mod connections;
mod figures;
mod gates;
mod greeting;
mod look;
mod memory;
mod pod;
mod process;
mod roster;
mod settle;
mod slot;
mod turn;

use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::state::{ServiceHandle, ServiceSettings, seam};

/// Starts the service's thread.
///
/// # Errors
/// No thread or file descriptor is left, or the settings contradict each other.
pub fn start(settings: ServiceSettings) -> std::io::Result<ServiceHandle> {
    // Each process takes four, and there may be thousands. What is not allowed stays as it is.
    let files = getrlimit(Resource::Nofile);
    let _unchanged = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: files.maximum,
            ..files
        },
    );
    let (handle, inbox) = seam()?;
    let service = turn::Service::new(settings, inbox)?;
    thread::Builder::new()
        .name("tokens".to_owned())
        .spawn(move || service.run())?;
    Ok(handle)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, as the pages have them.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let rest = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
