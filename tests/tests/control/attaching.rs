use std::net::SocketAddr;

use serde_json::json;
use tests::control::{Cluster, OWN, Path, resource};
use tests::eventually;
use tests::metrics::Metrics;

use super::{cluster, control};

#[tokio::test]
async fn an_opted_in_revision_is_attached_to_one_pod_and_no_other_revision_is_touched() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    cluster.add_revision("in", true);
    cluster.add_revision("out", false);
    let before = cluster.api.get(&resource("endpoints"), "default", "out");
    let control = control(&cluster);
    eventually("the revision is attached", || {
        cluster.path("in") == Path::Own(vec![pod.ip])
    })
    .await;
    let slice = cluster
        .api
        .get(&resource("endpointslices"), "default", "in-weir")
        .unwrap();
    let service = cluster
        .api
        .get(&resource("services"), "default", "in")
        .unwrap();
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(
        slice["ports"],
        json!([
            {"name": "http", "port": 8012, "protocol": "TCP"},
            {"name": "https", "port": 8112, "protocol": "TCP"},
        ])
    );
    let owner = &slice["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("Service"), &service["metadata"]["uid"])
    );
    let labels = &slice["metadata"]["labels"];
    assert_eq!(labels["endpointslice.kubernetes.io/managed-by"], OWN);
    assert_eq!(cluster.path("out"), Path::Knatives);
    assert_eq!(
        cluster.api.get(&resource("endpoints"), "default", "out"),
        before
    );
    eventually("an event reports it", || {
        let events = cluster.api.list(&resource("events"), "default");
        let note = format!("requests come to activator-ext, to {}", pod.name);
        events
            .iter()
            .any(|event| event["reason"] == "Attached" && event["note"] == note)
    })
    .await;
    let metrics = Metrics::scrape(SocketAddr::new(control.ip, 9476)).await;
    assert_eq!(
        metrics.value("weir_attached", &["revision=\"in\""]),
        Some(1.0)
    );
    assert_eq!(metrics.value("weir_attached", &["revision=\"out\""]), None);
    assert_eq!(metrics.value("weir_control_leader", &[]), Some(1.0));
}

#[tokio::test]
async fn a_revision_is_knatives_until_it_is_ready_and_after_it_has_opted_out() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    cluster.add_revision("f", true);
    cluster.add_revision("g", true);
    cluster.set_initialized("f", false);
    let _control = control(&cluster);
    eventually("g is attached", || {
        cluster.path("g") == Path::Own(vec![pod.ip])
    })
    .await;
    assert_eq!(cluster.path("f"), Path::Knatives);
    cluster.set_initialized("f", true);
    eventually("f is attached", || {
        cluster.path("f") == Path::Own(vec![pod.ip])
    })
    .await;
    cluster.opt("f", false);
    eventually("f is detached", || {
        let slice = cluster
            .api
            .get(&resource("endpointslices"), "default", "f-weir");
        cluster.path("f") == Path::Knatives && slice.is_none()
    })
    .await;
    assert_eq!(cluster.path("g"), Path::Own(vec![pod.ip]));
}

#[tokio::test]
async fn a_pod_that_terminates_or_dies_is_replaced_and_without_any_the_path_is_knatives() {
    let cluster = cluster().await;
    let first = cluster.add_pod("data-0").await;
    cluster.add_revision("f", true);
    let _control = control(&cluster);
    eventually("the revision is attached", || {
        cluster.path("f") == Path::Own(vec![first.ip])
    })
    .await;
    let second = cluster.add_pod("data-1").await;
    cluster.set_pod(&first, false);
    eventually("the other pod owns it", || {
        cluster.path("f") == Path::Own(vec![second.ip])
    })
    .await;
    // Kubernetes has not noticed yet that the pod answers nothing.
    second.die();
    cluster.set_pod(&first, true);
    eventually("the first pod owns it again", || {
        cluster.path("f") == Path::Own(vec![first.ip])
    })
    .await;
    cluster.delete_pod(&first);
    eventually("the revision is detached", || {
        cluster.path("f") == Path::Knatives
    })
    .await;
    eventually("an event reports the reason", || {
        let events = cluster.api.list(&resource("events"), "default");
        let why = "requests go Knative's way: no pod of weir-activator is ready and answers";
        events
            .iter()
            .any(|event| event["reason"] == "Detached" && event["note"] == why)
    })
    .await;
}

#[tokio::test]
async fn nothing_is_attached_where_endpoints_are_not_copied_or_pods_cannot_be_addressed() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    for name in ["f", "g"] {
        cluster.add_revision(name, true);
    }
    // Without addresses there is nothing to copy.
    cluster.change("endpoints", "default", "f", |endpoints| {
        endpoints["subsets"] = json!([])
    });
    let _control = control(&cluster);
    eventually("g is attached", || {
        cluster.path("g") == Path::Own(vec![pod.ip])
    })
    .await;
    eventually("an event reports why f is not", || {
        let events = cluster.api.list(&resource("events"), "default");
        events
            .iter()
            .any(|event| event["reason"] == "EndpointsNotMirrored" && event["type"] == "Warning")
    })
    .await;
    assert_eq!(cluster.path("f"), Path::Empty);
    let metadata = json!({"namespace": "knative-serving", "name": "config-network"});
    let map = json!({"metadata": metadata, "data": {"mesh-compatibility-mode": "enabled"}});
    cluster.api.apply(&resource("configmaps"), map);
    eventually("g is detached", || cluster.path("g") == Path::Knatives).await;
}

/// Runs `activator-ext detach`. Returns its exit code, stdout and stderr.
async fn detach(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = tokio::process::Command::new(super::BINARY)
        .arg("detach")
        .args(arguments)
        .env_clear()
        .env("KUBECONFIG", cluster.kubeconfig())
        .output()
        .await
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn a_manual_detachment_stays_until_it_is_undone() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    for name in ["f", "g"] {
        cluster.add_revision(name, true);
    }
    let control = control(&cluster);
    let own = Path::Own(vec![pod.ip]);
    let are = |f: &Path, g: &Path| (cluster.path("f") == *f) && (cluster.path("g") == *g);
    eventually("both are attached", || are(&own, &own)).await;
    let detach = async |arguments: &[&str]| detach(&cluster, arguments).await;
    let (code, out, error) = detach(&["default/f"]).await;
    let said = "1 of 1 revisions were attached, and go Knative's way now\n";
    assert_eq!((code, &*out), (Some(0), said), "{error}");
    assert!(are(&Path::Knatives, &own));
    let (code, out, _) = detach(&["default/f", "--undo"]).await;
    assert_eq!(
        (code, &*out),
        (Some(0), "default.f may be attached again\n")
    );
    eventually("f is attached again", || are(&own, &own)).await;
    // No process attaches revisions now.
    control.kill();
    let (code, out, error) = detach(&["--all"]).await;
    let said = "2 of 2 revisions were attached, and go Knative's way now\n";
    assert_eq!((code, &*out), (Some(0), said), "{error}");
    assert!(are(&Path::Knatives, &Path::Knatives));
    let (code, _, error) = detach(&["default/h"]).await;
    assert_eq!(
        (code, &*error),
        (Some(1), "activator-ext: there is no revision default/h\n")
    );
    let (code, _, error) = detach(&["h"]).await;
    assert_eq!(code, Some(2));
    assert!(
        error.contains("NAMESPACE/REVISION is needed, as default/hello-00001"),
        "{error}"
    );
}

#[tokio::test]
async fn a_revision_that_cannot_be_read_does_not_keep_the_others_attached() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    for name in ["f", "g"] {
        cluster.add_revision(name, true);
    }
    let running = control(&cluster);
    let own = Path::Own(vec![pod.ip]);
    eventually("both are attached", || {
        ["f", "g"].iter().all(|name| cluster.path(name) == own)
    })
    .await;
    running.kill();
    let endpoints = "/api/v1/namespaces/default/endpoints/g";
    cluster.api.set_unreadable(Some(endpoints));
    let (code, out, error) = detach(&cluster, &["--all"]).await;
    assert_eq!((code, &*out), (Some(1), ""));
    assert!(
        error.contains("default/g") && error.contains("unreadable"),
        "{error}"
    );
    assert_eq!(cluster.path("f"), Path::Knatives);
    assert_eq!(cluster.path("g"), own);
    // The record stands, so the next process which can read the revision detaches it.
    cluster.api.set_unreadable(None);
    let _running = control(&cluster);
    eventually("g is detached", || cluster.path("g") == Path::Knatives).await;
}
