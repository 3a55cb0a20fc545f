//! activator-ext, role `control`: puts role `data` into the path of revisions, and removes it again, whatever happens meanwhile.
//!
//! The API server is one in memory, the pods of role `data` only answer probes, and Kubernetes is simulated by the controller
//! that copies Endpoints.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod attaching;
mod catalogue;
mod chaos;
mod check;
mod functions;
mod leaving;
mod nodes;

use std::time::Duration;

use tests::control::{Cluster, Control};

const BINARY: &str = env!("CARGO_BIN_EXE_activator-ext-under-test");
/// Delay after which Endpoints are copied.
const LAG: Duration = Duration::from_millis(30);

async fn cluster() -> Cluster {
    Cluster::start(LAG).await
}

fn control(cluster: &Cluster) -> Control {
    cluster.control(BINARY, "weir-control-0")
}
