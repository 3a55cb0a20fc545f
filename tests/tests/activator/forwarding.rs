use std::time::Duration;

use peers::revision::Revision;
use tests::app::{App, ok};
use tests::app2::App2;
use tests::client2::{Client2, empty, full};

use crate::{Pod, activator, at, echoing, get};

#[tokio::test]
async fn an_answer_reports_how_long_the_request_was_held() {
    let app = echoing().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    let answer = client.request(get("f-00001", "/host")).await;
    let mut timings = answer.values("server-timing");
    assert!(timings.any(|it| it.starts_with("hold;dur=")));
}

#[tokio::test]
async fn a_pods_queue_proxy_gets_what_it_expects_of_an_activator() {
    let app = echoing().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    let lines = "Knative-Serving-Namespace: default\r\nKnative-Serving-Revision: f-00001\r\nWeir-Budget-Ms: \
                 5000\r\nWeir-Held-Us: 700\r\nWeir-Other: 1\r\nK-Network-Hash: stray\r\n";
    assert_eq!(client.get_with("/", lines).await.status(), 200);
    let seen = app.log.last();
    assert_eq!(seen.header("k-proxy-request"), Some("activator"));
    assert_eq!(seen.header("k-original-host"), Some("test"));
    assert_eq!(seen.header("host"), Some(&*at(&app).to_string()));
    assert_eq!(seen.header("k-network-hash"), None);
    assert_eq!(seen.header("weir-other"), None);
    let number = |name: &str| seen.header(name).unwrap().parse::<u64>().unwrap();
    assert!((4_000..=5_000).contains(&number("weir-budget-ms")));
    assert!((700..1_000_000).contains(&number("weir-held-us")));
}

#[tokio::test]
async fn a_cluster_local_host_names_the_revision_as_well() {
    let app = echoing().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&app)];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    let host = "f-00001.default.svc.cluster.local";
    let request = format!("GET /k-original-host HTTP/1.1\r\nHost: {host}:80\r\n\r\n");
    assert_eq!(client.request(request).await.text(), format!("{host}:80"));
}

#[tokio::test]
async fn requests_of_other_revisions_go_unchanged_to_knatives_activator() {
    let knative = App::saying("knative").await;
    let pod = echoing().await;
    let mut plain = Revision::new("plain-00001");
    plain.annotations.clear();
    plain.pods = vec![at(&pod)];
    let activator = activator()
        .revision(&plain)
        .arguments(&["--pass-to", &at(&knative).to_string()])
        .start()
        .await;
    for (revision, reason) in [
        ("plain-00001", "not-opted-in"),
        ("other", "unknown-revision"),
    ] {
        let mut client = activator.connect().await;
        let answer = client.request(get(revision, "/x")).await;
        assert_eq!(answer.text(), "knative");
        let seen = knative.log.last();
        assert_eq!(seen.header("host"), Some("service.default.example.com"));
        assert_eq!(seen.header("knative-serving-revision"), Some(revision));
        assert_eq!(seen.header("x-forwarded-for"), None);
        assert_eq!(seen.header("k-proxy-request"), None);
        let metrics = activator.metrics().await;
        let label = format!("reason=\"{reason}\"");
        assert_eq!(
            metrics.value("weir_passed_through_total", &[&label]),
            Some(1.0)
        );
    }
    let metrics = activator.metrics().await;
    assert!(
        metrics
            .series("weir_function_requests_total", &[])
            .is_empty()
    );
}

#[tokio::test]
async fn a_tagged_request_stays_with_its_revision() {
    let knative = App::saying("knative").await;
    let pod = echoing().await;
    let mut one = Revision::new("f-00001").annotate("weir.dev/function", "f");
    one.pods = vec![at(&pod)];
    let activator = activator()
        .revision(&one)
        .arguments(&["--pass-to", &at(&knative).to_string()])
        .start()
        .await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    let tagged = get("f-00001", "/k-proxy-request")
        .replace("\r\n\r\n", "\r\nKnative-Serving-Tag: canary\r\n\r\n");
    assert_eq!(client.request(&tagged).await.text(), "activator");
    let other = Revision::new("f-00002").annotate("weir.dev/function", "f");
    activator.set_revision(&other);
    activator
        .has("weir_revisions", &[], |value| value == 2.0)
        .await;
    assert_eq!(client.request(&tagged).await.text(), "knative");
    let labels = ["reason=\"tagged\""];
    let is_one = |value| value == 1.0;
    activator
        .has("weir_passed_through_total", &labels, is_one)
        .await;
    let untagged = client.request(get("f-00001", "/k-proxy-request")).await;
    assert_eq!(untagged.text(), "activator");
}

#[tokio::test]
async fn without_another_activator_the_error_states_its_cause() {
    let mut plain = Revision::new("plain-00001");
    plain.annotations.clear();
    let activator = activator().revision(&plain).start().await;
    let mut client = activator.connect().await;
    let answer = client.request(get("plain-00001", "/")).await;
    assert_eq!(answer.status(), 503);
    let expected =
        "the revision has no annotation of Weir; no other activator can be reached (--pass-to)\n";
    assert_eq!(answer.text(), expected);
}

#[tokio::test]
async fn without_another_activator_an_unknown_revision_is_404() {
    let activator = activator().start().await;
    let mut client = activator.connect().await;
    let answer = client.request(get("none", "/")).await;
    assert_eq!(answer.status(), 404);
    assert!(answer.text().starts_with("Error getting active endpoint: "));
}

#[tokio::test]
async fn a_disabled_activator_passes_everything_on() {
    let knative = App::saying("knative").await;
    let pod = echoing().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&pod)];
    let activator = activator()
        .revision(&revision)
        .set("WEIR_DISABLED", "true")
        .arguments(&["--pass-to", &at(&knative).to_string()])
        .start()
        .await;
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/")).await.text(), "knative");
}

#[tokio::test]
async fn http2_is_forwarded_as_http2() {
    let pod = App2::serving(|request| async move {
        http::Response::new(full(format!("{:?}", request.version())))
    })
    .await;
    let proxy = tests::proxy::Builder::new(crate::QUEUE_PROXY, pod.port)
        .start()
        .await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![proxy.address()];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut client = Client2::connect(activator.address()).await;
    let request = client
        .builder("GET", "/")
        .header("knative-serving-namespace", "default")
        .header("knative-serving-revision", "f-00001")
        .body(empty())
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let (_, body, _) = tests::client2::whole(response).await.unwrap();
    assert_eq!(&body[..], b"HTTP/2.0");
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_504_with_knatives_text() {
    let pod = Pod::with(App::silent().await).await;
    let mut revision = Revision::new("f-00001");
    revision.timeout_secs = 1;
    revision.pods = vec![pod.address()];
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    let answer = client.request(get("f-00001", "/")).await;
    assert_eq!(
        (answer.status(), answer.text()),
        (504, "activator request timeout".to_owned())
    );
}

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways() {
    let app = App::raw(|mut connection| async move {
        while let Some(request) = connection.request().await {
            if request.header("upgrade").is_none() {
                connection.write(ok("queue")).await;
                continue;
            }
            connection
                .write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
                .await;
            loop {
                let bytes = connection.read().await;
                if bytes.is_empty() {
                    return;
                }
                connection.write(bytes).await;
            }
        }
    })
    .await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&app)];
    // That limit ends with the 101, and does not cut a tunnel which is silent at first.
    revision.response_start_timeout_secs = 1;
    let activator = activator().revision(&revision).start().await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    let head = get("f-00001", "/").replace(
        "\r\n\r\n",
        "\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
    );
    client.send(head).await;
    assert_eq!(client.head().await.status(), 101);
    let silent = client.rest_within(Duration::from_millis(1_300)).await;
    assert!(silent.is_empty());
    client.send("over there").await;
    assert_eq!(client.bytes(10).await, b"over there");
    // A tunnel holds its place: another request waits until the tunnel ends.
    let mut other = activator.connect().await;
    other.send(get("f-00001", "/x")).await;
    assert!(
        other
            .rest_within(Duration::from_millis(300))
            .await
            .is_empty()
    );
    drop(client);
    assert_eq!(other.response().await.status(), 200);
}
