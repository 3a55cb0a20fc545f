//! The contract of Knative's queue-proxy, item by item: a test's name begins with the number of the item
//! that it checks; `docs/queue-proxy-contract.md` lists them all. `differences` holds the deliberate ones.
//!
//! Every test has a proxy of its own on an address of its own, so the slow ones run side by side.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod catalogue;
mod differences;
mod drain;
mod gate;
mod heads;
mod http2;
mod limits;
mod metrics;
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

/// Weir's own binary.
const OWN: &str = env!("CARGO_BIN_EXE_queue-proxy-under-test");

/// A proxy in front of the user container at `user_port`.
fn proxy(user_port: u16) -> Builder {
    Builder::new(OWN, user_port)
}
