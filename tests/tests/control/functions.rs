//! GpuFunctions: their status for functions which a real process of role `data` serves.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use peers::revision::Revision;
use serde_json::{Value, json};
use tests::activator::{Activator, Builder};
use tests::app::{App, ok};
use tests::control::{Cluster, Control, resource};
use tests::eventually;

use super::nodes::add_agent;
use super::{BINARY, cluster};

const FAST: [&str; 2] = ["--status-period", "200ms"];

/// Starts a process of role `data` with the certificate issued by role `control`, and lists it as a pod.
async fn data(cluster: &Cluster) -> Activator {
    let builder = Builder::new(BINARY).kubernetes(&cluster.api);
    let folder = builder.certificates();
    let secret = || {
        let secrets = resource("secrets");
        let secret = cluster
            .api
            .get(&secrets, "knative-serving", "weir-certificates")?;
        let part = |name: &str| {
            let text = secret["data"].get(name)?.clone();
            let bytes: k8s_openapi::ByteString = serde_json::from_value(text).ok()?;
            Some((name.to_owned(), bytes.0))
        };
        ["tls.crt", "tls.key", "ca.crt"]
            .into_iter()
            .map(part)
            .collect::<Option<Vec<_>>>()
    };
    eventually("role `data` has a certificate", || secret().is_some()).await;
    for (name, bytes) in secret().unwrap() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    let builder = builder
        .set("WEIR_IDENTITY", folder.display())
        .set("WEIR_CERTIFICATES", "/nonexistent");
    let activator = builder.start().await;
    list_pod(cluster, "data-0", activator.ip);
    activator
}

fn list_pod(cluster: &Cluster, name: &str, ip: IpAddr) {
    let labels = json!({"app.kubernetes.io/name": "weir-activator"});
    let object = json!({
        "metadata": {"namespace": "knative-serving", "name": name, "labels": labels},
        "status": {
            "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    cluster.api.apply(&resource("pods"), object);
}

/// Starts a pod for a revision's requests.
async fn instance() -> App {
    App::serving(
        |request| async move { ok(request.header("k-network-probe").map_or("x", |_| "queue")) },
    )
    .await
}

/// Adds a revision that Knative has initialized, with Knative's labels and one serving pod.
async fn add(cluster: &Cluster, name: &str, service: &str, annotations: &Value) -> App {
    let app = instance().await;
    cluster.add_revision(name, true);
    let mut revision = Revision::new(name);
    revision.pods = vec![SocketAddr::new([127, 0, 0, 1].into(), app.port)];
    for (resource, object) in revision.objects() {
        if resource.plural == "endpointslices" {
            cluster.api.apply(&resource, object);
        }
    }
    cluster.change("revisions", "default", name, |revision| {
        revision["metadata"]["annotations"] = annotations.clone();
        revision["metadata"]["labels"] = json!({
            "serving.knative.dev/service": service,
            "serving.knative.dev/serviceUID": format!("uid-of-{service}"),
            "serving.knative.dev/configuration": service,
            "serving.knative.dev/configurationGeneration": "1",
            "serving.knative.dev/routingState": "active",
        });
        revision["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    });
    cluster.change("podautoscalers", "default", name, |autoscaler| {
        autoscaler["status"]["desiredScale"] = json!(1);
    });
    app
}

fn control(cluster: &Cluster) -> Control {
    cluster.control_with(BINARY, "weir-control-0", &FAST)
}

fn status(cluster: &Cluster, name: &str) -> Value {
    let object = cluster.api.get(&resource("gpufunctions"), "default", name);
    object.map_or(Value::Null, |object| object["status"].clone())
}

fn condition(status: &Value, kind: &str) -> (String, String) {
    let all = status["conditions"].as_array().into_iter().flatten();
    let part = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
    all.into_iter()
        .find(|it| it["type"] == kind)
        .map(|it| (part(it, "status"), part(it, "reason")))
        .unwrap_or_default()
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn the_status_of_a_function_has_its_conditions_and_requests_in_time() {
    let cluster = cluster().await;
    let control = control(&cluster);
    let data = data(&cluster).await;
    let slo = json!({"weir.dev/slo": "10s"});
    let _app = add(&cluster, "f-00001", "f", &slo).await;
    eventually("the function is ready", || {
        let status = status(&cluster, "f");
        condition(&status, "Ready") == pair("True", "Serving") && status["instances"]["ready"] == 1
    })
    .await;
    let object = cluster
        .api
        .get(&resource("gpufunctions"), "default", "f")
        .unwrap();
    assert_eq!(
        object["metadata"]["ownerReferences"],
        json!([{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "f", "uid": "uid-of-f"}])
    );
    let said = status(&cluster, "f");
    assert_eq!(said["objective"], "10s");
    assert_eq!(
        said["variants"],
        json!([{
            "name": "f", "revision": "f-00001", "kind": "monolith", "attached": "True", "objective": "10s",
            "instances": {"wanted": 1, "ready": 1, "placed": 0},
        }])
    );
    assert_eq!(condition(&said, "Placed"), pair("True", "NoGpu"));
    assert_eq!(condition(&said, "ScalingSteered"), pair("False", "Knative"));
    assert_eq!(said["inTime"], Value::Null, "no request yet");
    let mut client = data.connect().await;
    for _ in 0..20 {
        let request = "GET / HTTP/1.1\r\nHost: f\r\nKnative-Serving-Namespace: default\r\nKnative-Serving-Revision: f-00001\r\n\r\n";
        assert_eq!(client.request(request).await.status(), 200);
    }
    eventually("the requests were in time", || {
        status(&cluster, "f")["inTime"] == json!({"fiveMinutes": "1.0000", "hour": "1.0000"})
    })
    .await;
    // Another objective for the function neither drops nor doubles its counted requests.
    let _slower = add(&cluster, "f-00002", "f", &json!({"weir.dev/slo": "1ns"})).await;
    eventually("both revisions are variants", || {
        status(&cluster, "f")["variants"].as_array().map(Vec::len) == Some(2)
    })
    .await;
    for _ in 0..20 {
        let request = "GET / HTTP/1.1\r\nHost: f\r\nKnative-Serving-Namespace: default\r\nKnative-Serving-Revision: f-00002\r\n\r\n";
        assert_eq!(client.request(request).await.status(), 200);
    }
    eventually("half of all were in time", || {
        status(&cluster, "f")["inTime"]["hour"] == "0.5000"
    })
    .await;
    cluster.delete_revision("f-00002");
    eventually("one is left", || {
        status(&cluster, "f")["variants"].as_array().map(Vec::len) == Some(1)
    })
    .await;
    assert_eq!(status(&cluster, "f")["inTime"]["hour"], "0.5000");
    // At rest only the Lease is written.
    let version = |cluster: &Cluster| {
        let object = cluster.api.get(&resource("gpufunctions"), "default", "f");
        object.unwrap()["metadata"]["resourceVersion"].clone()
    };
    let before = version(&cluster);
    let asked = cluster.api.requests().len();
    let renewals = || {
        let requests = cluster.api.requests();
        let is_renewal = |it: &&String| it.starts_with("PUT ") && it.contains("/leases/");
        requests.iter().filter(is_renewal).count()
    };
    let begin = renewals();
    eventually("the process leads for a while", || renewals() > begin + 5).await;
    assert_eq!(version(&cluster), before);
    let written: Vec<_> = cluster.api.requests().split_off(asked);
    let written = written
        .iter()
        .filter(|it| !it.starts_with("GET ") && !it.contains("/leases/"));
    assert_eq!(written.count(), 0, "{:?}", cluster.api.requests());
    // Without a process of role `data` the function is detached, and its status reports it.
    drop(data);
    eventually("the function is detached", || {
        let status = status(&cluster, "f");
        condition(&status, "Attached") == pair("False", "NoDataPodReady")
            && condition(&status, "Ready") == pair("False", "NoDataPodReady")
    })
    .await;
    drop(control);
}

#[tokio::test]
async fn a_function_of_two_services_is_owned_by_both_and_gone_with_the_last() {
    let cluster = cluster().await;
    let _control = control(&cluster);
    let _data = data(&cluster).await;
    let of = |slo: &str| json!({"weir.dev/slo": slo, "weir.dev/function": "both"});
    let _one = add(&cluster, "a-00001", "a", &of("2s")).await;
    let _two = add(&cluster, "b-00001", "b", &of("500ms")).await;
    let owners = || {
        let object = cluster
            .api
            .get(&resource("gpufunctions"), "default", "both")?;
        let owners = object["metadata"]["ownerReferences"].as_array()?.iter();
        Some(
            owners
                .map(|it| it["name"].as_str().unwrap_or_default().to_owned())
                .collect::<Vec<_>>(),
        )
    };
    eventually("both own it", || {
        owners() == Some(vec!["a".to_owned(), "b".to_owned()])
            && condition(&status(&cluster, "both"), "Ready").0 == "True"
    })
    .await;
    assert_eq!(status(&cluster, "both")["objective"], "500ms");
    // A function without a Route is reported as such.
    cluster.change("revisions", "default", "b-00001", |revision| {
        revision["metadata"]["labels"]["serving.knative.dev/routingState"] = json!("reserve");
    });
    eventually("an event reports it", || {
        let events = cluster.api.list(&resource("events"), "default");
        events
            .iter()
            .any(|event| event["reason"] == "NoRoute" && event["regarding"]["name"] == "b-00001")
    })
    .await;
    cluster.delete_revision("b-00001");
    eventually("one owns it", || owners() == Some(vec!["a".to_owned()])).await;
    cluster.opt("a-00001", false);
    eventually("the object is gone", || owners().is_none()).await;
}

#[tokio::test]
async fn the_status_of_a_gpu_function_has_the_agents_refusal_and_its_placement() {
    let cluster = cluster().await;
    let is_placed = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&is_placed);
    let agent = add_agent(&cluster, move |path| {
        if path == "/v1/slots" {
            return json!({"host_memory_bytes": 1, "slots": []});
        }
        let instance =
            json!({"namespace": "default", "revision": "f-00001", "slot": "0", "slot_lost": null});
        let refused = |namespace: &str, pod: &str| {
            json!({
                "id": "uid", "reason": "volume", "namespace": namespace, "revision": "f-00001", "pod": pod,
                "text": "slot 0: 12 of 80 GiB are free",
            })
        };
        let instances = if own.load(Ordering::Relaxed) {
            vec![instance]
        } else {
            Vec::new()
        };
        json!({"instances": instances, "refused": [refused("default", "f-1"), refused("other", "f-2")]})
    });
    let _control = control(&cluster);
    agent.await;
    let _data = data(&cluster).await;
    let gpu = json!({"weir.dev/slo": "1s", "weir.dev/gpu-memory": "40Gi"});
    let _app = add(&cluster, "f-00001", "f", &gpu).await;
    let placed = || {
        let status = status(&cluster, "f");
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let own = conditions
            .filter(|it| it["type"] == "Placed")
            .map(|it| it["message"].clone());
        (condition(&status, "Placed"), own.collect::<Vec<_>>())
    };
    let refused = json!("f-1 on node-1: slot 0: 12 of 80 GiB are free");
    eventually("the agent's refusal is reported", || {
        placed() == (pair("False", "Refused"), vec![refused.clone()])
    })
    .await;
    is_placed.store(true, Ordering::Relaxed);
    eventually("the function is placed", || {
        placed().0 == pair("True", "Placed")
    })
    .await;
    assert_eq!(status(&cluster, "f")["slots"], json!(["node-1/0"]));
}

#[tokio::test]
async fn an_ignored_annotation_is_reported_on_the_revision() {
    let cluster = cluster().await;
    let _control = control(&cluster);
    let wrong = json!({"weir.dev/slo": "1s", "weir.dev/late": "never"});
    let _app = add(&cluster, "f-00001", "f", &wrong).await;
    eventually("an event reports it", || {
        let events = cluster.api.list(&resource("events"), "default");
        events.iter().any(|event| {
            event["reason"] == "AnnotationIgnored"
                && event["note"]
                    .as_str()
                    .is_some_and(|note| note.contains("weir.dev/late=\"never\""))
        })
    })
    .await;
}

#[tokio::test]
async fn functions_of_other_managers_are_not_changed() {
    let cluster = cluster().await;
    let other = json!({"metadata": {"namespace": "default", "name": "other"}});
    cluster.api.apply(&resource("gpufunctions"), other);
    let stale = json!({"metadata": {
        "namespace": "default", "name": "stale",
        "labels": {"app.kubernetes.io/managed-by": "weir-control"},
    }});
    cluster.api.apply(&resource("gpufunctions"), stale);
    let _control = control(&cluster);
    let found = |name: &str| {
        let kind = resource("gpufunctions");
        cluster.api.get(&kind, "default", name).is_some()
    };
    eventually("the orphaned object is deleted", || !found("stale")).await;
    assert!(found("other"));
}
