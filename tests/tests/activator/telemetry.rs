use peers::revision::Revision;
use tests::activator::Activator;
use tests::app::App;
use tests::collector::Collector;
use tests::eventually;

use crate::{activator, at, echoing, get};

#[tokio::test]
async fn knatives_instruments_and_the_request_log_follow_the_configuration() {
    let pod = echoing().await;
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(&pod)];
    let config = r#"{"requestMetrics":{"protocol":"prometheus"},
        "enableRequestLog":true,"requestLogTemplate":"{{.Revision.Name}} {{.Request.Method}} {{.Response.Code}}"}"#;
    let activator = activator()
        .revision(&revision)
        .set("OBSERVABILITY_CONFIG", config)
        .start()
        .await;
    activator.has_instances(1).await;
    let mut client = activator.connect().await;
    assert_eq!(client.request(get("f-00001", "/host")).await.status(), 200);
    let is_one = |value| value == 1.0;
    let labels = ["http_response_status_code=\"200\""];
    activator
        .has(
            "http_server_request_duration_seconds_count",
            &labels,
            is_one,
        )
        .await;
    activator
        .has(
            "http_client_request_duration_seconds_count",
            &labels,
            is_one,
        )
        .await;
    let metrics = activator.metrics().await;
    for name in ["concurrency", "queued", "active"] {
        let name = format!("kn_revision_request_{name}");
        let own = [
            "kn_revision_name=\"f-00001\"",
            "k8s_namespace_name=\"default\"",
        ];
        assert_eq!(metrics.value(&name, &own), Some(0.0), "{}", metrics.text());
    }
    let line = "f-00001 GET 200";
    eventually("a line", || {
        activator.stdout().lines().any(|own| own == line)
    })
    .await;
}

/// Starts role `data` in front of this pod of revision `f-00001`; it exports spans to the collector at this sampling rate.
async fn tracing(collector: &Collector, pod: &App, rate: f64) -> Activator {
    let mut revision = Revision::new("f-00001");
    revision.pods = vec![at(pod)];
    let config = format!(
        r#"{{"tracing":{{"protocol":"http/protobuf","endpoint":"http://127.0.0.1:{}/v1/traces","samplingRate":{rate}}}}}"#,
        collector.port
    );
    let activator = activator()
        .revision(&revision)
        .set("OBSERVABILITY_CONFIG", config)
        .set("OTEL_BSP_SCHEDULE_DELAY", "50")
        .start()
        .await;
    activator.has_instances(1).await;
    activator
}

#[tokio::test]
async fn spans_are_exported_and_propagated_with_the_request() {
    let collector = Collector::http().await;
    let pod = echoing().await;
    let activator = tracing(&collector, &pod, 1.0).await;
    let mut client = activator.connect().await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let head = get("f-00001", "/traceparent")
        .replace("\r\n\r\n", &format!("\r\nTraceparent: {parent}\r\n\r\n"));
    let answer = client.request(head).await.text();
    assert!(
        answer.starts_with("00-0af7651916cd43dd8448eb211c80319c-"),
        "{answer}"
    );
    assert_ne!(answer, parent);
    eventually("spans", || !collector.received("/v1/traces").is_empty()).await;
}

/// At a rate between 0 and 1 the sampling flag of `traceparent` decides; at 0 and 1 Knative's rule ignores it.
#[tokio::test]
async fn an_unsampled_trace_stays_unsampled_and_exports_nothing() {
    let collector = Collector::http().await;
    let pod = echoing().await;
    let activator = tracing(&collector, &pod, 0.5).await;
    let mut client = activator.connect().await;
    for (trace, flag) in [("0", "00"), ("1", "01")] {
        for _ in 0..8 {
            let trace = trace.repeat(31) + "7";
            let head = get("f-00001", "/traceparent").replace(
                "\r\n\r\n",
                &format!("\r\nTraceparent: 00-{trace}-b7ad6b7169203331-{flag}\r\n\r\n"),
            );
            let answer = client.request(head).await.text();
            assert!(answer.ends_with(&format!("-{flag}")), "{answer}");
        }
    }
    eventually("the sampled ones", || {
        !collector.received("/v1/traces").is_empty()
    })
    .await;
    for message in collector.received("/v1/traces") {
        // A trace ID is encoded as its sixteen bytes.
        let unsampled = [0_u8; 15].into_iter().chain([7]).collect::<Vec<_>>();
        let unsampled = [&[0x0a, 0x10][..], &unsampled].concat();
        assert!(!message.windows(18).any(|bytes| bytes == unsampled));
    }
}
