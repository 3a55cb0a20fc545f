//! The decisions of Weir, as pure code.
//!
//! The crate has no clock, no input or output, no async, no randomness of its own, and no logging. The caller passes
//! the time as an argument and identifies things by dense integer ids. The same inputs give the same outputs on every
//! machine, so the live programs and the simulator run this same code.
//!
//! | module | decides | source |
//! |---|---|---|
//! | [`queue`] | the order in which waiting requests start | M1.10, mechanisms §1.4 |
//! | [`gate`] | which requests start, wait, are refused, or are shed | Knative's breaker; M1.10 |
//! | [`slo`] | the deadline of a request | contracts §2 |
//! | [`profile`] | how long a request will take | M1.10 (estimated execution) |
//! | [`class`] | which requests are expected to take equally long | M1.10 (estimated execution) |
//! | [`rate`] | how many costly frames that request nothing a peer may send per second | RFC 9113 10.5 |
//! | [`buffers`] | which bodies may buffer more for a slow reader | contracts §1 (`limit-buffered-bytes`) |
//! | [`tokens`] | which process computes when on a GPU with shared SMs | M4.7–M4.9, M4.17 |
//! | [`claims`] | how much of a pod's memory limit each of its processes may hold | M4.15 |
//! | [`host_memory`] | how much host memory a process gets for the copy of its model, and whose is registered with the driver | M2.5 |
//! | [`faults`] | which processes compute no more, and are ended | mechanisms §2.8 |
//! | [`memory`] | the placement of model blocks in device memory | M2.10, mechanisms §2.5 |
//! | [`swap`] | the groups and the order in which a model is swapped in and out | M2.5–M2.8, mechanisms §2.6, §2.7 |
//! | [`pool`] | on which GPU of a pool a request runs, and which model is evicted for it | M2.1, M2.13–M2.21 |
//! | [`routing`] | which instance of a function serves which of its requests, and when | M1.13, mechanisms §1.7; contracts §5 |
//! | [`rectangles`] | on which GPU with shared SMs a pod is placed | M4.11–M4.13, M4.17, mechanisms §4.4 |
//! | [`placement`] | on which slot of a node a pod is placed when it comes | M4.11, M4.15 |
//! | [`footprint`] | whether a GPU has memory for another pod | M4.15, mechanisms §4.6 |
//! | [`attach`] | when a revision's requests are routed to activator-ext, and to which of its pods | contracts §5 |
//! | [`election`] | which of several processes leads | Kubernetes' leader election |
//! | [`capacity`] | the resources that a node advertises to the scheduler | contracts §10 |
//! | [`certificates`] | when certificates are renewed, and which authorities are trusted in the meantime | contracts §3 |
//! | [`window`] | how many requests of the last hour were in time | contracts §10 |
//! | [`scaling`] | number and shape of a function's pods; demand reported to the autoscaler | M4.2, M4.3, M4.10, M4.11; contracts §9 |
#![forbid(unsafe_code)]

pub mod attach;
pub mod buffers;
pub mod capacity;
pub mod certificates;
pub mod claims;
pub mod class;
pub mod election;
pub mod faults;
pub mod footprint;
pub mod gate;
mod heap;
pub mod host_memory;
mod line;
pub mod memory;
pub mod placement;
pub mod pool;
pub mod profile;
pub mod queue;
pub mod rate;
pub mod rectangles;
pub mod routing;
pub mod scaling;
pub mod slo;
pub mod swap;
pub mod tokens;
pub mod window;

pub use units::{FunctionId, InstanceId, RequestId, SlotId, Span, Time};
