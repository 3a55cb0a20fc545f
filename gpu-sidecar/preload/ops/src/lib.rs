//! Operations of the preload library on calls of the CUDA driver API.
//!
//! A wrapper of a driver function translates the program's arguments, calls one operation, and translates its [`Outcome`]: the
//! operation is done, the call is passed to the driver for a [`Reason`], or it fails with a CUDA error. Operations reach the driver
//! through [`Driver`], and clock, threads and agent through [`System`]; the state they change is that of `preload-state`.
//!
//! | module | contents |
//! |---|---|
//! | [`launch`] | kernels and graphs, at the gate |
//! | [`graphs`], [`tensor_maps`] | what graphs use; descriptors of tensors |
//! | [`touch`] | copies, memsets and other uses of memory, which wait while it is not on the device |
//! | [`waits`], [`capture`], [`capture_mode`], [`streams`] | host waits and other stream operations; captures; measurement by events |
//! | [`gate`], [`watch`] | return of a token; the watch thread |
//! | [`claims`] | claims of device memory |
//! | [`memory`] | device memory within the pod's limit |
//! | [`nvml`] | the pod's view of NVML |
//! | [`lifetime`] | destruction of contexts and streams |
//!
//! Deliberately absent: pointers of the program, symbols and system calls, which are `weir-preload-core`'s. Start reading in [`launch`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod capture;
pub mod capture_mode;
pub mod claims;
pub mod cuda;
mod events;
mod failures;
#[cfg(test)]
mod fake;
pub mod gate;
pub mod graphs;
pub mod launch;
pub mod lifetime;
pub mod memory;
pub mod nvml;
mod outcome;
mod platform;
pub mod residency;
pub mod streams;
pub mod tensor_maps;
pub mod touch;
pub mod waits;
pub mod watch;

pub use outcome::{Call, CallFor, Outcome, Reason};
pub use platform::{Driver, Platform, System};
