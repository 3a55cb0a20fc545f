//! A model of GPUs in virtual time: how kernels, copies and memory use them. It is the device under softgpu and under the
//! simulator.
//!
//! The model has no clock, no I/O and no randomness. Commands carry the time of their submission, completions carry the time at
//! which they end, and the same commands give the same completions and the same ledger on every machine. Time is in whole
//! nanoseconds and work is counted in integers, so rounding neither loses nor adds any.
//!
//! | module | models | source |
//! |---|---|---|
//! | [`part`] | the properties of a GPU model, from data files | the vendor's, as stated in each file |
//! | [`mig`] | slices, their placements, all layouts | M1.6 |
//! | [`law`] | a kernel's speed as a function of its share of SMs | workloads §6, §8 |
//! | [`compute`] | sharing of the SMs of a GPU or slice: time slices, MPS | M4.5, M4.6 |
//! | [`network`] | links that share their bandwidth | Torpor §5.3 |
//! | [`memory`] | device memory held by each process | M4.9 |
//! | [`node`] | GPUs, PCIe switches, NVLinks | Torpor §5.3 |
//! | [`op`] | commands of a stream | – |
//! | [`machine`] | streams, events, graphs on the GPUs of a node | – |
//! | [`ledger`] | resources held by processes, with start and end | – |
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

pub use units::{Span, Time};
