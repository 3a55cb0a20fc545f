//! The contract of Knative's queue-proxy, item by item: a test's name begins with the number of the item that it checks;
//! `docs/queue-proxy-contract.md` lists them all. `differences` has the deliberate ones.
//!
//! Every test has a proxy of its own at an address of its own, so the slow ones run concurrently.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod catalogue;
mod differences;
mod drain;
mod gate;
mod heads;
mod http2;
mod limits;
mod metrics;
mod operations;
mod order;
mod plain;
mod probes;
mod readiness;
mod request_log;
mod retries;
mod startup;
mod stat;
mod streaming;
mod timeouts;
mod tls;
mod traces;
mod upgrades;

use tests::proxy::Builder;

/// Path of Weir's own queue-proxy.
const OWN: &str = env!("CARGO_BIN_EXE_queue-proxy-under-test");

/// Returns a builder of a proxy in front of the user container at `user_port`.
fn proxy(user_port: u16) -> Builder {
    Builder::new(OWN, user_port)
}
