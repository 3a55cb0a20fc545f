//! The harness of the black-box tests: real processes, real sockets, byte for byte where it matters.
//!
//! | module | contents |
//! |---|---|
//! | [`programs`] | APIs of Weir's programs, as role `control` sees them |
//! | [`proxy`] | a pod's queue-proxy: the process, with an address of its own in 127.0.0.0/8 |
//! | [`bench`](mod@bench) | loads, a user container and proxies for the benchmarks |
//! | [`activator`] | activator-ext: the process, and the cluster that it sees |
//! | [`app`] | the user container over HTTP/1, with scripted answers, delays and faults |
//! | [`app2`] | the user container, over HTTP/2 |
//! | [`client`] | an HTTP/1 client with control over every byte |
//! | [`client2`] | an HTTP/2 client |
//! | [`metrics`] | a page of metrics, as Prometheus reads it |
//! | [`catalogue`] | comparison of such a page with the catalogue |
//! | [`control`] | the role `control` of activator-ext: the process, and a cluster in memory |
//! | [`collector`] | an OpenTelemetry collector |
//! | [`mutation`] | randomly corrupted inputs |
//! | [`tls`] | a certificate authority, and clients that trust it |
//!
//! Deliberately absent: access to the inside of programs under test; a test sees what clients, kubelets and applications see. Start
//! reading in [`proxy`].

pub mod activator;
pub mod app;
pub mod app2;
pub mod bench;
pub mod catalogue;
pub mod client;
pub mod client2;
pub mod collector;
pub mod control;
pub mod message;
pub mod metrics;
pub mod mutation;
pub mod procfs;
pub mod programs;
pub mod proxy;
pub mod tls;

use std::time::Duration;

/// Tolerance beyond a contract's bound (as in "within 100 ms"): test machines share their cores with other tests and builds, and
/// a program which is delayed by them violates no contract. A real violation takes longer than that, or forever.
pub const SLACK: Duration = Duration::from_secs(5);

/// Longest wait for any condition.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `condition` holds.
///
/// # Panics
/// If it does not within [`PATIENCE`].
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = tokio::time::Instant::now();
    while !condition() {
        assert!(
            begin.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
