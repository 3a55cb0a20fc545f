//! Tests of the installed software GPU: `weir softgpu path` under unmodified C programs.
//!
//! | module | tests |
//! |---|---|
//! | `programs` | every program of `tests/cuda`, on whole GPUs, on slices, on two |
//! | `time` | event times and the ledger against the device's figures |
//! | `mps` | concurrent processes |
//! | `faults` | processes and servers that are killed, stopped, or misbehave |
//! | `nvml` | NVML's reports during all that |
//! | `library` | names and versions of the library |
//! | `memory` | host memory of untouched allocations |
//! | `calls` | record of driver calls |
//! | `foreign` | kernels that are not Weir's |
//! | `refusals` | messages for programs that cannot run |
//! | `models` | `model-server` on it |
//!
//! A C compiler, `nm` and `readelf` are needed: gcc brings them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod faults;
mod foreign;
mod library;
mod memory;
mod models;
mod mps;
mod nvml;
mod programs;
mod refusals;
mod time;
