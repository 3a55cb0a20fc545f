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
//! | [`memory`] | device memory held by each process | M4.15 |
//! | [`node`] | GPUs, PCIe switches, NVLinks | Torpor §5.3 |
//! | [`op`] | commands of a stream | – |
//! | [`machine`] | streams, events, graphs on the GPUs of a node | – |
//! | [`ledger`] | resources held by processes, with start and end | – |
//!
//! # Examples
//!
//! Two processes have a kernel of 5 ms each on one GPU, whose turns last 2 ms and take 0.2 ms to switch:
//!
//! ```
//! use device::compute::{Compute, Kernel, Turns};
//! use device::law::Law;
//! use device::ledger::{Job, Ledger, ProcessId, WorkId};
//! use device::{Span, Time};
//!
//! let turns = Turns { slice: Span::from_millis(2), switch: Span(200_000) };
//! let mut gpu = Compute::new(0, 80, 80, turns);
//! let mut ledger = Ledger::default();
//! let kernel = Kernel { duration: Span::from_millis(5), sms: 80, law: Law::Linear, interference_millionths: 0 };
//! for process in [1, 2] {
//!     gpu.admit(ProcessId(process), 80, None);
//!     let work = WorkId { command: u64::from(process), node: 0 };
//!     gpu.start(Job { work, process: ProcessId(process), tag: 0 }, &kernel);
//! }
//! gpu.share(&mut ledger);
//! let mut end = Time::ZERO;
//! while let Some(next) = gpu.next() {
//!     gpu.advance(next, &mut Vec::new(), &mut ledger);
//!     gpu.share(&mut ledger);
//!     end = next;
//! }
//! assert_eq!(end, Time(11_000_000), "two kernels and five switches");
//! ```
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
