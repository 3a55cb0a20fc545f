//! The metrics of role `data` against the catalogue, and the reasons of requests that missed their objectives.

use std::time::Duration;

use dashboards::catalogue::Program;
use peers::revision::Revision;
use tests::app::{App, ok};
use tests::catalogue::problems;

use crate::{activator, at, get};

/// Condition in the catalogue of metrics that only a function with an objective has.
const WITH_OBJECTIVE: &str = "where weir.dev/slo is set";

/// Starts a pod with a queue-proxy that reports how long it held each request: `/QUEUE/EXECUTION`, in milliseconds.
async fn pod() -> App {
    App::serving(|request| async move {
        if request.header("k-network-probe").is_some() {
            return ok("queue");
        }
        let target = request.target().to_owned();
        let mut parts = target.trim_start_matches('/').split('/').map(|part| part.parse().unwrap_or(0));
        let (queue, execution): (u64, u64) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        tokio::time::sleep(Duration::from_millis(queue + execution)).await;
        let timing = format!("Server-Timing: queue;dur=1\r\nServer-Timing: queue;dur={queue}\r\nServer-Timing: load;dur=0\r\n");
        format!("HTTP/1.1 200 OK\r\n{timing}Content-Length: 0\r\n\r\n").into_bytes()
    })
    .await
}

#[tokio::test]
async fn the_page_matches_the_catalogue_and_reasons_name_the_longest_part() {
    let mut with = Revision::new("f-00001").annotate("weir.dev/slo", "3s");
    let activator = activator().revision(&with).start().await;
    let name = "weir_function_requests_missed_total";
    activator
        .has("weir_revisions", &[], |value| value == 1.0)
        .await;
    let page = activator.metrics().await;
    assert_eq!(
        problems(page.text(), Program::ActivatorData, &[WITH_OBJECTIVE]),
        [""; 0]
    );
    // This request arrives while no instance serves.
    let mut cold = activator.connect().await;
    cold.send(get("f-00001", "/0/0")).await;
    activator
        .has("weir_function_waiting", &[], |value| value == 1.0)
        .await;
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    let app = pod().await;
    with.pods = vec![at(&app)];
    activator.set_revision(&with);
    assert_eq!(cold.response().await.status(), 200);
    let mut client = activator.connect().await;
    for path in ["/0/0", "/3200/1", "/0/3200"] {
        assert_eq!(client.request(get("f-00001", path)).await.status(), 200);
    }
    for (reason, count) in [
        ("cold-start", 1.0),
        ("queue", 1.0),
        ("execution", 1.0),
        ("failed", 0.0),
    ] {
        activator
            .has(name, &[&format!("reason=\"{reason}\"")], |value| {
                value == count
            })
            .await;
    }
    activator
        .has("weir_function_requests_in_time_total", &[], |value| {
            value == 1.0
        })
        .await;
    let page = activator.metrics().await;
    assert_eq!(page.value(name, &[]), Some(3.0));
    assert_eq!(
        problems(page.text(), Program::ActivatorData, &[WITH_OBJECTIVE]),
        [""; 0]
    );
}
