//! Results of `activator-ext check` on a cluster without Weir, with it, and with a defect.

use std::process::Output;

use serde_json::{Value, json};
use tests::control::{Cluster, resource};
use tests::eventually;
use tokio::process::Command;

use super::{BINARY, cluster, control};

async fn check(cluster: &Cluster, arguments: &[&str]) -> Output {
    let output = Command::new(BINARY)
        .arg("check")
        .args(arguments)
        .env_clear()
        .env("KUBECONFIG", cluster.kubeconfig())
        .kill_on_drop(true)
        .output();
    output.await.unwrap()
}

/// Returns the checks in the JSON of `control check`: name, whether the check is good, and the remedy.
async fn found(cluster: &Cluster) -> Vec<(String, Value, String)> {
    let output = check(cluster, &["--json"]).await;
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = page["checks"].as_array().unwrap().iter();
    checks
        .map(|it| {
            let text = |key: &str| it[key].as_str().unwrap().to_owned();
            (text("name"), it["ok"].clone(), text("remedy"))
        })
        .collect()
}

fn good(all: &[(String, Value, String)], name: &str) -> Value {
    let one = all.iter().find(|(own, _, _)| own == name);
    one.unwrap_or_else(|| panic!("{name} is not among {all:?}"))
        .1
        .clone()
}

fn deployment(namespace: &str, name: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "labels": {"app.kubernetes.io/version": "1.23.0"}},
        "status": {"readyReplicas": 1},
    })
}

/// Adds the Deployments of Knative's programs.
fn install_knative(cluster: &Cluster) {
    for name in ["activator", "autoscaler", "controller"] {
        let object = deployment("knative-serving", name);
        cluster.api.apply(&resource("deployments"), object);
    }
}

/// Adds Weir's objects, and a pod of each program.
fn install_weir(cluster: &Cluster) {
    for (namespace, name) in [
        ("weir-system", "weir-control"),
        ("knative-serving", "weir-activator"),
    ] {
        cluster
            .api
            .apply(&resource("deployments"), deployment(namespace, name));
        cluster
            .api
            .allow_user(&format!("system:serviceaccount:{namespace}:{name}"));
    }
    let pod = json!({
        "metadata": {
            "namespace": "weir-system", "name": "weir-control-0",
            "labels": {"app.kubernetes.io/name": "weir-control"},
        },
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": "control", "image": "x:1", "imageID": "x@sha256:ab", "ready": true, "restartCount": 0,
            }],
        },
    });
    cluster.api.apply(&resource("pods"), pod);
}

#[tokio::test]
async fn before_the_installation_it_reports_what_is_missing_and_how_to_install() {
    let cluster = cluster().await;
    let output = check(&cluster, &[]).await;
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        complaint,
        "activator-ext: knative activator: there is no Deployment activator in knative-serving\n"
    );
    install_knative(&cluster);
    let output = check(&cluster, &[]).await;
    let page = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{page}");
    assert!(
        page.contains("✓ knative activator: 1.23.0, 1 ready\n"),
        "{page}"
    );
    assert!(
        page.ends_with(
            "– weir: Weir is not installed\n    → docs/install.md: kubectl apply -f manifests/rendered/kourier.yaml, or softgpu.yaml, with your images\n"
        ),
        "{page}"
    );
    let network = json!({
        "metadata": {"namespace": "knative-serving", "name": "config-network"},
        "data": {"mesh-compatibility-mode": "enabled"},
    });
    cluster.api.apply(&resource("configmaps"), network);
    assert_eq!(good(&found(&cluster).await, "network"), false);
}

#[tokio::test]
async fn after_the_installation_it_checks_programs_and_revisions() {
    let cluster = cluster().await;
    install_knative(&cluster);
    install_weir(&cluster);
    let _data = cluster.add_pod("data-0").await;
    cluster.add_revision("f", true);
    cluster.add_revision("out", false);
    let control = control(&cluster);
    let label = || {
        let endpoints = cluster.api.get(&resource("endpoints"), "default", "f");
        endpoints.is_some_and(|it| {
            it["metadata"]["labels"]["endpointslice.kubernetes.io/skip-mirror"] == "true"
        })
    };
    eventually("the revision is attached", label).await;
    let all = found(&cluster).await;
    for name in [
        "endpoints",
        "control",
        "data",
        "leader",
        "rights of control",
        "rights of data",
    ] {
        assert_eq!(good(&all, name), true, "{name}: {all:?}");
    }
    assert_eq!(good(&all, "revision default/f"), true);
    assert!(
        !all.iter()
            .any(|(name, _, _)| name == "revision default/out")
    );
    assert_eq!(good(&all, "agents"), Value::Null);
    // The API server in memory calls no webhook.
    assert_eq!(good(&all, "webhook"), false);
    assert!(
        all.iter()
            .all(|(_, ok, remedy)| *ok == true || !remedy.is_empty()),
        "{all:?}"
    );
    // An ignored annotation, and a process that no longer leads.
    cluster.change("revisions", "default", "f", |revision| {
        revision["metadata"]["annotations"]["weir.dev/late"] = json!("never");
    });
    control.kill();
    cluster.change("leases", "weir-system", "weir-control", |lease| {
        lease["spec"]["renewTime"] = json!("2026-01-01T00:00:00.000000Z");
    });
    let all = found(&cluster).await;
    assert_eq!(good(&all, "revision default/f"), false);
    assert_eq!(good(&all, "leader"), false);
    let output = check(&cluster, &["-n", "nowhere"]).await;
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("– revisions: none has opted in"), "{page}");
}

#[tokio::test]
async fn agents_mps_daemons_and_nodes_are_checked_if_agents_exist() {
    let cluster = cluster().await;
    install_knative(&cluster);
    install_weir(&cluster);
    let set_pod = |name: &str, is_ready: bool| {
        let status = if is_ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {
                "namespace": "weir-agent", "name": format!("{name}-0"), "labels": {"app.kubernetes.io/name": name},
            },
            "spec": {"nodeName": "n"},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        });
        cluster.api.apply(&resource("pods"), pod);
    };
    for name in ["weir-agent", "weir-mps"] {
        let set = json!({"metadata": {"namespace": "weir-agent", "name": name}});
        cluster.api.apply(&resource("daemonsets"), set);
        set_pod(name, true);
    }
    let node = |seats: &str| json!({"metadata": {"name": "n"}, "status": {"capacity": {"weir.dev/seats": seats}}});
    cluster.api.apply(&resource("nodes"), node("4"));
    let all = found(&cluster).await;
    for name in ["agents", "MPS daemons", "node n"] {
        assert_eq!(good(&all, name), true, "{name}: {all:?}");
    }
    set_pod("weir-mps", false);
    cluster.api.apply(&resource("nodes"), node("0"));
    let all = found(&cluster).await;
    assert_eq!(good(&all, "agents"), true);
    for name in ["MPS daemons", "node n"] {
        assert_eq!(good(&all, name), false, "{name}: {all:?}");
    }
}

#[tokio::test]
async fn without_a_cluster_it_exits_with_2() {
    let output = Command::new(BINARY)
        .args(["check"])
        .env_clear()
        .env("KUBECONFIG", "/nonexistent")
        .output();
    let output = output.await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}
