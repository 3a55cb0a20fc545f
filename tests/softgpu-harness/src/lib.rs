//! Software GPUs, agents and GPU programs under test.
//!
//! | module | content |
//! |---|---|
//! | [`soft_gpu_dir`] | a software GPU in a folder of its own, its ledger and its MPS daemon |
//! | [`programs`] | C programs of `tests/cuda`, built on first use |
//! | [`puppet`] | a process which executes driver calls line by line |
//! | [`node`] | an agent with pods, and programs in them under the preload library |
//! | [`pods`] | pods of a node under leases: queue-proxies and model-servers, and requests to them |
//!
//! All of it runs the `weir` program of the same build, which cargo puts beside the tests of package `weir`. A C compiler is needed.
//!
//! Deliberately absent: the software GPU itself, which is `softgpu`'s. Start reading in [`node`].
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "a test fails by panicking"
)]

pub mod node;
pub mod pods;
pub mod programs;
pub mod puppet;
pub mod soft_gpu_dir;

use std::path::PathBuf;

/// Returns the folder in which cargo has built the programs of this run: that of `weir`.
fn build_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/PROFILE/deps/TEST
    test.parent().unwrap().parent().unwrap().to_owned()
}

/// Returns the path of the program `weir`.
pub fn weir() -> PathBuf {
    let weir = build_folder().join("weir");
    assert!(
        weir.exists(),
        "{} is not built: cargo test -p weir",
        weir.display()
    );
    weir
}
