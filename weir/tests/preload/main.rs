//! The preload library under programs that libraries of its kind are known to break: see `tests/cuda/victims`.
//!
//! Each runs on a software GPU, alone and with the library before the driver, and has to say the same; once with a core here that
//! puts nothing in the driver's place, so that a difference is the front's doing, and once with the real one in a pod of an agent.
//! So do the programs of `tests/cuda`; and programs whose agent is gone, hangs or refuses them.
//!
//! A C compiler is needed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod core;
mod limits;
mod loss;
mod node;
mod programs;
mod refusals;
mod victims;

#[path = "../cuda/build.rs"]
mod build;
#[path = "../cuda/place.rs"]
#[expect(dead_code, reason = "shared with the tests of the software GPU")]
mod place;
#[path = "../cuda/puppet.rs"]
#[expect(dead_code, reason = "shared with the tests of the software GPU")]
mod puppet;
