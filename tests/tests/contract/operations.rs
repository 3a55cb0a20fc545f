//! Lines of the process's log by which queue-proxy is operated: states which begin and end, limits which are hit, the steps of a
//! drain. Each has fields, and none comes once a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tests::app::{App, ok};
use tests::eventually;
use tests::proxy::Proxy;
use tokio::task::JoinSet;

use crate::proxy;

fn lines(proxy: &Proxy, message: &str) -> Vec<serde_json::Value> {
    (proxy.stdout() + &proxy.stderr())
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|line| line["message"] == message)
        .collect()
}

#[tokio::test]
async fn an_outage_of_the_user_container_has_a_line_at_its_begin_and_one_at_its_end() {
    let failures = Arc::new(AtomicUsize::new(3));
    let app = App::raw(move |mut connection| {
        let failures = Arc::clone(&failures);
        async move {
            while connection.request().await.is_some() {
                let fails = |left: usize| left.checked_sub(1);
                if failures
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails)
                    .is_ok()
                {
                    return;
                }
                connection.write(ok("done")).await;
            }
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    for status in [502, 502, 502, 200, 200] {
        let response = proxy.connect().await.post("/", "body").await;
        assert_eq!(response.status(), status);
    }
    let ends = || lines(&proxy, "the user container answers again");
    eventually("the end has a line", || !ends().is_empty()).await;
    let begins = lines(&proxy, "the user container does not answer");
    assert_eq!(begins.len(), 1, "{begins:?}");
    assert_eq!(begins[0]["failures"], 1);
    assert!(begins[0]["error"].is_string(), "{begins:?}");
    assert_eq!(ends().len(), 1);
    assert_eq!(ends()[0]["failures"], 3);
    assert!(ends()[0]["seconds"].is_number(), "{:?}", ends());
}

#[tokio::test]
async fn a_full_queue_and_malformed_requests_have_one_line_each() {
    let app = App::silent().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("WEIR_QUEUE_DEPTH", 1)
        .start()
        .await;
    let request = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut running = proxy.connect().await;
    running.send(request).await;
    eventually("one runs", || app.log.count() == 1).await;
    let mut clients = JoinSet::new();
    for _ in 0..6 {
        let mut client = proxy.connect().await;
        client.send(request).await;
        clients.spawn(async move { client.head().await.status() });
    }
    for _ in 0..5 {
        // The sixth waits.
        assert_eq!(clients.join_next().await.unwrap().unwrap(), 503);
    }
    for _ in 0..3 {
        let response = proxy
            .connect()
            .await
            .request("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
            .await;
        assert_eq!(response.status(), 400);
    }
    let full = || lines(&proxy, "the queue is full: requests are refused");
    let malformed = || lines(&proxy, "malformed requests are refused");
    eventually("both have a line", || {
        !full().is_empty() && !malformed().is_empty()
    })
    .await;
    assert_eq!(full().len(), 1);
    assert_eq!(
        (&full()[0]["refused"], &full()[0]["depth"]),
        (&1.into(), &1.into())
    );
    assert_eq!(malformed().len(), 1);
    assert_eq!(malformed()[0]["status"], 400);
}

#[tokio::test]
async fn each_step_of_a_drain_has_a_line() {
    let app = App::saying("hello").await;
    let mut proxy = proxy(app.port).start().await;
    proxy.terminate();
    assert_eq!(proxy.exit_code(tests::PATIENCE).await, Some(0));
    for (message, field) in [
        ("draining: probes are answered with 503", "quiet_seconds"),
        (
            "drained of new requests: listeners close, and connections after their current request",
            "connections",
        ),
        (
            "all connections are closed: upgraded ones may end",
            "upgraded",
        ),
        ("the drain is complete", "seconds"),
    ] {
        let found = lines(&proxy, message);
        assert_eq!(found.len(), 1, "{message}");
        assert!(found[0][field].is_number(), "{message}: {found:?}");
    }
}
