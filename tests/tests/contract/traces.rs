use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tests::app::App;
use tests::collector::Collector;
use tests::eventually;

use crate::proxy;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn spans(collector: &Collector, path: &str) -> Vec<Span> {
    collector
        .received(path)
        .into_iter()
        .map(|message| ExportTraceServiceRequest::decode(message).unwrap())
        .flat_map(|request| request.resource_spans)
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn item_129_the_trace_is_propagated_to_the_app_with_a_new_parent() {
    for (protocol, path) in [
        ("http/protobuf", "/v1/traces"),
        (
            "grpc",
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        ),
    ] {
        let app = App::saying("hello").await;
        let (collector, suffix) = if protocol == "grpc" {
            (Collector::grpc().await, "")
        } else {
            (Collector::http().await, path)
        };
        let proxy = proxy(app.port)
            .concurrency(1)
            .set(
                "OBSERVABILITY_CONFIG",
                format!(
                    r#"{{"tracing":{{"protocol":"{protocol}","endpoint":"http://127.0.0.1:{}{suffix}","samplingRate":1}}}}"#,
                    collector.port
                ),
            )
            .set("OTEL_BSP_SCHEDULE_DELAY", "100")
            .start()
            .await;
        let lines = format!(
            "traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=b\r\nbaggage: user=7\r\n"
        );
        proxy.connect().await.get_with("/path", &lines).await;
        let request = app.log.last();
        let parent = request.header("traceparent").unwrap().to_owned();
        let parts: Vec<_> = parent.split('-').collect();
        assert_eq!((parts[0], parts[1], parts[3]), ("00", TRACE, "01"));
        assert_ne!(parts[2], PARENT);
        assert_eq!(request.header("tracestate"), Some("a=b"));
        assert_eq!(request.header("baggage"), Some("user=7"));
        eventually("four spans", || spans(&collector, path).len() == 4).await;
        let spans = spans(&collector, path);
        let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
        assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
        let (server, client) = (named("GET"), named("HTTP GET"));
        let (whole, wait) = (named("kn.queueproxy.proxy"), named("kn.queueproxy.wait"));
        assert_eq!(hex(&server.parent_span_id), PARENT);
        assert_eq!(whole.parent_span_id, server.span_id);
        assert_eq!(wait.parent_span_id, server.span_id);
        assert_eq!(client.parent_span_id, whole.span_id);
        assert_eq!(hex(&client.span_id), parts[2]);
    }
}

#[tokio::test]
async fn item_129_without_tracing_nothing_is_added_and_all_passes() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    proxy.connect().await.get("/").await;
    assert_eq!(app.log.last().header("traceparent"), None);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let lines = format!("traceparent: {parent}\r\nX-B3-TraceId: 7\r\n");
    proxy.connect().await.get_with("/", &lines).await;
    assert_eq!(app.log.last().header("traceparent"), Some(parent.as_str()));
    assert_eq!(app.log.last().header("x-b3-traceid"), Some("7"));
}

#[tokio::test]
async fn a_trace_begun_here_is_sampled_at_the_rate_and_probes_have_none() {
    let app = App::saying("hello").await;
    for (sampler, flag) in [("", "01"), ("always_off", "00"), ("always_on", "01")] {
        let mut builder = proxy(app.port).set(
            "OBSERVABILITY_CONFIG",
            r#"{"tracing":{"protocol":"stdout"}}"#,
        );
        if !sampler.is_empty() {
            builder = builder.set("OTEL_TRACES_SAMPLER", sampler);
        }
        let proxy = builder.set("OTEL_BSP_SCHEDULE_DELAY", "50").start().await;
        proxy
            .connect()
            .await
            .get_with(
                "/",
                "User-Agent: kube-probe/1\r\nK-Network-Probe: queue\r\n",
            )
            .await;
        proxy.connect().await.get("/").await;
        let parent = app.log.last().header("traceparent").unwrap().to_owned();
        assert!(parent.ends_with(flag), "{sampler}: {parent}");
        if flag == "01" {
            eventually("spans on standard output", || {
                proxy.stdout().contains("HTTP GET")
            })
            .await;
            // Without a concurrency limit there is no span of waiting.
            let lines: Vec<_> = proxy.stdout().lines().map(str::to_owned).collect();
            assert_eq!(lines.len(), 3, "{lines:?}");
        } else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(proxy.stdout(), "");
        }
    }
}
