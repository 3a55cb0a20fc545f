use std::time::Duration;

use peers::api::{ApiServer, Resource};
use peers::revision::Revision;
use tests::PATIENCE;
use tests::activator::{Activator, Builder};
use tests::app::{App, ok};

use crate::{activator, at, get};

/// Starts a pod that answers with its name.
pub(crate) async fn named(name: &'static str) -> App {
    App::serving(move |request| async move {
        ok(request.header("k-network-probe").map_or(name, |_| "queue"))
    })
    .await
}

fn apply(api: &ApiServer, revision: &Revision) {
    for (resource, object) in revision.objects() {
        api.apply(&resource, object);
    }
}

fn remove_slice(api: &ApiServer, number: usize) {
    let slices = Resource::new("discovery.k8s.io/v1", "endpointslices");
    api.delete(&slices, "default", &format!("f-00001-private-{number}"));
}

fn reading(api: &ApiServer) -> Builder {
    activator().kubernetes(api)
}

async fn answers(activator: &Activator, expected: &str) -> bool {
    let mut client = activator.connect().await;
    client.request(get("f-00001", "/")).await.text() == expected
}

#[tokio::test]
async fn revisions_and_their_pods_come_from_the_api() {
    let api = ApiServer::start().await;
    let (one, two) = (named("one").await, named("two").await);
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&one)];
    apply(&api, &revision);
    let activator = reading(&api).start().await;
    activator.has_instances(1).await;
    assert!(answers(&activator, "one").await);
    revision.pods.push(at(&two));
    apply(&api, &revision);
    activator.has_instances(2).await;
    remove_slice(&api, 0);
    activator.has_instances(1).await;
    assert!(answers(&activator, "two").await);
    let revisions = Resource::new("serving.knative.dev/v1", "revisions");
    api.delete(&revisions, "default", "f-00001");
    activator
        .has("weir_revisions", &[], |value| value == 0.0)
        .await;
    // It only reads, and only what it needs.
    for request in api.requests() {
        let is_expected = [
            "/apis/serving.knative.dev/v1/revisions?",
            "/apis/discovery.k8s.io/v1/endpointslices?",
            "/api/v1/namespaces/knative-serving/configmaps?",
        ]
        .iter()
        .any(|path| request.starts_with(&format!("GET {path}")));
        assert!(is_expected, "{request}");
    }
}

#[tokio::test]
async fn a_revision_with_a_shortened_service_name_has_its_pods() {
    let api = ApiServer::start().await;
    let pod = named("pod").await;
    let name = format!("{}-00001", "f".repeat(57));
    let mut revision = Revision::new(&name);
    revision.pods = vec![at(&pod)];
    apply(&api, &revision);
    let activator = reading(&api).start().await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    assert_eq!(client.request(get(&name, "/")).await.text(), "pod");
}

#[tokio::test]
async fn before_both_lists_arrive_it_is_unready_and_passes_requests_on() {
    let api = ApiServer::start().await;
    api.set_failing(true);
    let knative = App::saying("knative").await;
    let pod = named("pod").await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&pod)];
    apply(&api, &revision);
    let activator = reading(&api)
        .arguments(&["--pass-to", &at(&knative).to_string()])
        .start()
        .await;
    let probe = "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: kube-probe/1.33\r\n\r\n";
    let mut client = activator.connect().await;
    let answer = client.request(probe).await;
    assert_eq!(answer.status(), 500);
    assert!(answer.text().contains("not complete"), "{}", answer.text());
    assert!(answers(&activator, "knative").await);
    let labels = ["reason=\"view-incomplete\""];
    activator
        .has("weir_passed_through_total", &labels, |value| value == 1.0)
        .await;
    activator
        .has("weir_view_failures_total", &["unreachable"], |value| {
            value >= 1.0
        })
        .await;
    api.set_failing(false);
    activator.has_instances(1).await;
    assert_eq!(client.request(probe).await.status(), 200);
    assert!(answers(&activator, "pod").await);
}

#[tokio::test]
async fn during_an_outage_of_the_api_the_last_state_is_used_and_then_listed_anew() {
    let api = ApiServer::start().await;
    let (one, two) = (named("one").await, named("two").await);
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&one)];
    apply(&api, &revision);
    let activator = reading(&api).start().await;
    activator.has_instances(1).await;
    api.set_failing(true);
    api.end_watches();
    activator
        .has("weir_view_failures_total", &["unreachable"], |value| {
            value >= 1.0
        })
        .await;
    assert!(answers(&activator, "one").await);
    revision.pods = vec![at(&two)];
    apply(&api, &revision);
    // The version of its last watch is dropped meanwhile.
    api.compact();
    assert!(answers(&activator, "one").await);
    api.set_failing(false);
    let begin = tokio::time::Instant::now();
    while !answers(&activator, "two").await {
        assert!(begin.elapsed() < PATIENCE, "{}", activator.stderr());
    }
}

#[tokio::test]
async fn an_unusable_object_keeps_its_last_state() {
    let api = ApiServer::start().await;
    let pod = named("pod").await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&pod)];
    apply(&api, &revision);
    let activator = reading(&api).start().await;
    activator.has_instances(1).await;
    let (slices, mut slice) = revision.objects().pop().unwrap();
    slice["endpoints"][0]["addresses"][0] = "10.0.0.256".into();
    api.apply(&slices, slice);
    activator
        .has("weir_view_failures_total", &["unusable"], |value| {
            value == 1.0
        })
        .await;
    assert!(answers(&activator, "pod").await);
}

#[tokio::test]
async fn empty_lists_may_be_null() {
    let api = ApiServer::start().await;
    let pod = named("pod").await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&pod)];
    apply(&api, &revision);
    let (slices, mut slice) = revision.objects().pop().unwrap();
    // The API writes a slice of a Service without pods like this.
    (slice["endpoints"], slice["ports"]) = (serde_json::Value::Null, serde_json::Value::Null);
    slice["metadata"]["name"] = "f-00001-private-empty".into();
    api.apply(&slices, slice);
    let activator = reading(&api).start().await;
    activator.has_instances(1).await;
    let unusable = activator
        .metrics()
        .await
        .value("weir_view_failures_total", &["unusable"]);
    assert_eq!(unusable, Some(0.0), "{}", activator.stderr());
}

#[tokio::test]
async fn a_lagging_api_sends_no_request_to_a_deleted_pod() {
    let api = ApiServer::start().await;
    let (gone, stays) = (named("gone").await, named("stays").await);
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&gone), at(&stays)];
    apply(&api, &revision);
    let activator = reading(&api).start().await;
    activator.has_instances(2).await;
    api.set_lag(Duration::from_secs(30));
    remove_slice(&api, 0);
    drop(gone);
    for _ in 0..20 {
        assert!(answers(&activator, "stays").await);
    }
}

#[tokio::test]
async fn without_an_api_it_exits_with_a_one_line_error() {
    let (status, stderr) = activator().without_manifests().run_to_end(PATIENCE).await;
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let expected = "activator-ext: no Kubernetes API is known, in the cluster or by KUBECONFIG: ";
    assert!(stderr.starts_with(expected), "{stderr}");
}
