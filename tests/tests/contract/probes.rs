use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tests::SLACK;
use tests::app::{App, ok};
use tests::message::Message;
use tests::proxy::{Builder, Proxy};

use crate::proxy;

const QUEUE: &str = "User-Agent: kube-probe/1.30\r\nK-Network-Probe: queue\r\n";

async fn probe(proxy: &Proxy, lines: &str) -> Message {
    proxy.connect().await.get_with("/", lines).await
}

fn http(port: u16, more: &str) -> String {
    format!(
        r#"{{"httpGet":{{"path":"/health?x=1","port":{port},"scheme":"HTTP"}},"successThreshold":1{more}}}"#
    )
}

fn with_probe(app: &App, more: &str) -> Builder {
    proxy(app.port).set("SERVING_READINESS_PROBE", http(app.port, more))
}

/// Starts an app which is ready while the returned flag is set.
async fn switchable() -> (App, Arc<AtomicBool>) {
    let ready = Arc::new(AtomicBool::new(false));
    let app = App::serving({
        let ready = Arc::clone(&ready);
        move |_| {
            let ready = ready.load(Ordering::SeqCst);
            async move {
                if ready {
                    ok("fine")
                } else {
                    b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec()
                }
            }
        }
    })
    .await;
    (app, ready)
}

#[tokio::test]
async fn item_086_a_ready_pod_answers_queue_whatever_the_path_and_method() {
    let app = App::saying("fine").await;
    let proxy = with_probe(&app, r#","periodSeconds":1"#).start().await;
    for start in ["GET /", "POST /any/path?x", "HEAD /healthz"] {
        let mut client = proxy.connect().await;
        client
            .send(format!("{start} HTTP/1.1\r\nHost: t\r\n{QUEUE}\r\n"))
            .await;
        let head = client.head().await;
        assert_eq!(
            (head.status(), head.header("content-length")),
            (200, Some("5")),
            "{start}"
        );
        if !start.starts_with("HEAD") {
            assert_eq!(client.bytes(5).await, b"queue");
        }
    }
}

#[tokio::test]
async fn item_087_a_ready_pod_answers_queue_to_activator_and_autoscaler() {
    let app = App::saying("fine").await;
    let proxy = with_probe(&app, "").start().await;
    for agent in ["Knative-Activator-Probe", "Knative-Autoscaling-Probe"] {
        let response = probe(
            &proxy,
            &format!("User-Agent: {agent}\r\nK-Network-Probe: queue\r\n"),
        )
        .await;
        assert_eq!(
            (response.status(), response.text().as_str()),
            (200, "queue"),
            "{agent}"
        );
    }
}

#[tokio::test]
async fn item_088_another_value_from_a_prober_is_400() {
    let app = App::saying("fine").await;
    let proxy = proxy(app.port).start().await;
    for (lines, value) in [
        (
            "User-Agent: kube-probe/1.30\r\nK-Network-Probe: other\r\n",
            "other",
        ),
        ("User-Agent: kube-probe/1.30\r\n", ""),
        (
            "User-Agent: Knative-Activator-Probe\r\nK-Network-Probe: activator\r\n",
            "activator",
        ),
    ] {
        let response = probe(&proxy, lines).await;
        assert_eq!(response.status(), 400);
        assert_eq!(
            response.text(),
            format!("unexpected probe header value: {value}\n")
        );
    }
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn item_089_a_pod_that_is_not_ready_answers_503_and_nothing_else() {
    let (app, _ready) = switchable().await;
    let proxy = with_probe(&app, r#","periodSeconds":1"#).start().await;
    let response = probe(&proxy, QUEUE).await;
    assert_eq!(
        (response.status(), response.header("content-length")),
        (503, Some("0"))
    );
}

#[tokio::test]
async fn item_090_a_network_probe_gets_its_hash_back() {
    let app = App::saying("fine").await;
    let proxy = proxy(app.port).start().await;
    let response = probe(&proxy, "K-Network-Probe: probe\r\nK-Network-Hash: abc\r\n").await;
    assert_eq!(
        (response.status(), response.header("k-network-hash")),
        (200, Some("abc"))
    );
    assert!(response.body.is_empty());
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn item_091_without_a_hash_it_is_400() {
    let app = App::saying("fine").await;
    let proxy = proxy(app.port).start().await;
    let response = probe(&proxy, "K-Network-Probe: probe\r\n").await;
    assert_eq!(response.status(), 400);
    assert_eq!(
        response.text(),
        "a probe request must contain a non-empty \"K-Network-Hash\" header\n"
    );
}

#[tokio::test]
async fn item_092_an_ordinary_client_with_a_queue_probe_header_is_proxied() {
    let app = App::saying("from the app").await;
    let proxy = proxy(app.port).start().await;
    let response = probe(&proxy, "User-Agent: curl/8\r\nK-Network-Probe: queue\r\n").await;
    assert_eq!(response.text(), "from the app");
    assert_eq!(app.log.last().header("k-network-probe"), Some("queue"));
}

#[tokio::test]
async fn item_093_the_proxy_never_poses_as_the_activator() {
    let app = App::saying("from the app").await;
    let proxy = proxy(app.port).start().await;
    for agent in [
        "kube-probe/1",
        "Knative-Autoscaling-Probe",
        "Knative-Ingress-Probe",
        "curl/8",
    ] {
        let response = probe(
            &proxy,
            &format!("User-Agent: {agent}\r\nK-Network-Probe: activator\r\n"),
        )
        .await;
        assert_ne!(response.text(), "activator", "{agent}");
    }
}

#[tokio::test]
async fn item_094_without_a_period_the_app_is_polled_until_it_is_ready() {
    let (app, ready) = switchable().await;
    let proxy = with_probe(&app, "").start().await;
    let address = proxy.address();
    let waiting = tokio::spawn(async move {
        tests::client::Client::connect(address)
            .await
            .get_with("/", QUEUE)
            .await
    });
    // One poll every 50 ms, independent of the answers; on a busy machine polls are late.
    let begin = Instant::now();
    tests::eventually("five polls", || app.log.count() >= 5).await;
    let elapsed = begin.elapsed();
    assert!(elapsed > Duration::from_millis(100), "{elapsed:?}");
    ready.store(true, Ordering::SeqCst);
    assert_eq!(waiting.await.unwrap().text(), "queue");
    let seen = app.log.last();
    assert_eq!(
        (seen.target(), seen.header("user-agent")),
        ("/health?x=1", Some("kube-probe//"))
    );
}

#[tokio::test]
async fn item_095_after_ten_seconds_it_is_not_ready() {
    let (app, _ready) = switchable().await;
    let proxy = with_probe(&app, "").start().await;
    let begin = Instant::now();
    assert_eq!(probe(&proxy, QUEUE).await.status(), 503);
    let elapsed = begin.elapsed();
    assert!(
        elapsed > Duration::from_millis(9_900) && elapsed < Duration::from_secs(10) + SLACK,
        "{elapsed:?}"
    );
}

#[tokio::test]
async fn item_096_an_attempt_slower_than_100_ms_has_failed() {
    let app = App::serving(|_| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        ok("slow")
    })
    .await;
    let proxy = with_probe(&app, "").start().await;
    assert_eq!(probe(&proxy, QUEUE).await.status(), 503);
    assert!(app.log.cancelled() > 20, "{}", app.log.cancelled());
}

#[tokio::test]
async fn item_097_a_threshold_of_three_needs_three_in_a_row() {
    let asked = Arc::new(AtomicUsize::new(0));
    let app = App::serving({
        let asked = Arc::clone(&asked);
        move |_| {
            let n = asked.fetch_add(1, Ordering::SeqCst);
            // Success, success, failure, then success forever.
            async move {
                if n == 2 {
                    b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec()
                } else {
                    ok("")
                }
            }
        }
    })
    .await;
    let json = http(app.port, "").replace("\"successThreshold\":1", "\"successThreshold\":3");
    let proxy = proxy(app.port)
        .set("SERVING_READINESS_PROBE", json)
        .start()
        .await;
    assert_eq!(probe(&proxy, QUEUE).await.status(), 200);
    assert_eq!(asked.load(Ordering::SeqCst), 6);
    assert_eq!(probe(&proxy, QUEUE).await.status(), 200);
    assert_eq!(
        asked.load(Ordering::SeqCst),
        7,
        "once reached, one is enough"
    );
}

#[tokio::test]
async fn item_098_with_a_period_there_is_one_attempt_with_its_timeout() {
    let app = App::silent().await;
    let proxy = with_probe(&app, r#","periodSeconds":30,"timeoutSeconds":2"#)
        .start()
        .await;
    let begin = Instant::now();
    assert_eq!(probe(&proxy, QUEUE).await.status(), 503);
    let elapsed = begin.elapsed();
    assert!(
        elapsed > Duration::from_millis(1_900) && elapsed < Duration::from_secs(2) + SLACK,
        "{elapsed:?}"
    );
    assert_eq!(app.log.count(), 1);
}

#[tokio::test]
async fn item_099_probes_at_the_same_time_share_one_check() {
    let app = App::serving(|_| async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        ok("")
    })
    .await;
    let proxy = with_probe(&app, r#","periodSeconds":5,"timeoutSeconds":2"#)
        .start()
        .await;
    let address = proxy.address();
    let probes: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn(async move {
                tests::client::Client::connect(address)
                    .await
                    .get_with("/", QUEUE)
                    .await
                    .status()
            })
        })
        .collect();
    for probe in probes {
        assert_eq!(probe.await.unwrap(), 200);
    }
    assert_eq!(app.log.count(), 1);
    assert_eq!(probe(&proxy, QUEUE).await.status(), 200);
    assert_eq!(app.log.count(), 2);
}

#[tokio::test]
async fn item_100_a_prober_that_disconnects_does_not_end_the_check() {
    let app = App::serving(|_| async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        ok("")
    })
    .await;
    let proxy = with_probe(&app, r#","periodSeconds":5,"timeoutSeconds":2"#)
        .start()
        .await;
    let mut leaving = proxy.connect().await;
    leaving
        .send(format!("GET / HTTP/1.1\r\nHost: t\r\n{QUEUE}\r\n"))
        .await;
    tests::eventually("the check runs", || app.log.count() == 1).await;
    drop(leaving);
    assert_eq!(probe(&proxy, QUEUE).await.status(), 200);
    assert_eq!((app.log.count(), app.log.cancelled()), (1, 0));
}

#[tokio::test]
async fn item_105_without_a_probe_it_is_always_ready() {
    let proxy = proxy(1).start().await;
    assert_eq!(probe(&proxy, QUEUE).await.text(), "queue");
}

#[tokio::test]
async fn item_106_probes_do_not_count() {
    let app = App::saying("fine").await;
    let proxy = with_probe(&app, "").start().await;
    for _ in 0..20 {
        probe(&proxy, QUEUE).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let stat = proxy.stat().await;
    assert!(stat.process_uptime > 0.0);
    assert!(
        stat.request_count == 0.0 && stat.average_concurrent_requests == 0.0,
        "{stat:?}"
    );
}
