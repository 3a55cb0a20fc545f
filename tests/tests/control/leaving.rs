use std::time::Duration;

use peers::api::Fault;
use serde_json::{Value, json};
use tests::control::{Cluster, Path, resource};
use tests::{PATIENCE, SLACK, eventually};
use tokio::time::Instant;

use super::{cluster, control};

const KEPT: [(&str, &str); 6] = [
    ("deployments", "weir-system"),
    ("serviceaccounts", "weir-system"),
    ("roles", "weir-system"),
    ("rolebindings", "weir-system"),
    ("clusterroles", ""),
    ("clusterrolebindings", ""),
];

/// Creates the objects with Weir's finalizer.
fn install(cluster: &Cluster) {
    for (plural, namespace) in KEPT {
        let mut object = json!({"metadata": {
            "name": "weir-control",
            "labels": {"app.kubernetes.io/part-of": "weir"},
            "finalizers": ["other.dev/kept", "weir.dev/detach"],
        }});
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        cluster.api.apply(&resource(plural), object);
    }
}

fn finalizers(cluster: &Cluster, (plural, namespace): (&str, &str)) -> Value {
    let object = cluster
        .api
        .get(&resource(plural), namespace, "weir-control");
    object.map_or(Value::Null, |object| {
        object["metadata"]["finalizers"].clone()
    })
}

/// The bound is 10 s for 100 revisions.
#[tokio::test]
async fn a_plain_delete_detaches_a_hundred_revisions_before_finalizers_are_removed() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    let names: Vec<_> = (0..100).map(|number| format!("f{number}")).collect();
    for name in &names {
        cluster.add_revision(name, true);
    }
    install(&cluster);
    let mut control = control(&cluster);
    let own = Path::Own(vec![pod.ip]);
    let are = |path: &Path| names.iter().all(|name| cluster.path(name) == *path);
    eventually("all are attached", || are(&own)).await;
    for (plural, namespace) in KEPT {
        assert!(
            cluster
                .api
                .delete_as_client(&resource(plural), namespace, "weir-control")
        );
    }
    // As when its pod is deleted with all the other objects.
    control.terminate();
    let begin = Instant::now();
    while finalizers(&cluster, KEPT[0]) != json!(["other.dev/kept"]) {
        assert!(begin.elapsed() < PATIENCE, "{}", control.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(10) + SLACK, "{took:?}");
    assert!(are(&Path::Knatives));
    for object in KEPT {
        eventually("each finalizer is removed", || {
            finalizers(&cluster, object) == json!(["other.dev/kept"])
        })
        .await;
    }
    assert_eq!(
        control.exit_code(PATIENCE).await,
        Some(0),
        "{}",
        control.log()
    );
    let left = cluster.api.list(&resource("endpoints"), "");
    let skip =
        |it: &Value| !it["metadata"]["labels"]["endpointslice.kubernetes.io/skip-mirror"].is_null();
    assert!(!left.iter().any(skip));
}

/// A namespace in deletion removes the Lease at once and admits no other: 404 and refusals from then on. The revisions take
/// longer than the leader's term.
#[tokio::test]
async fn revisions_are_detached_although_the_lease_was_deleted_with_its_namespace() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    cluster.add_revision("f", true);
    install(&cluster);
    let mut controls =
        ["weir-control-0", "weir-control-1"].map(|name| cluster.control(super::BINARY, name));
    eventually("the revision is attached", || {
        cluster.path("f") == Path::Own(vec![pod.ip])
    })
    .await;
    let begin = Instant::now();
    cluster.api.set_faults(move |write| {
        let is_late = begin.elapsed() < Duration::from_secs(8);
        if write.contains("/leases") || is_late {
            Fault::Conflict
        } else {
            Fault::None
        }
    });
    cluster
        .api
        .delete(&resource("leases"), "weir-system", "weir-control");
    for (plural, namespace) in KEPT {
        cluster
            .api
            .delete_as_client(&resource(plural), namespace, "weir-control");
    }
    for control in &controls {
        control.terminate();
    }
    for object in KEPT {
        eventually("each finalizer is removed", || {
            finalizers(&cluster, object) == json!(["other.dev/kept"])
        })
        .await;
    }
    assert_eq!(cluster.path("f"), Path::Knatives);
    for control in &mut controls {
        let code = control.exit_code(PATIENCE).await;
        assert_eq!(code, Some(0), "{}", control.log());
    }
}

#[tokio::test]
async fn a_terminating_process_releases_the_lease_and_leaves_all_attached() {
    let cluster = cluster().await;
    let pod = cluster.add_pod("data-0").await;
    cluster.add_revision("f", true);
    install(&cluster);
    let mut first = control(&cluster);
    eventually("the revision is attached", || {
        cluster.path("f") == Path::Own(vec![pod.ip])
    })
    .await;
    let _second = cluster.control(super::BINARY, "weir-control-1");
    first.terminate();
    assert_eq!(first.exit_code(PATIENCE).await, Some(0), "{}", first.log());
    eventually("the other one leads", || {
        cluster.leader().as_deref() == Some("weir-control-1")
    })
    .await;
    assert_eq!(cluster.path("f"), Path::Own(vec![pod.ip]));
    cluster.opt("f", false);
    eventually("the revision is detached", || {
        cluster.path("f") == Path::Knatives
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_loses_its_lease_ends() {
    let cluster = cluster().await;
    let mut control = control(&cluster);
    // By its own log: on a slow machine the answer to its write may be late, and it then follows the other process.
    eventually("the process leads", || {
        control.log().contains("this process leads")
    })
    .await;
    cluster.change("leases", "weir-system", "weir-control", |lease| {
        lease["spec"]["holderIdentity"] = json!("another");
    });
    assert_eq!(control.exit_code(PATIENCE).await, Some(1));
    assert!(
        control.log().contains("the lease is lost"),
        "{}",
        control.log()
    );
}
