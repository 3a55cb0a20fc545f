//! The token service: one thread which owns the sockets and pages of all processes, around [`agent_core::Agent`], which decides.
//!
//! | module | contents |
//! |---|---|
//! | `driver` | the event loop: descriptors and commands to events |
//! | `execute` | the actions |
//! | `later` | events from threads which carry out what takes long |
//! | `connection` | one process: its socket, pages and pidfd |
//! | `timer` | the time of the next event without a descriptor |
//! | `roster` | the record of a pod's processes for the next agent; processes in `/proc` |

mod connection;
mod driver;
mod execute;
mod later;
mod queue;
mod roster;
mod timer;

use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::state::{ServiceHandle, ServiceSettings, service_channel};

/// Starts the service's thread and returns the handle to it.
///
/// # Errors
/// Returns an error when no thread or file descriptor is left, or the record cannot be begun.
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
    let driver = driver::Driver::new(settings, inbox)?;
    thread::Builder::new()
        .name("tokens".to_owned())
        .spawn(move || driver.run())?;
    Ok(handle)
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds, the clock of the pages.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let rest = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
