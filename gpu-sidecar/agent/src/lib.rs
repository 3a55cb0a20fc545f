//! The agent of a node: one process that shares the node's GPUs among pods.
//!
//! | module | what |
//! |---|---|
//! | [`config`] | the configuration file |
//! | [`nvml`] | which slots there are, whether they are well |
//! | [`mps`] | an MPS daemon for each slot that is shared |
//! | `pods` | who is on the node, and on which slot |
//! | [`identity`] | which pod a process belongs to |
//! | [`state`] | what all know, and the way to the service |
//! | [`service`] | the token service: who computes when |
//! | `csi` | pods' folders, published as volumes for the kubelet |
//! | `metrics`, `control` | Prometheus on 9471, the API on 9470 |
//! | [`events`] | what happened |
//!
//! The agent may end at any time, also by `kill -9`: MPS daemons, pods and their slots are found again by the next one, and
//! programs go on as their gates' own rule for a lost agent says. One that ends in a container takes the MPS daemons that
//! it has started with it: there `gpu-sidecar mps` keeps them in a pod of their own (`run --external-mps`).
//!
//! Sandboxed runtimes (Kata, gVisor) have another kernel: neither shared pages nor sockets nor MPS reach into them. Their
//! pods are not served.
#![forbid(unsafe_code)]

mod cli;
pub mod config;
mod control;
mod csi;
pub mod events;
mod http;
pub mod identity;
mod lock;
mod log;
mod metrics;
pub mod mps;
mod node;
pub mod nvml;
mod pods;
mod recent;
mod run;
pub mod service;
mod slot_history;
pub mod state;
mod stop;
#[cfg(test)]
mod testing;

use std::ffi::OsString;
use std::process::ExitCode;

pub use run::{RunError, RunOptions, STATE_FILE, run};

/// The build, as metrics name it: the commit where an image was built from one, else the version.
const COMMIT: &str = match option_env!("WEIR_COMMIT") {
    Some(commit) => commit,
    None => env!("CARGO_PKG_VERSION"),
};

/// The program, with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// The program, with other arguments: for a program that is several. The first is its name.
#[must_use]
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    cli::main(arguments)
}
