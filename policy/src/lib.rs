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
//! | [`tokens`] | who computes when on a GPU whose SMs are shared | M4.7–M4.9, M4.17 |
//! | [`pool`] | on which GPU of a pool a request runs, and whose model gives way | M2.1, M2.13–M2.21 |
//! | [`scaling`] | what the autoscaler is told of requests that were shed | design 4.9 |
#![forbid(unsafe_code)]

pub mod class;
pub mod gate;
mod heap;
pub mod pool;
pub mod profile;
pub mod queue;
pub mod scaling;
pub mod slo;
mod time;
pub mod tokens;

pub use time::{RequestId, Span, Time};
