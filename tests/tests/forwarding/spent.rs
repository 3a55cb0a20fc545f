//! What a request has spent on the lease of its pod's slot and on its model: in its answer, its metrics, its log line and its spans.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use protocol::queue::{LoadSource, ToQueue};
use tests::app::App;
use tests::collector::Collector;
use tests::eventually;
use tests::message::Message;
use tests::proxy::Proxy;

use crate::agent::Agent;
use crate::{GET, UID, builder, request};

/// Time that the model needs to load.
const LOAD: Duration = Duration::from_millis(300);

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Starts a queue-proxy without a lease, whose functions are to be answered within 200 ms.
async fn traced(app: u16) -> (Proxy, Agent, Collector) {
    let (mut agent, collector) = (Agent::new(), Collector::http().await);
    let tracing = format!(
        r#"{{"tracing":{{"protocol":"http/protobuf","endpoint":"http://127.0.0.1:{}/v1/traces","samplingRate":1}}}}"#,
        collector.port
    );
    let proxy = builder(&agent, app)
        .set("WEIR_SLO", "200ms")
        .set("OBSERVABILITY_CONFIG", tracing)
        .set("OTEL_BSP_SCHEDULE_DELAY", "50")
        .start()
        .await;
    agent.welcome(UID).await;
    (proxy, agent, collector)
}

async fn spans(collector: &Collector, last: &str) -> Vec<Span> {
    let all = || -> Vec<Span> {
        let messages = collector.received("/v1/traces").into_iter();
        messages
            .map(|message| ExportTraceServiceRequest::decode(message).unwrap())
            .flat_map(|request| request.resource_spans)
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans)
            .collect()
    };
    eventually("the spans of the request", || {
        all().iter().any(|span| span.name == last)
    })
    .await;
    all()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut named = spans.iter().filter(|span| span.name == name);
    let span = named.next().unwrap_or_else(|| panic!("{name}"));
    assert!(named.next().is_none(), "one {name}");
    span
}

fn duration(span: &Span) -> Duration {
    Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano)
}

/// Returns an entry of `Server-Timing`.
fn timing(answer: &Message, name: &str) -> Option<Duration> {
    let prefix = format!("{name};dur=");
    let lines = answer.headers.iter().map(|(_, value)| value.as_str());
    let millis = lines
        .filter_map(|line| line.strip_prefix(&prefix))
        .next_back()?;
    Some(Duration::from_secs_f64(
        millis.parse::<f64>().unwrap() / 1e3,
    ))
}

/// Returns the reason, and seconds of the lease and of the load, of the one line about a missed request.
async fn missed(proxy: &Proxy) -> (String, f64, f64) {
    let lines = || {
        let all = proxy.stderr() + &proxy.stdout();
        let parsed = all
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut lines: Vec<serde_json::Value> = parsed.collect();
        lines.retain(|line| line["message"] == "a request missed its objective");
        lines
    };
    eventually("a line about the miss", || !lines().is_empty()).await;
    let line = &lines()[0];
    let seconds = |key: &str| line[key].as_f64().unwrap();
    (
        line["reason"].as_str().unwrap().to_owned(),
        seconds("lease_seconds"),
        seconds("load_seconds"),
    )
}

#[tokio::test]
async fn the_load_of_a_model_is_stated_apart_from_the_wait_for_the_lease() {
    let app = App::saying("home").await;
    let (proxy, mut agent, collector) = traced(app.port).await;
    let answer = request(&proxy, GET);
    let (seq, _) = agent.head().await;
    let begun = monotonic();
    tokio::time::sleep(LOAD).await;
    let load = monotonic() - begun;
    agent.send(&ToQueue::Spent {
        seq,
        begun,
        load,
        source: LoadSource::Host,
    });
    agent.lease();
    let answer = answer.await.unwrap();
    let stated = timing(&answer, "load").unwrap();
    assert!(
        stated.abs_diff(Duration::from_nanos(load)) < Duration::from_micros(2),
        "{stated:?}"
    );
    let (lease, queue) = (timing(&answer, "lease"), timing(&answer, "queue"));
    assert!(lease.unwrap() > Duration::ZERO && queue.is_some());
    let (reason, _, load_seconds) = missed(&proxy).await;
    assert_eq!(reason, "load");
    assert!((load_seconds - stated.as_secs_f64()).abs() < 1e-5);
    let metrics = proxy.metrics().await;
    let value = |name: &str, labels: &[&str]| metrics.value(name, labels);
    let host = ["source=\"host\""];
    assert_eq!(value("weir_load_wait_seconds_count", &host), Some(1.0));
    assert!(value("weir_load_wait_seconds_sum", &host).unwrap() >= 0.3);
    assert_eq!(value("weir_lease_wait_seconds_count", &[]), Some(1.0));
    let missed = value("weir_requests_missed_total", &["reason=\"load\""]);
    assert_eq!(missed, Some(1.0));
    let spans = spans(&collector, "GET").await;
    let [wait, lease, load_span] =
        ["kn.queueproxy.wait", "weir.lease", "weir.load"].map(|name| named(&spans, name));
    assert_eq!(lease.parent_span_id, wait.span_id);
    assert_eq!(load_span.parent_span_id, lease.span_id);
    assert!(duration(load_span).abs_diff(stated) < Duration::from_micros(2));
    assert!(duration(lease) >= duration(load_span));
    assert!(duration(wait) >= duration(lease));
}

#[tokio::test]
async fn a_wait_for_the_lease_alone_is_the_reason_of_a_miss_and_a_held_lease_is_none() {
    let app = App::saying("home").await;
    let (proxy, mut agent, collector) = traced(app.port).await;
    let answer = request(&proxy, GET);
    agent.head().await;
    tokio::time::sleep(LOAD).await;
    // A load from before the request's arrival has not delayed it.
    let (begun, load) = (monotonic() - 10_000_000_000, 1_000_000_000);
    agent.send(&ToQueue::Spent {
        seq: 1,
        begun,
        load,
        source: LoadSource::Host,
    });
    agent.lease();
    let answer = answer.await.unwrap();
    let waited = timing(&answer, "lease").unwrap();
    assert!(waited >= LOAD, "{waited:?}");
    assert_eq!(timing(&answer, "load"), Some(Duration::ZERO));
    let (reason, lease_seconds, load_seconds) = missed(&proxy).await;
    assert_eq!((&*reason, load_seconds), ("lease", 0.0));
    assert!(lease_seconds >= LOAD.as_secs_f64());
    let spans = spans(&collector, "GET").await;
    named(&spans, "weir.lease");
    assert!(spans.iter().all(|span| span.name != "weir.load"));
    let answer = request(&proxy, GET).await.unwrap();
    assert_eq!(timing(&answer, "lease"), Some(Duration::ZERO), "it is held");
    let metrics = proxy.metrics().await;
    let waits = metrics.value("weir_lease_wait_seconds_count", &[]);
    assert_eq!(waits, Some(1.0));
}

#[tokio::test]
async fn the_way_to_another_instance_has_a_span_of_its_own() {
    let (app, sibling) = (App::saying("home").await, App::saying("sibling").await);
    let (proxy, mut agent, collector) = traced(app.port).await;
    let answer = request(&proxy, GET);
    agent.forwards_to(sibling.port).await;
    assert_eq!(answer.await.unwrap().text(), "sibling");
    let spans = spans(&collector, "GET").await;
    let [whole, forward, client] =
        ["kn.queueproxy.proxy", "weir.forward", "HTTP GET"].map(|name| named(&spans, name));
    assert_eq!(forward.parent_span_id, whole.span_id);
    assert_eq!(client.parent_span_id, forward.span_id);
    assert!(duration(forward) >= duration(client));
}
