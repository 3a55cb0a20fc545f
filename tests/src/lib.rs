//! The harness of the black-box tests: real processes, real sockets, byte for byte where it matters.
//!
//! | module | stands for |
//! |---|---|
//! | [`programs`] | APIs of Weir's programs, as role `control` meets them |
//! | [`proxy`] | a pod's queue-proxy: the process, with an address of its own in 127.0.0.0/8 |
//! | [`bench`](mod@bench) | loads, a user container and proxies for the benchmarks |
//! | [`activator`] | activator-ext: the process, and the cluster that it sees |
//! | [`app`] | the user container, over HTTP/1: answers, delays, lies and dies as told |
//! | [`app2`] | the user container, over HTTP/2 |
//! | [`client`] | an HTTP/1 client that sees every byte |
//! | [`client2`] | an HTTP/2 client |
//! | [`metrics`] | a page of metrics, as Prometheus reads it |
//! | [`catalogue`] | such a page held against the catalogue |
//! | [`control`] | the role `control` of activator-ext: the process, and a cluster in memory |
//! | [`collector`] | an OpenTelemetry collector |
//! | [`mutation`] | inputs that somebody has spoiled |
//! | [`tls`] | a certificate authority, and clients that trust it |

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

/// By how much later than a contract says ("within 100 ms") something may be seen here: test machines share their cores with
/// other tests and builds, and one that is held up has broken no promise. What would happen otherwise comes later than that, or
/// never.
pub const SLACK: Duration = Duration::from_secs(5);

/// How long anything that has to come is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
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
