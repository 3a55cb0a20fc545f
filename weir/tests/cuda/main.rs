//! A software GPU as its users meet it: what `weir softgpu path` installs, under C programs that know nothing of it.
//!
//! | module | what |
//! |---|---|
//! | `programs` | every program of `tests/cuda`, on whole GPUs, on slices, on two |
//! | `time` | event times and the ledger against the device's figures |
//! | `mps` | processes side by side |
//! | `faults` | processes and servers that are killed, stopped, or do what they should not |
//! | `nvml` | what NVML tells of all that |
//! | `library` | names and versions of the library |
//! | `memory` | memory that nobody touches |
//! | `refusals` | what is said of programs that cannot run |
//! | `models` | `model-server` on it |
//!
//! A C compiler, `nm` and `readelf` are needed: gcc brings them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod build;
mod faults;
mod library;
mod memory;
mod models;
mod mps;
mod nvml;
mod place;
mod programs;
mod puppet;
mod refusals;
mod time;
