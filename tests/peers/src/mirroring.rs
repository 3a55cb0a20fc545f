//! Kubernetes' controller that copies Endpoints to EndpointSlices.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::api::{ApiServer, Resource};

/// Copies the Endpoints of an API server to slices after a lag, except those labelled `skip-mirror`. Stops when dropped.
#[derive(Debug)]
pub struct Mirroring(JoinHandle<()>);

impl Mirroring {
    /// Starts the controller with this lag.
    #[must_use]
    pub fn start(api: Arc<ApiServer>, lag: Duration) -> Self {
        Self(tokio::spawn(async move {
            let mut version = 0;
            loop {
                tokio::time::sleep(lag).await;
                copy(&api);
                version = api.changed(version).await;
            }
        }))
    }
}

impl Drop for Mirroring {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn copy(api: &ApiServer) {
    let slices = Resource::new("discovery.k8s.io/v1", "endpointslices");
    let all = api.list(&Resource::new("v1", "endpoints"), "");
    for endpoints in &all {
        let metadata = &endpoints["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default();
        let (namespace, service) = (text("namespace"), text("name"));
        let name = format!("{service}-copy");
        let is_skipped = metadata["labels"]["endpointslice.kubernetes.io/skip-mirror"] == "true";
        let wanted = copied(endpoints, &name).filter(|_| !is_skipped);
        let known = api.get(&slices, namespace, &name);
        match (wanted, known) {
            (None, Some(_)) => api.delete(&slices, namespace, &name),
            (Some(wanted), None) => api.apply(&slices, wanted),
            (Some(wanted), Some(known)) if wanted["endpoints"] != known["endpoints"] => {
                api.apply(&slices, wanted);
            }
            _ => {}
        }
    }
    // Slices with deleted Endpoints.
    for slice in api.list(&slices, "") {
        let metadata = &slice["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default();
        let is_copy = metadata["labels"]["endpointslice.kubernetes.io/managed-by"] == MANAGER;
        let service = text("name").strip_suffix("-copy").unwrap_or_default();
        let has_source = all.iter().any(|endpoints| {
            endpoints["metadata"]["name"] == service
                && endpoints["metadata"]["namespace"] == metadata["namespace"]
        });
        if is_copy && !has_source {
            api.delete(&slices, text("namespace"), text("name"));
        }
    }
}

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";

/// Returns the slice of the first subset; `None` if it has no addresses.
fn copied(endpoints: &Value, name: &str) -> Option<Value> {
    let metadata = &endpoints["metadata"];
    let subset = &endpoints["subsets"][0];
    let addresses = subset["addresses"].as_array()?.iter();
    let addresses: Vec<_> = addresses
        .map(|address| json!({"addresses": [address["ip"]], "conditions": {"ready": true}}))
        .collect();
    let mut labels = metadata["labels"].clone();
    labels["kubernetes.io/service-name"] = metadata["name"].clone();
    labels["endpointslice.kubernetes.io/managed-by"] = json!(MANAGER);
    Some(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": metadata["namespace"], "name": name, "labels": labels},
        "addressType": "IPv4",
        "ports": subset["ports"],
        "endpoints": addresses,
    }))
}
