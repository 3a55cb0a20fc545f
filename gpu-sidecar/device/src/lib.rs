//! What GPUs do with their time and their memory, computed and not slept: the device under softgpu and under
//! the simulator.
//!
//! No clock, no input or output, no randomness: commands come in with a time, completions go out with one, and the
//! same commands give the same completions and the same ledger on every machine. Time is whole nanoseconds, work is
//! counted in integers, so nothing is lost or made up by rounding.
//!
//! | module | models | source |
//! |---|---|---|
//! | [`part`] | a GPU's figures, from data files | the vendor's, as each file says |
//! | [`mig`] | slices, where they may lie, all layouts | M1.6 |
//! | [`law`] | how a kernel's speed follows from its share of SMs | workloads §6, §8 |
//! | [`compute`] | who runs on the SMs of a GPU or slice: time slices, MPS | M4.5, M4.6 |
//! | [`network`] | links that share their bandwidth | Torpor §5.3 |
//! | [`memory`] | who holds how much device memory | M4.9 |
//! | [`node`] | GPUs, PCIe switches, NVLinks | Torpor §5.3 |
//! | [`op`] | what a stream can be told to do | – |
//! | [`machine`] | streams, events, graphs on the GPUs of a node | – |
//! | [`ledger`] | who held what from when to when | – |
#![forbid(unsafe_code)]

mod agenda;
pub mod compute;
mod ids;
pub mod law;
pub mod ledger;
pub mod machine;
pub mod memory;
pub mod mig;
pub mod network;
pub mod node;
pub mod op;
pub mod part;
mod unit;

pub use policy::{Span, Time};
