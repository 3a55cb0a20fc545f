//! Every decision of Weir as pure code.
//!
//! What is absent is the point: no clock, no input or output, no async, no randomness of its own, no
//! logging. Time comes in as an argument, ids are dense integers that the caller gives, and the same
//! inputs give the same outputs on every machine. The live programs and the simulator run this code.
//!
//! | module | decides | source |
//! |---|---|---|
//! | [`queue`] | in which order waiting requests start | M1.10, papers 1.4 |
//! | [`gate`] | who starts, who waits, who is refused or shed | Knative's breaker; M1.10 |
//! | [`slo`] | until when a request must be answered | design 4.2 |
//! | [`profile`] | how long a request will take | M1.10 (estimated execution) |
//! | [`class`] | which requests are expected to take equally long | M1.10 (estimated execution) |
//! | [`rate`] | how much of what asks for nothing a peer may send in a second | RFC 9113 10.5 |
//! | [`buffers`] | who may hold more of a body for a reader that is slow | design 4.1 (`limit-buffered-bytes`) |
//! | [`tokens`] | who computes when on a GPU whose SMs are shared | M4.7–M4.9, M4.17 |
//! | [`memory`] | where blocks of models lie in device memory | M2.10, papers 2.5 |
//! | [`swap`] | in what groups and order a model comes and goes | M2.5–M2.8, papers 2.6, 2.7 |
//! | [`pool`] | on which GPU of a pool a request runs, and whose model gives way | M2.1, M2.13–M2.21 |
//! | [`routing`] | which instance of a function serves which of its requests, and when | M1.13, papers 1.7; design §3 |
//! | [`rectangles`] | which pod goes to which GPU whose SMs are shared | M4.11–M4.13, M4.17, papers 4.4 |
//! | [`footprint`] | whether a GPU has the memory for a pod more | M4.15, papers 4.6 |
//! | [`attach`] | when a revision's requests come to activator-ext, and to which of its pods | design §3.1 |
//! | [`election`] | which of several processes leads | Kubernetes' leader election |
//! | [`capacity`] | what a node offers to the scheduler | design 4.10 |
//! | [`certificates`] | when certificates are renewed, and which authorities are trusted meanwhile | design 4.3 |
//! | [`window`] | how many requests of the last hour were in time | design 4.10 |
//! | [`scaling`] | how many pods of which shape a function gets; what the autoscaler is told | M4.2, M4.3, M4.10, M4.11; design 4.9 |
#![forbid(unsafe_code)]

pub mod attach;
pub mod buffers;
pub mod capacity;
pub mod certificates;
pub mod class;
pub mod election;
pub mod footprint;
pub mod gate;
mod heap;
mod line;
pub mod memory;
pub mod pool;
pub mod profile;
pub mod queue;
pub mod rate;
pub mod rectangles;
pub mod routing;
pub mod scaling;
pub mod slo;
pub mod swap;
mod time;
pub mod tokens;
pub mod window;

pub use time::{RequestId, Span, Time};
