//! What Weir's programs talk to in a cluster, for tests and the demo.
//!
//! Nothing here shares code with the programs: what they send is decoded as a stranger would.
#![forbid(unsafe_code)]

pub mod api;
pub mod autoscaler;
pub mod knative;
pub mod kpa;
pub mod mirroring;
pub mod network;
pub mod revision;
