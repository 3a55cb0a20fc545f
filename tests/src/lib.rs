//! The harness of the black-box tests: real processes, real sockets, byte for byte where it matters.
//!
//! | module | stands for |
//! |---|---|
//! | [`proxy`] | a pod's queue-proxy: the process, with an address of its own in 127.0.0.0/8 |
//! | [`app`] | the user container, over HTTP/1: answers, delays, lies and dies as told |
//! | [`app2`] | the user container, over HTTP/2 |
//! | [`client`] | an HTTP/1 client that sees every byte |
//! | [`client2`] | an HTTP/2 client |
//! | [`metrics`] | a page of metrics, as Prometheus reads it |
//! | [`collector`] | an OpenTelemetry collector |
//! | [`mutation`] | inputs that somebody has spoiled |
//! | [`tls`] | a certificate authority, and clients that trust it |

pub mod app;
pub mod app2;
pub mod client;
pub mod client2;
pub mod collector;
pub mod message;
pub mod metrics;
pub mod mutation;
pub mod proxy;
pub mod tls;

use std::time::Duration;

/// What a bound in a contract ("within 100 ms") is stretched by here: test machines share their cores with
/// other tests, and a wake-up may come late.
pub const SLACK: Duration = Duration::from_millis(400);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within ten seconds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = tokio::time::Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(10), "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
