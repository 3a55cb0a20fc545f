//! The node agent: one process which shares the GPUs of a node among pods.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the configuration file |
//! | [`nvml`] | discovery and health of slots |
//! | [`mps`] | an MPS daemon for each shared slot |
//! | `pods` | the node's pods and their placement |
//! | [`identity`] | the pod of a process |
//! | [`state`] | shared types, and the channel to the token service |
//! | [`service`] | the token service, which schedules the pods |
//! | `csi` | pods' folders, published as volumes for the kubelet |
//! | `metrics`, `control` | Prometheus on 9471, the control API on 9470 |
//! | [`events`] | the event log |
//!
//! The agent may end at any time, also by `kill -9`: the next agent finds MPS daemons, pods and their slots again, and programs
//! continue under their gates' own rule for a lost agent. The end of an agent in a container also ends the MPS daemons that it
//! has started: there, `gpu-sidecar mps` keeps them in a pod of their own (`run --external-mps`).
//!
//! Sandboxed runtimes (Kata, gVisor) have another kernel, which neither shared pages nor sockets nor MPS reach. Their pods are
//! not served.
//!
//! Deliberately absent: decisions on turns, which are made by `policy::tokens`, and code inside the programs, which is the preload
//! library's. Start reading in [`service`].
#![forbid(unsafe_code)]

mod cgroup_memory;
mod cli;
pub mod config;
mod control;
mod csi;
pub mod events;
mod http;
pub mod identity;
mod instances;
mod lock;
mod log;
mod metrics;
pub mod mps;
mod node;
pub mod nvml;
mod pods;
mod run;
pub mod service;
mod slot_history;
pub mod state;
mod stop;
#[cfg(test)]
mod testing;
mod usage_history;

use std::ffi::OsString;
use std::process::ExitCode;

pub use run::{RunError, RunOptions, STATE_FILE, run};

/// Build identifier exported by the metrics: the commit where an image was built from one, else the version.
const COMMIT: &str = match option_env!("WEIR_COMMIT") {
    Some(commit) => commit,
    None => env!("CARGO_PKG_VERSION"),
};

/// Runs the program with the arguments of this process and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs the program with the given arguments, for multi-call binaries, and returns its exit code. The first argument is the
/// program's name.
#[must_use]
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    cli::main(arguments)
}
