use std::time::{Duration, Instant};

use peers::autoscaler::Stat;
use tests::app::App;
use tests::client::Client;
use tests::proxy::Proxy;

use crate::proxy;

async fn raw(proxy: &Proxy, lines: &str) -> Vec<u8> {
    let response = Client::connect(proxy.at(9090))
        .await
        .get_with("/metrics", lines)
        .await;
    assert_eq!(
        response.header("content-type"),
        Some("application/protobuf")
    );
    response.body
}

/// Returns the first report for which `wanted` is true, within four seconds.
async fn first_with(proxy: &Proxy, wanted: impl Fn(&Stat) -> bool) -> Stat {
    for _ in 0..80 {
        let stat = proxy.stat().await;
        if wanted(&stat) {
            return stat;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no report as wanted: {:?}", proxy.stat().await);
}

fn near(value: f64, wanted: f64) -> bool {
    (value - wanted).abs() < 0.1 * wanted.max(1.0)
}

/// Waits until a window has just ended.
async fn window_start(proxy: &Proxy) {
    let before = proxy.stat().await.process_uptime;
    while proxy.stat().await.process_uptime <= before {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn item_117_the_report_is_a_small_stat_message() {
    let app = App::delaying().await;
    let pod = "p".repeat(253);
    let proxy = proxy(app.port).set("SERVING_POD", &pod).start().await;
    let mut client = proxy.connect().await;
    client
        .send("GET /3000 HTTP/1.1\r\nHost: t\r\nK-Proxy-Request: activator\r\n\r\n")
        .await;
    let stat = first_with(&proxy, |stat| stat.proxied_request_count > 0.0).await;
    assert_eq!(stat.pod_name, pod);
    assert!(raw(&proxy, "").await.len() <= 336);
}

#[tokio::test]
async fn item_118_the_first_second_has_the_name_only_and_the_uptime_grows() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).set("SERVING_POD", "pod").start().await;
    assert_eq!(raw(&proxy, "").await, b"\x0a\x03pod");
    let first = first_with(&proxy, |stat| stat.process_uptime > 0.0)
        .await
        .process_uptime;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let later = proxy.stat().await.process_uptime;
    assert!(later - first >= 1.5, "{first} {later}");
}

#[tokio::test]
async fn item_119_two_requests_of_half_a_second_in_a_window_are_one() {
    let app = App::delaying().await;
    let proxy = proxy(app.port).start().await;
    let mut clients = [proxy.connect().await, proxy.connect().await];
    window_start(&proxy).await;
    let begin = Instant::now();
    let [one, two] = &mut clients;
    tokio::join!(one.get("/500"), two.get("/500"));
    // Delays of a busy machine count as well; time beyond the second counts in the next window.
    let took = begin.elapsed().as_secs_f64();
    let stat = first_with(&proxy, |stat| stat.request_count > 0.0).await;
    let least = if took < 0.9 { 0.9 } else { 0.0 };
    assert!(
        (least..2.0 * took + 0.1).contains(&stat.average_concurrent_requests)
            && near(stat.request_count, 2.0),
        "{stat:?}, {took} s each"
    );
}

#[tokio::test]
async fn item_120_queued_requests_count() {
    let app = App::silent().await;
    let proxy = proxy(app.port).concurrency(2).start().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = proxy.connect().await;
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
        clients.push(client);
    }
    let stat = first_with(&proxy, |stat| near(stat.average_concurrent_requests, 4.0)).await;
    assert_eq!(
        (stat.average_proxied_concurrent_requests, app.log.live()),
        (0.0, 2)
    );
}

#[tokio::test]
async fn item_121_requests_from_the_activator_count_in_both() {
    let app = App::silent().await;
    let proxy = proxy(app.port).start().await;
    let mut clients = Vec::new();
    for value in ["activator", "other"] {
        let mut client = proxy.connect().await;
        client
            .send(format!(
                "GET / HTTP/1.1\r\nHost: t\r\nK-Proxy-Request: {value}\r\n\r\n"
            ))
            .await;
        clients.push(client);
    }
    let stat = first_with(&proxy, |stat| near(stat.average_concurrent_requests, 2.0)).await;
    assert!(
        near(stat.average_proxied_concurrent_requests, 1.0),
        "{stat:?}"
    );
    // Both connections race to the app: their order does not matter.
    let passed = app.log.requests();
    assert!(
        passed
            .iter()
            .any(|request| request.header("k-proxy-request") == Some("activator"))
    );
}

#[tokio::test]
async fn item_122_a_report_is_kept_for_a_second_and_then_zero() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    window_start(&proxy).await;
    proxy.connect().await.get("/").await;
    let stat = first_with(&proxy, |stat| stat.request_count > 0.0).await;
    assert_eq!(proxy.stat().await, stat, "reading does not reset it");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let stat = proxy.stat().await;
    assert_eq!(
        (stat.average_concurrent_requests, stat.request_count),
        (0.0, 0.0)
    );
    // Zero fields are omitted: only the name and the uptime remain.
    let expected = 2 + stat.pod_name.len() + 9;
    assert_eq!(raw(&proxy, "").await.len(), expected);
}

#[tokio::test]
async fn item_123_the_stat_port_knows_one_path_and_one_format() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    assert_eq!(
        Client::connect(proxy.at(9090))
            .await
            .get("/")
            .await
            .status(),
        404
    );
    assert!(
        raw(&proxy, "Accept: text/plain\r\n")
            .await
            .starts_with(b"\x0a")
    );
    let post = Client::connect(proxy.at(9090))
        .await
        .post("/metrics", "")
        .await;
    assert_eq!(post.status(), 200);
}
