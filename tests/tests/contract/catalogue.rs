//! The metrics of queue-proxy against the catalogue, and the reasons of requests that missed their objectives.

use std::time::Duration;

use dashboards::catalogue::Program;
use dashboards::page::series;
use tests::app::{App, ok};
use tests::catalogue::problems;
use tests::eventually;
use tests::proxy::Proxy;

use crate::proxy;

/// Condition in the catalogue of metrics that only a function with an objective has.
const WITH_OBJECTIVE: &str = "where weir.dev/slo is set";
/// Largest number of series of a queue-proxy.
const SERIES_MAX: usize = 150;

/// Starts an application that answers after `/MILLISECONDS`, and `/fail` with a server error.
async fn application() -> App {
    App::serving(|request| async move {
        match request.target().trim_start_matches('/') {
            "fail" => b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".to_vec(),
            millis => {
                let millis = millis.parse().unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(millis)).await;
                ok("here")
            }
        }
    })
    .await
}

async fn has(proxy: &Proxy, name: &str, labels: &[&str], count: f64) {
    let mut last = None;
    for _ in 0..1_000 {
        last = proxy.metrics().await.value(name, labels);
        if last == Some(count) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} {labels:?} is {last:?}, not {count}");
}

#[tokio::test]
async fn the_page_matches_the_catalogue_with_and_without_an_objective() {
    let app = application().await;
    for (name, value, only) in [
        ("WEIR_SLO", "20s", &[WITH_OBJECTIVE][..]),
        ("WEIR_FUNCTION", "f", &[]),
    ] {
        let proxy = proxy(app.port)
            .concurrency(4)
            .set(name, value)
            .start()
            .await;
        // Before the first request every counter exists with value 0.
        let page = proxy.metrics().await;
        assert_eq!(
            problems(page.text(), Program::QueueProxy, only),
            [""; 0],
            "{name}"
        );
        for metric in dashboards::catalogue::catalogue().unwrap() {
            let is_counter =
                metric.name.ends_with("_total") && !metric.name.contains("cpu_seconds");
            if is_counter && let Some(value) = page.value(&metric.name, &[]) {
                assert!(value == 0.0, "{} begins at {value}", metric.name);
            }
        }
        let mut loads = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut client = proxy.connect().await;
            loads.spawn(async move {
                for _ in 0..50 {
                    assert_eq!(client.get("/1").await.status(), 200);
                }
            });
        }
        loads.join_all().await;
        has(
            &proxy,
            "weir_requests_total",
            &["outcome=\"answered\""],
            400.0,
        )
        .await;
        let page = proxy.metrics().await;
        assert_eq!(
            problems(page.text(), Program::QueueProxy, only),
            [""; 0],
            "{name}"
        );
        let count = series(page.text());
        assert!(count <= SERIES_MAX, "{count} series");
    }
}

#[tokio::test]
async fn each_judged_request_counts_once_and_a_missed_one_with_its_reason() {
    let app = application().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "3s")
        .set("WEIR_QUEUE_DEPTH", "1")
        .set("REVISION_TIMEOUT_SECONDS", "6")
        .start()
        .await;
    let missed = |reason: &str| format!("reason=\"{reason}\"");
    assert_eq!(proxy.connect().await.get("/0").await.status(), 200);
    // An earlier hop has held this request for longer than the objective.
    proxy
        .connect()
        .await
        .get_with("/0", "Weir-Held-Us: 9000000\r\n")
        .await;
    // The application alone takes longer than the objective.
    proxy.connect().await.get("/3500").await;
    assert_eq!(proxy.connect().await.get("/fail").await.status(), 500);
    // One times out, one waits and disconnects within its objective, one finds the queue full, one is malformed.
    let before = app.log.count();
    let mut running = proxy.connect().await;
    running.send("GET /9000 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("it runs", || app.log.count() > before).await;
    let mut waiting = proxy.connect().await;
    waiting.send("GET /0 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    has(&proxy, "weir_requests_waiting", &[], 1.0).await;
    assert_eq!(proxy.connect().await.get("/0").await.status(), 503);
    drop(waiting);
    let mut malformed = proxy.connect().await;
    malformed
        .send("GET / HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n")
        .await;
    assert_eq!(malformed.response().await.status(), 400);
    assert_eq!(running.response().await.status(), 504);
    has(
        &proxy,
        "weir_requests_missed_total",
        &[&missed("timeout")],
        1.0,
    )
    .await;
    // A client that disconnects after its objective has missed it.
    let before = app.log.count();
    let mut leaves = proxy.connect().await;
    leaves.send("GET /9000 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("it runs", || app.log.count() > before).await;
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    drop(leaves);
    for (reason, count) in [
        ("queue", 1.0),
        ("execution", 1.0),
        ("refused", 1.0),
        ("failed", 1.0),
        ("timeout", 2.0),
        ("cold-start", 0.0),
        ("lease", 0.0),
        ("load", 0.0),
        ("gate", 0.0),
        ("shed", 0.0),
    ] {
        has(
            &proxy,
            "weir_requests_missed_total",
            &[&missed(reason)],
            count,
        )
        .await;
    }
    has(&proxy, "weir_requests_in_time_total", &[], 1.0).await;
    // The one disconnected in time is not judged, and the malformed one is not even counted.
    let page = proxy.metrics().await;
    assert_eq!(page.value("weir_requests_missed_total", &[]), Some(6.0));
    assert_eq!(page.value("weir_requests_total", &[]), Some(8.0));
    // Each dispatched request was either early or late.
    let dispatched = page.value("weir_queue_wait_seconds_count", &[]);
    let early = page
        .value("weir_dispatch_slack_seconds_count", &[])
        .unwrap();
    let late = page
        .value("weir_dispatch_lateness_seconds_count", &[])
        .unwrap();
    assert_eq!(dispatched, Some(early + late));
}

#[tokio::test]
async fn a_missed_request_has_one_line_with_its_parts_and_trace_and_ten_a_second_are_written() {
    let app = application().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_SLO", "1s")
        .start()
        .await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let lines = format!("Weir-Held-Us: 7000000\r\ntraceparent: 00-{trace}-b7ad6b7169203331-00\r\n");
    let mut client = proxy.connect().await;
    client.get_with("/0", &lines).await;
    let missed = || {
        let lines = proxy.stderr() + &proxy.stdout();
        let objects = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        objects
            .filter(|line| line["message"] == "a request missed its objective")
            .collect::<Vec<_>>()
    };
    eventually("the line is written", || !missed().is_empty()).await;
    let line = &missed()[0];
    assert_eq!(line["knative.dev/key"], "default/revision-00001");
    assert_eq!(line["reason"], "queue");
    assert_eq!(line["trace_id"], trace);
    assert_eq!(line["span_id"], "b7ad6b7169203331");
    assert_eq!(line["status"], 200);
    let part = |name: &str| line[name].as_f64().unwrap();
    assert!(
        part("queue_seconds") >= 7.0 && part("execution_seconds") < 1.0,
        "{line}"
    );
    let sum: f64 = ["cold_start", "queue", "lease", "load", "gate", "execution"]
        .iter()
        .map(|name| part(&format!("{name}_seconds")))
        .sum();
    assert!(sum <= part("took_seconds") + 1e-6, "{line}");
    // A flood of misses does not flood the log.
    for _ in 0..200 {
        client.get_with("/0", "Weir-Held-Us: 7000000\r\n").await;
    }
    has(
        &proxy,
        "weir_requests_missed_total",
        &["reason=\"queue\""],
        201.0,
    )
    .await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    client.get_with("/0", "Weir-Held-Us: 7000000\r\n").await;
    eventually("the rest is counted", || {
        let lines = missed();
        let left_out: u64 = lines
            .iter()
            .filter_map(|line| line["left_out"].as_u64())
            .sum();
        left_out + lines.len() as u64 == 202 && left_out > 0
    })
    .await;
}
