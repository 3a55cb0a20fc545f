use std::time::{Duration, Instant};

use tests::app::App;
use tests::client::Client;
use tests::proxy::{Proxy, is_own};
use tests::{SLACK, eventually};

use crate::proxy;

const QUEUE: &str = "User-Agent: kube-probe/1.30\r\nK-Network-Probe: queue\r\n";
const QUIET: Duration = Duration::from_secs(30);
/// Tolerance of a due exit.
const MARGIN: Duration = Duration::from_secs(15);

async fn wait_for_drain(proxy: &Proxy) -> Duration {
    let begin = Instant::now();
    let response = Client::connect(proxy.at(8022))
        .await
        .get("/wait-for-drain")
        .await;
    assert_eq!((response.status(), response.body.len()), (200, 0));
    begin.elapsed()
}

async fn exits_after(proxy: &mut Proxy, begin: Instant, due: Duration) {
    assert_eq!(
        proxy.exit_code(due + MARGIN).await,
        Some(0),
        "{}",
        proxy.stderr()
    );
    let elapsed = begin.elapsed();
    assert!(
        elapsed >= due && elapsed < due + MARGIN,
        "{elapsed:?}, not {due:?}"
    );
}

#[tokio::test]
async fn item_107_while_draining_probes_fail_and_requests_are_served() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    assert_eq!(
        proxy.connect().await.get_with("/", QUEUE).await.status(),
        200
    );
    proxy.terminate();
    proxy.drains().await;
    for lines in [
        QUEUE,
        "User-Agent: kube-probe/1.30\r\n",
        "User-Agent: Knative-Activator-Probe\r\nK-Network-Probe: queue\r\n",
        "K-Network-Probe: probe\r\nK-Network-Hash: h\r\n",
        "K-Network-Probe: probe\r\n",
    ] {
        let response = proxy.connect().await.get_with("/", lines).await;
        assert_eq!(
            (response.status(), response.text().as_str()),
            (503, "shutting down\n"),
            "{lines}"
        );
    }
    assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
    let response = proxy
        .connect()
        .await
        .get_with("/", "K-Network-Probe: queue\r\n")
        .await;
    assert_eq!(
        response.text(),
        "hello",
        "an ordinary client that says queue"
    );
}

#[tokio::test]
async fn item_108_without_traffic_it_exits_after_the_quiet_period() {
    let app = App::saying("hello").await;
    let mut proxy = proxy(app.port).start().await;
    let mut idle = proxy.connect().await;
    idle.get("/").await;
    let begin = Instant::now();
    proxy.terminate();
    exits_after(&mut proxy, begin, QUIET).await;
    assert!(idle.rest().await.is_empty(), "idle connections are closed");
}

#[tokio::test]
async fn item_109_requests_restart_the_quiet_period_and_probes_and_tunnels_do_not() {
    let app = App::raw(|mut connection| async move {
        while let Some(request) = connection.request().await {
            if request.target() != "/up" {
                connection.write(tests::app::ok("hello")).await;
                continue;
            }
            connection
                .write("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
                .await;
            loop {
                let bytes = connection.read().await;
                if bytes.is_empty() || connection.try_write(&bytes).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    let mut proxy = proxy(app.port).start().await;
    let mut tunnel = proxy.connect().await;
    tunnel
        .send("GET /up HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        .await;
    assert_eq!(tunnel.head().await.status(), 101);
    let begin = Instant::now();
    proxy.terminate();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
    while begin.elapsed() < Duration::from_secs(30) {
        proxy.connect().await.get_with("/", QUEUE).await;
        tunnel.send("ping").await;
        assert_eq!(tunnel.bytes(4).await, b"ping");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    drop(tunnel);
    let code = proxy.exit_code(QUIET + Duration::from_secs(10)).await;
    assert_eq!(code, Some(0));
    let elapsed = begin.elapsed();
    assert!(
        elapsed < QUIET + Duration::from_secs(5) + MARGIN,
        "{elapsed:?}"
    );
    let least = QUIET + Duration::from_secs(4);
    assert!(elapsed > least || !is_own(), "{elapsed:?}");
}

#[tokio::test]
async fn item_110_a_request_in_flight_is_completed() {
    let app = App::delaying().await;
    let app2 = tests::app2::App2::serving(|_| async {
        tokio::time::sleep(Duration::from_secs(35)).await;
        http::Response::new(tests::client2::full("done"))
    })
    .await;
    let mut one = proxy(app.port).start().await;
    let mut two = proxy(app2.port).start().await;
    let mut client = one.connect().await;
    client.send("GET /35000 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let address = two.address();
    let stream = tokio::spawn(async move {
        tests::client2::Client2::connect(address)
            .await
            .get("/")
            .await
            .1
    });
    eventually("both are at their app", || {
        app.log.count() == 1 && app2.live() == 1
    })
    .await;
    let begin = Instant::now();
    one.terminate();
    two.terminate();
    tokio::time::sleep(QUIET + Duration::from_secs(2)).await;
    assert!(
        tokio::net::TcpStream::connect(one.address()).await.is_err(),
        "the listener is closed"
    );
    assert_eq!(client.response().await.text(), "done");
    assert_eq!(stream.await.unwrap(), "done");
    exits_after(&mut one, begin, Duration::from_millis(34_900)).await;
    exits_after(&mut two, begin, Duration::from_millis(34_900)).await;
}

#[tokio::test]
async fn item_111_a_tunnel_delays_the_exit_by_a_minute_at_most() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection
                .write("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
                .await;
            connection.closed().await;
        }
    })
    .await;
    let mut proxy = proxy(app.port).start().await;
    let mut tunnel = proxy.connect().await;
    tunnel
        .send("GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        .await;
    assert_eq!(tunnel.head().await.status(), 101);
    let begin = Instant::now();
    proxy.terminate();
    exits_after(&mut proxy, begin, QUIET + Duration::from_secs(60)).await;
}

#[tokio::test]
async fn item_112_wait_for_drain_answers_all_when_the_quiet_period_ends() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let begin = Instant::now();
    proxy.terminate();
    proxy.drains().await;
    tokio::join!(wait_for_drain(&proxy), wait_for_drain(&proxy));
    let waited = begin.elapsed();
    assert!(waited >= QUIET && waited < QUIET + MARGIN, "{waited:?}");
}

#[tokio::test]
async fn item_113_without_a_signal_the_drain_is_aborted_after_a_second() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let waited = wait_for_drain(&proxy).await;
    assert!(
        waited > Duration::from_millis(950) && waited < Duration::from_secs(1) + SLACK,
        "{waited:?}"
    );
    assert_eq!(
        proxy.connect().await.get_with("/", QUEUE).await.text(),
        "queue"
    );
}

#[tokio::test]
async fn item_114_the_admin_port_knows_one_path() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let mut client = Client::connect(proxy.at(8022)).await;
    for path in ["/", "/metrics", "/wait-for-drain/x"] {
        assert_eq!(client.get(path).await.status(), 404, "{path}");
    }
}

#[tokio::test]
async fn item_115_the_stat_is_there_during_the_quiet_period() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    proxy.terminate();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(proxy.stat().await.process_uptime > 0.0);
}

#[tokio::test]
async fn item_116_a_second_signal_exits_at_once_with_1() {
    let app = App::silent().await;
    let mut proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("a request is in flight", || app.log.live() == 1).await;
    proxy.terminate();
    proxy.drains().await;
    proxy.terminate();
    // A drain would take half a minute.
    assert_eq!(proxy.exit_code(MARGIN).await, Some(1));
}

#[tokio::test]
async fn item_108_silent_clients_do_not_delay_it() {
    let app = App::saying("hello").await;
    let mut proxy = proxy(app.port).start().await;
    // A connection without a byte, one within HTTP/2's preface, and one without streams that answers no ping.
    let _silent = proxy.connect().await;
    let mut partial = proxy.connect().await;
    partial.send("PRI * HT").await;
    let mut idle = proxy.connect().await;
    idle.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await;
    let begin = Instant::now();
    proxy.terminate();
    exits_after(&mut proxy, begin, QUIET).await;
}

#[tokio::test]
async fn item_108_an_incomplete_head_delays_it_by_five_seconds_at_most() {
    let app = App::saying("hello").await;
    let mut proxy = proxy(app.port).start().await;
    let begin = Instant::now();
    proxy.terminate();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let mut partial = proxy.connect().await;
    partial.send("GET / HT").await;
    let code = proxy.exit_code(QUIET + Duration::from_secs(10)).await;
    assert_eq!(code, Some(0));
    let elapsed = begin.elapsed();
    assert!(
        elapsed < QUIET + Duration::from_secs(5) + MARGIN,
        "{elapsed:?}"
    );
}
