use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use tests::app::App;
use tests::client::Client;
use tests::{SLACK, eventually};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::proxy;

const UPGRADE: &str =
    "GET /up HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: chat/2\r\n\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat/2\r\n\r\n";

/// Starts an app which switches protocols and echoes.
async fn echo() -> App {
    App::raw(|mut connection| async move {
        if connection.request().await.is_none() {
            return;
        }
        connection.write(SWITCH).await;
        loop {
            let bytes = connection.read().await;
            if bytes.is_empty() || connection.try_write(&bytes).await.is_err() {
                return;
            }
        }
    })
    .await
}

async fn open(address: std::net::SocketAddr) -> Client {
    let mut client = Client::connect(address).await;
    client.send(UPGRADE).await;
    assert_eq!(client.head().await.status(), 101);
    client
}

#[tokio::test]
async fn item_056_websocket_messages_pass_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            while let Some(Ok(frame)) = socket.next().await {
                if frame.is_close() {
                    break;
                }
                socket.send(frame).await.unwrap();
            }
        }
    });
    let proxy = proxy(port).start().await;
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let request = format!("ws://{}/chat?x=1", proxy.address())
        .into_client_request()
        .unwrap();
    let (mut socket, response) = tokio_tungstenite::client_async(request, stream)
        .await
        .unwrap();
    assert!(response.headers().contains_key("sec-websocket-accept"));
    for frame in [
        Frame::text("hello"),
        Frame::binary(vec![0, 1, 2, 255]),
        Frame::text("x".repeat(200_000)),
    ] {
        socket.send(frame.clone()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), frame);
    }
}

#[tokio::test]
async fn item_057_a_refused_upgrade_is_passed_through() {
    let app = App::serving(|_| async {
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Why: no\r\n\r\nno".to_vec()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    let response = client.request(UPGRADE).await;
    assert_eq!((response.status(), response.text().as_str()), (403, "no"));
    assert_eq!(response.header("x-why"), Some("no"));
    assert_eq!(
        client.get("/").await.status(),
        403,
        "the connection continues"
    );
}

#[tokio::test]
async fn item_058_a_tunnel_holds_a_place_and_counts_one() {
    let app = echo().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let tunnel = open(proxy.address()).await;
    let mut waiting = proxy.connect().await;
    waiting.send(UPGRADE).await;
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert_eq!(app.log.count(), 1, "the second waits");
    let stat = proxy.stat().await;
    assert!(
        (stat.average_concurrent_requests - 2.0).abs() < 0.1,
        "{stat:?}"
    );
    drop(tunnel);
    assert_eq!(waiting.head().await.status(), 101);
}

#[tokio::test]
async fn item_059_a_tunnel_is_closed_at_the_request_timeout() {
    let app = echo().await;
    let proxy = proxy(app.port)
        .set("REVISION_TIMEOUT_SECONDS", 1)
        .start()
        .await;
    let mut tunnel = open(proxy.address()).await;
    let begin = Instant::now();
    tunnel.send("hello").await;
    assert_eq!(tunnel.bytes(5).await, b"hello");
    assert!(tunnel.rest().await.is_empty());
    let elapsed = begin.elapsed();
    assert!(
        elapsed > Duration::from_millis(800) && elapsed < Duration::from_secs(1) + SLACK,
        "{elapsed:?}"
    );
}

#[tokio::test]
async fn item_060_bytes_keep_a_tunnel_open_and_silence_does_not() {
    for name in [
        "REVISION_IDLE_TIMEOUT_SECONDS",
        "REVISION_RESPONSE_START_TIMEOUT_SECONDS",
    ] {
        let app = echo().await;
        let proxy = proxy(app.port).set(name, 1).start().await;
        let mut tunnel = open(proxy.address()).await;
        for _ in 0..5 {
            tunnel.send("x").await;
            assert_eq!(tunnel.bytes(1).await, b"x");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let begin = Instant::now();
        let mut silent = open(proxy.address()).await;
        silent.rest().await;
        let elapsed = begin.elapsed();
        let second = Duration::from_secs(1);
        assert!(
            elapsed >= second && elapsed < second + SLACK,
            "{name}: {elapsed:?}"
        );
    }
}

#[tokio::test]
async fn item_061_an_end_on_either_side_reaches_the_other() {
    let app = App::raw(|mut connection| async move {
        let Some(request) = connection.request().await else {
            return;
        };
        connection.write(SWITCH).await;
        if request.target() == "/up" {
            connection.write("bye").await;
            return;
        }
        let _served = connection
            .run_unless_closed(std::future::pending::<()>())
            .await;
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut tunnel = open(proxy.address()).await;
    assert_eq!(tunnel.rest().await, b"bye");

    let mut tunnel = Client::connect(proxy.address()).await;
    tunnel.send(UPGRADE.replace("/up", "/stay")).await;
    assert_eq!(tunnel.head().await.status(), 101);
    drop(tunnel);
    eventually("the app sees the end", || app.log.cancelled() == 1).await;
}

#[tokio::test]
async fn item_062_bytes_before_the_101_are_not_lost() {
    let app = App::raw(|mut connection| async move {
        if connection.request_head().await.is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The app writes early as well.
        connection.write(format!("{SWITCH}first ")).await;
        loop {
            let bytes = connection.read().await;
            if bytes.is_empty() {
                return;
            }
            connection.write(&bytes).await;
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send(format!("{UPGRADE}early")).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    client.send(" bird").await;
    assert_eq!(client.head().await.status(), 101);
    assert_eq!(client.bytes(16).await, b"first early bird");
}

#[tokio::test]
async fn item_063_any_protocol_is_tunnelled() {
    let app = echo().await;
    let proxy = proxy(app.port).start().await;
    let mut tunnel = Client::connect(proxy.address()).await;
    tunnel.send(UPGRADE).await;
    let head = tunnel.head().await;
    assert_eq!(head.start, "HTTP/1.1 101 Switching Protocols");
    assert_eq!(
        (head.header("upgrade"), head.header("connection")),
        (Some("chat/2"), Some("Upgrade"))
    );
    let seen = app.log.last();
    assert_eq!(
        (seen.header("upgrade"), seen.header("connection")),
        (Some("chat/2"), Some("Upgrade"))
    );
    tunnel.send("GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(tunnel.bytes(18).await, b"GET / HTTP/1.1\r\n\r\n");
}

#[tokio::test]
async fn a_switch_to_something_else_is_502() {
    let app = App::serving(|_| async { SWITCH.replace("chat/2", "other").into_bytes() }).await;
    let proxy = proxy(app.port).start().await;
    assert_eq!(proxy.connect().await.request(UPGRADE).await.status(), 502);
    let response = proxy.connect().await.get("/").await;
    assert_eq!(response.status(), 502, "an unrequested switch");
}

#[tokio::test]
async fn an_offer_of_h2c_is_ignored() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let lines =
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    assert_eq!(
        proxy.connect().await.get_with("/", lines).await.text(),
        "hello"
    );
    let seen = app.log.last();
    assert_eq!(
        (seen.header("upgrade"), seen.header("http2-settings")),
        (None, None)
    );
}

#[tokio::test]
async fn an_upgrade_with_a_body_is_refused() {
    let app = echo().await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client
        .send(UPGRADE.replace("\r\n\r\n", "\r\nContent-Length: 4\r\n\r\nbody"))
        .await;
    assert_eq!(client.response().await.status(), 400);
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn requests_of_either_protocol_may_arrive_byte_by_byte() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for byte in "PRIME / HTTP/1.1\r\nHost: t\r\n\r\n".bytes() {
        client.send([byte]).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(client.response().await.text(), "hello");
}
