//! Peers of Weir's programs in a cluster, for tests and the demo.
//!
//! Nothing here shares code with the programs: their messages are decoded independently.
//!
//! Deliberately absent: peers of a GPU's programs, which are `softgpu`'s. Start reading in [`api`].
#![forbid(unsafe_code)]

pub mod api;
pub mod autoscaler;
pub mod knative;
pub mod kpa;
pub mod mirroring;
pub mod network;
pub mod revision;
