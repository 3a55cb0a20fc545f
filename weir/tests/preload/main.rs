//! The preload library under programs known to break libraries of its kind: see `tests/cuda/victims`.
//!
//! Each program runs on a software GPU, alone and with the library before the driver, and must print the same; once with a core
//! of this test that passes all calls through, so that a difference is caused by the front, and once with the real core in a pod
//! of an agent. So must the programs of `tests/cuda`, and programs with an agent which is gone, hangs or refuses them.
//! A C compiler is needed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod core;
mod limits;
mod loss;
mod programs;
mod refusals;
mod victims;
