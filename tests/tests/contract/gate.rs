use std::time::Duration;

use tests::app::{App, ok};
use tests::client::Client;
use tests::eventually;
use tests::proxy::Proxy;

use crate::proxy;

async fn send(proxy: &Proxy, target: &str) -> Client {
    let mut client = proxy.connect().await;
    client
        .send(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"))
        .await;
    client
}

/// Sends `n` requests, of which the first `running` must reach the app and the others wait.
async fn fill(proxy: &Proxy, app: &App, running: usize, n: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for at in 0..n {
        clients.push(send(proxy, &format!("/{at}")).await);
        if at < running {
            eventually("a request is at the app", || app.log.count() == at + 1).await;
        }
    }
    // A request takes a place in the queue once the proxy has read it.
    for client in &clients {
        client.is_read().await;
    }
    clients
}

async fn all_at_once(concurrency: i32) {
    let app = App::silent().await;
    let proxy = proxy(app.port)
        .set("CONTAINER_CONCURRENCY", concurrency)
        .start()
        .await;
    let mut clients = Vec::new();
    for _ in 0..500 {
        clients.push(send(&proxy, "/").await);
    }
    eventually("all are at the app", || app.log.live() == 500).await;
}

#[tokio::test]
async fn item_076_without_a_limit_500_requests_are_at_the_app_at_once() {
    all_at_once(0).await;
}

#[tokio::test]
async fn item_077_the_app_never_holds_two_live_requests_at_concurrency_one() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .concurrency(1)
        .set("REVISION_TIMEOUT_SECONDS", 1)
        .start()
        .await;
    let mut clients = Vec::new();
    for n in 0..60_u64 {
        let mut client = send(&proxy, &format!("/{}", n * 7 % 40)).await;
        match n % 4 {
            0 => drop(client),
            1 => {
                tokio::time::sleep(Duration::from_millis(n * 3 % 20)).await;
                drop(client);
            }
            2 => {
                client.head().await;
            }
            _ => clients.push(client),
        }
    }
    let _slow = send(&proxy, "/3000").await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(proxy.connect().await.get("/0").await.status(), 200);
    assert_eq!(app.log.live_max(), 1);
}

#[tokio::test]
async fn item_078_eleven_times_the_concurrency_is_held_and_the_next_refused() {
    for concurrency in [1, 2] {
        let app = App::delaying().await;
        let proxy = proxy(app.port).concurrency(concurrency).start().await;
        let running = concurrency as usize;
        let mut held = Vec::new();
        for at in 0..running {
            held.push(send(&proxy, "/15000").await);
            eventually("a request is at the app", || app.log.count() == at + 1).await;
        }
        for _ in 0..10 * running {
            held.push(send(&proxy, "/0").await);
        }
        for client in &held {
            client.is_read().await;
        }
        assert_eq!(proxy.connect().await.get("/next").await.status(), 503);
        assert_eq!(
            app.log.count(),
            running,
            "the request is refused while all places are held"
        );
        for client in &mut held {
            assert_eq!(
                client.response().await.status(),
                200,
                "held requests are served"
            );
        }
    }
}

#[tokio::test]
async fn item_079_the_refusal_is_knatives() {
    let app = App::silent().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let _held = fill(&proxy, &app, 1, 11).await;
    let response = proxy.connect().await.get("/next").await;
    assert_eq!(response.start, "HTTP/1.1 503 Service Unavailable");
    assert_eq!(response.text(), "pending request queue full\n");
    assert_eq!(
        response.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn item_080_queued_requests_are_admitted_in_order_of_arrival() {
    let app = App::delaying().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let mut clients = vec![send(&proxy, "/first/1000").await];
    eventually("the first is at the app", || app.log.count() == 1).await;
    for n in 0..8 {
        let client = send(&proxy, &format!("/{n}/0")).await;
        client.is_read().await;
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(client.response().await.status(), 200);
    }
    let order: Vec<_> = app.log.requests()[1..]
        .iter()
        .map(|r| r.target().to_owned())
        .collect();
    assert_eq!(order, (0..8).map(|n| format!("/{n}/0")).collect::<Vec<_>>());
}

#[tokio::test]
async fn item_081_a_request_that_leaves_the_queue_frees_a_place_and_never_reaches_the_app() {
    let app = App::serving(|_| async {
        tokio::time::sleep(Duration::from_millis(800)).await;
        ok("done")
    })
    .await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let mut first = send(&proxy, "/first").await;
    eventually("the first is at the app", || app.log.count() == 1).await;
    // With a body that is not read while its request waits, with a pipelined request, half closed, closed.
    let big = "b".repeat(200_000);
    let mut leaving = Vec::new();
    for n in 0..9 {
        let mut client = proxy.connect().await;
        client
            .send(match n % 3 {
                0 => "GET /gone HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
                1 => {
                    format!("POST /gone HTTP/1.1\r\nHost: t\r\nContent-Length: 200000\r\n\r\n{big}")
                }
                _ => "GET /gone HTTP/1.1\r\nHost: t\r\n\r\nGET /gone HTTP/1.1\r\nHost: t\r\n\r\n"
                    .to_owned(),
            })
            .await;
        leaving.push(client);
    }
    let mut last = send(&proxy, "/last").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(proxy.connect().await.get("/full").await.status(), 503);
    for client in leaving.iter_mut().take(3) {
        client.half_close().await;
    }
    for client in leaving.iter_mut().take(3) {
        assert!(client.rest().await.is_empty(), "no answer is invented");
    }
    drop(leaving);
    // Their nine places are free again.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut others = Vec::new();
    for _ in 0..9 {
        others.push(send(&proxy, "/other").await);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(proxy.connect().await.get("/full").await.status(), 503);
    drop(others);
    assert_eq!(first.response().await.status(), 200);
    assert_eq!(last.response().await.status(), 200);
    assert!(
        app.log
            .requests()
            .iter()
            .all(|request| request.target() != "/gone")
    );
}

#[tokio::test]
async fn item_082_no_place_is_ever_lost() {
    let app = App::delaying().await;
    let concurrency = 3;
    let proxy = proxy(app.port)
        .concurrency(concurrency)
        .set("REVISION_TIMEOUT_SECONDS", 1)
        .start()
        .await;
    let address = proxy.address();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..20_u64 {
        tasks.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut state = worker;
            for _ in 0..500 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let delay = if state >> 54 == 0 {
                    1_500
                } else {
                    (state >> 40) % 4
                };
                client
                    .send(format!("GET /{delay} HTTP/1.1\r\nHost: t\r\n\r\n"))
                    .await;
                if (state >> 33).is_multiple_of(4) {
                    tokio::time::sleep(Duration::from_micros((state >> 20) % 3_000)).await;
                    client = Client::connect(address).await;
                } else {
                    let status = client.response().await.status();
                    assert!([200, 503, 504].contains(&status), "{status}");
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    // All places are free: exactly as many requests run at once.
    let before = app.log.count();
    let mut clients = Vec::new();
    for _ in 0..11 * concurrency {
        clients.push(send(&proxy, "/600").await);
    }
    eventually("all places are taken", || {
        app.log.live() == concurrency as usize
    })
    .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(app.log.count() - before, concurrency as usize);
    assert_eq!(proxy.connect().await.get("/0").await.status(), 503);
    assert!(app.log.live_max() <= concurrency as usize);
}

#[tokio::test]
async fn item_083_a_negative_concurrency_is_no_limit() {
    all_at_once(-1).await;
}

#[tokio::test]
async fn item_084_probes_are_answered_when_everything_is_full() {
    let app = App::silent().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let _held = fill(&proxy, &app, 1, 11).await;
    let lines = "User-Agent: kube-probe/1.30\r\nK-Network-Probe: queue\r\n";
    assert_eq!(
        proxy.connect().await.get_with("/", lines).await.text(),
        "queue"
    );
    let lines = "K-Network-Probe: probe\r\nK-Network-Hash: h\r\n";
    assert_eq!(
        proxy.connect().await.get_with("/", lines).await.status(),
        200
    );
}

#[tokio::test]
async fn item_085_a_kubelet_header_from_elsewhere_does_not_pass_the_gate() {
    let app = App::silent().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let _held = fill(&proxy, &app, 1, 11).await;
    let response = proxy
        .connect()
        .await
        .get_with("/", "K-Kubelet-Probe: queue\r\n")
        .await;
    assert_eq!(response.status(), 503);
    assert_eq!(app.log.live_max(), 1);
}

#[tokio::test]
async fn a_body_of_one_byte_chunks_that_waits_takes_no_more_memory_than_its_bytes() {
    let app = App::silent().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let mut clients = fill(&proxy, &app, 1, 1).await;
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap()
            .to_owned();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let before = resident();
    for _ in 0..4 {
        let mut client = proxy.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        let chunks = "1\r\nx\r\n".repeat(100_000);
        // Ten times 100,000 bytes of body: as much as a waiting request reads ahead.
        for _ in 0..10 {
            let sent = tokio::time::timeout(Duration::from_secs(5), client.try_send(&chunks)).await;
            if sent.is_err() {
                break;
            }
        }
        clients.push(client);
    }
    let grown = (resident() - before) / 1024;
    assert!(grown < 32, "{grown} MiB for 4 MiB of bodies");
}
