use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tests::control::{Cluster, resource};
use tests::proxy::fresh_address;
use tests::{eventually, programs};

use super::{cluster, control};

/// Adds a node with an agent for a process of role `control`. The agent answers once there is a certificate.
pub(super) fn add_agent(
    cluster: &Cluster,
    answer: impl Fn(&str) -> Value + Send + Sync + 'static,
) -> impl Future<Output = ()> {
    let empty = json!({"metadata": {"namespace": "weir-agent", "name": "weir-certificates"}});
    cluster.api.apply(&resource("secrets"), empty);
    let node = json!({"metadata": {"name": "node-1"}, "status": {"capacity": {"cpu": "2", "memory": "4Gi"}}});
    cluster.api.apply(&resource("nodes"), node);
    let ip = fresh_address();
    let pod = json!({
        "metadata": {
            "namespace": "weir-agent", "name": "weir-agent-x",
            "labels": {"app.kubernetes.io/name": "weir-agent"},
        },
        "spec": {"nodeName": "node-1"}, "status": {"podIP": ip},
    });
    cluster.api.apply(&resource("pods"), pod);
    let answer = move |target: &str| match target.split_once('?') {
        // No event has happened there.
        Some(("/v1/events", _)) => String::new(),
        _ => answer(target).to_string(),
    };
    async move { programs::serve(cluster, "weir-agent", SocketAddr::new(ip, 9470), answer).await }
}

fn offered(cluster: &Cluster) -> Value {
    let node = cluster.api.get(&resource("nodes"), "", "node-1");
    node.map(|node| node["status"]["capacity"].clone())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_node_offers_its_agents_resources_even_after_its_kubelet_has_reset_them() {
    let cluster = cluster().await;
    let seats = Arc::new(AtomicU64::new(8));
    let own = Arc::clone(&seats);
    let agent = add_agent(&cluster, move |path| {
        assert_eq!(path, "/v1/slots");
        let slots = json!([{"slot": "0", "lost": null, "seats": own.load(Ordering::Relaxed), "plan_permille": 900}]);
        json!({"host_memory_bytes": 3_u64 << 30, "slots": slots})
    });
    let _control = control(&cluster);
    agent.await;
    let expected = json!({
        "cpu": "2", "memory": "4Gi", "weir.dev/seats": "8", "weir.dev/host-memory-mib": "3072",
        "weir.dev/plan-permille": "900",
    });
    eventually("the node offers the resources", || {
        offered(&cluster) == expected
    })
    .await;
    cluster.change("nodes", "", "node-1", |node| {
        node["status"]["capacity"]["weir.dev/seats"] = json!("0");
    });
    eventually("the resources are written again", || {
        offered(&cluster) == expected
    })
    .await;
    seats.store(2, Ordering::Relaxed);
    eventually("the node follows the agent", || {
        offered(&cluster)["weir.dev/seats"] == "2"
    })
    .await;
    // On Weir's removal its resources are removed as well.
    let namespaces = resource("namespaces");
    cluster.change("namespaces", "", "weir-system", |namespace| {
        namespace["metadata"]["finalizers"] = json!(["kubernetes"]);
    });
    cluster.api.delete_as_client(&namespaces, "", "weir-system");
    let before = json!({"cpu": "2", "memory": "4Gi"});
    eventually("the resources are removed", || offered(&cluster) == before).await;
}
