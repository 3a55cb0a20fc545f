//! Requests that are sent to the user container a second time, and those that are not (invariant 1).

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tests::app::{App, Connection, ok};
use tests::client::Client;
use tests::client2::{Client2, empty, full, whole};
use tests::eventually;
use tests::proxy::{Proxy, is_own};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::proxy;

const RETRIES: &str = "weir_upstream_retries_total";

/// Starts an application that answers the first request of each connection and closes it after reading the second.
async fn closing_at_the_second_request() -> App {
    App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection.write(ok("")).await;
            connection.request().await;
        }
    })
    .await
}

/// Starts an application with a first connection which answers one request, reads another and then ends as `end` does.
async fn ending<F, S>(end: F) -> App
where
    F: Fn(Connection) -> S + Send + Sync + Clone + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let connections = Arc::<AtomicUsize>::default();
    App::raw(move |mut connection| {
        let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        let end = end.clone();
        async move {
            while connection.request().await.is_some() {
                connection.write(ok("")).await;
                if is_first {
                    connection.request().await;
                    end(connection).await;
                    return;
                }
            }
        }
    })
    .await
}

fn head(method: &str, lines: &str) -> String {
    format!("{method} / HTTP/1.1\r\nHost: t\r\n{lines}\r\n")
}

/// Sends a request on a connection to the application that has served another one before; returns its status.
async fn after_another(proxy: &Proxy, request: &str) -> u16 {
    let mut client = proxy.connect().await;
    assert_eq!(client.get("/").await.status(), 200);
    client.request(request).await.status()
}

async fn retries(proxy: &Proxy) -> Option<f64> {
    proxy.metrics().await.value(RETRIES, &[])
}

#[tokio::test]
async fn an_idempotent_request_on_a_closed_connection_is_sent_once_more() {
    let app = closing_at_the_second_request().await;
    let proxy = proxy(app.port).set("WEIR_QUEUE_DEPTH", 5).concurrency(1);
    let proxy = proxy.start().await;
    let mut client = proxy.connect().await;
    assert_eq!(client.get("/").await.status(), 200);
    let requests = [
        ("GET", ""),
        ("HEAD", ""),
        ("OPTIONS", ""),
        ("TRACE", ""),
        ("POST", "Idempotency-Key: 1\r\nContent-Length: 0\r\n"),
        ("DELETE", "X-Idempotency-Key: 1\r\n"),
    ];
    for (n, (method, lines)) in requests.into_iter().enumerate() {
        let before = app.log.count();
        let answer = client.request(head(method, lines)).await;
        assert_eq!(answer.status(), 200, "{method}");
        assert_eq!(app.log.count(), before + 2, "{method}");
        if is_own() {
            assert_eq!(retries(&proxy).await, Some((n + 1) as f64), "{method}");
        }
    }
    let seen = app.log.requests();
    let [.., first, second] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(first.headers, second.headers);
}

#[tokio::test]
async fn any_other_request_that_may_have_reached_the_app_is_sent_once() {
    let app = closing_at_the_second_request().await;
    let proxy = proxy(app.port).start().await;
    for (method, lines) in [
        ("POST", "Content-Length: 0\r\n"),
        ("POST", "Content-Length: 2\r\n\r\nhi"),
        ("POST", "Idempotency-Key: 1\r\nContent-Length: 2\r\n\r\nhi"),
        ("GET", "Content-Length: 2\r\n\r\nhi"),
        ("PUT", "Content-Length: 0\r\n"),
        ("DELETE", ""),
    ] {
        let before = app.log.count();
        let request = match lines.split_once("\r\n\r\n") {
            Some((lines, body)) => head(method, &format!("{lines}\r\n")) + body,
            None => head(method, lines),
        };
        let status = after_another(&proxy, &request).await;
        assert_eq!(status, 502, "{request:?}");
        // The one before it, and itself.
        assert_eq!(app.log.count(), before + 2, "{request:?}");
    }
}

#[tokio::test]
async fn a_request_is_sent_a_second_time_and_not_a_third() {
    let first = Arc::<AtomicUsize>::default();
    let app = App::raw(move |mut connection| {
        let is_first = first.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if connection.request().await.is_some() && is_first {
                connection.write(ok("")).await;
                connection.request().await;
            }
        }
    })
    .await;
    let proxy = proxy(app.port).set("WEIR_QUEUE_DEPTH", 5).concurrency(1);
    let proxy = proxy.start().await;
    assert_eq!(after_another(&proxy, &head("GET", "")).await, 502);
    assert_eq!(app.log.count(), 3);
    // A connection that never served a request was not idle.
    assert_eq!(proxy.connect().await.get("/").await.status(), 502);
    assert_eq!(app.log.count(), 4);
    if is_own() {
        assert_eq!(retries(&proxy).await, Some(1.0));
    }
}

#[tokio::test]
async fn after_a_byte_of_an_answer_nothing_is_sent_again() {
    for begun in ["H", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        let app = ending(move |mut connection| async move { connection.write(begun).await }).await;
        let proxy = proxy(app.port).start().await;
        let status = after_another(&proxy, &head("GET", "")).await;
        assert_eq!((status, app.log.count()), (502, 2), "{begun:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_reset_counts_as_closed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 * 1024];
            assert_ne!(stream.read(&mut request).await.unwrap(), 0);
            stream.write_all(&ok("hello")).await.unwrap();
            // Unread bytes make the kernel send a reset.
            stream.readable().await.unwrap();
        }
    });
    let proxy = proxy(port).start().await;
    assert_eq!(after_another(&proxy, &head("GET", "")).await, 200);
    drop(proxy);
    app.await.unwrap();
}

#[tokio::test]
async fn the_second_attempt_ends_at_the_requests_own_timeout() {
    let connections = Arc::<AtomicUsize>::default();
    let app = App::raw(move |mut connection| {
        let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            connection.request().await;
            if is_first {
                connection.write(ok("")).await;
                connection.request().await;
            } else {
                connection.closed().await;
            }
        }
    })
    .await;
    let proxy = proxy(app.port).set("REVISION_TIMEOUT_SECONDS", 1);
    let proxy = proxy.start().await;
    assert_eq!(after_another(&proxy, &head("GET", "")).await, 504);
    assert_eq!(app.log.count(), 3);
}

#[tokio::test]
async fn the_second_attempt_keeps_its_place_at_the_gate_and_gets_the_remaining_budget() {
    let app = ending(|connection| async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(connection);
    })
    .await;
    let proxy = proxy(app.port).concurrency(1).set("WEIR_SLO", "20s");
    let proxy = proxy.start().await;
    let mut client = proxy.connect().await;
    assert_eq!(client.get("/").await.status(), 200);
    let send = async |target: &str| -> Client {
        let mut client = proxy.connect().await;
        let request = format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n");
        client.send(request).await;
        client
    };
    let mut retried = send("/retried").await;
    eventually("the request is at the application", || app.log.count() == 2).await;
    let mut waiting = send("/waiting").await;
    assert_eq!(retried.response().await.status(), 200);
    assert_eq!(waiting.response().await.status(), 200);
    let seen = app.log.requests();
    let targets: Vec<_> = seen.iter().map(tests::message::Message::target).collect();
    assert_eq!(targets, ["/", "/retried", "/retried", "/waiting"]);
    if is_own() {
        let budget =
            |n: usize| -> u64 { seen[n].header("weir-budget-ms").unwrap().parse().unwrap() };
        assert!(budget(2) + 300 <= budget(1), "{} {}", budget(1), budget(2));
    }
}

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

/// End of the second stream of the first connection.
#[derive(Debug, Clone, Copy)]
enum End {
    Reset(u32),
    GoAway,
    Close,
}

async fn write_frame(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(id.to_be_bytes());
    frame.extend(payload);
    stream.write_all(&frame).await.unwrap();
}

/// Serves an HTTP/2 connection: answers its first `answered` streams with 200, ends the next one and, unless that is only reset,
/// the connection.
async fn serve(mut stream: TcpStream, answered: usize, end: End, heads: Arc<AtomicUsize>) {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    write_frame(&mut stream, SETTINGS, 0, 0, &[]).await;
    let mut streams = 0;
    let mut frame = [0; 9];
    while stream.read_exact(&mut frame).await.is_ok() {
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
        let id = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        if frame[3] != HEADERS {
            continue;
        }
        heads.fetch_add(1, Ordering::SeqCst);
        streams += 1;
        if streams <= answered {
            // `:status: 200`, the end of the headers and of the stream.
            write_frame(&mut stream, HEADERS, 5, id, &[0x88]).await;
            continue;
        }
        match end {
            End::Reset(code) => {
                write_frame(&mut stream, RESET, 0, id, &code.to_be_bytes()).await;
            }
            End::GoAway => {
                let last = [(id - 2).to_be_bytes(), 0_u32.to_be_bytes()].concat();
                write_frame(&mut stream, GOAWAY, 0, 0, &last).await;
                return;
            }
            End::Close => return,
        }
    }
}

/// Returns the status of a request with a stream that ends so, and the number of heads received by the application for it.
async fn over_http2(end: End, method: &str, body: Option<&'static str>) -> (u16, usize) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heads = Arc::<AtomicUsize>::default();
    let app = tokio::spawn({
        let heads = Arc::clone(&heads);
        async move {
            let mut connections = tokio::task::JoinSet::new();
            let mut answered = 1;
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, answered, end, Arc::clone(&heads)));
                answered = usize::MAX;
            }
        }
    });
    let proxy = proxy(port).start().await;
    let mut client = Client2::connect(proxy.address()).await;
    let mut status = 0;
    for (method, body) in [("GET", None), (method, body)] {
        let request = client.builder(method, "/");
        let request = request.body(body.map_or_else(empty, full)).unwrap();
        let (parts, ..) = whole(client.send(request).await.unwrap()).await.unwrap();
        status = parts.status.as_u16();
    }
    app.abort();
    (status, heads.load(Ordering::SeqCst) - 1)
}

#[tokio::test]
async fn over_http2_a_refused_or_cut_stream_is_opened_once_more() {
    for end in [End::Reset(REFUSED_STREAM), End::GoAway, End::Close] {
        assert_eq!(over_http2(end, "GET", None).await, (200, 2), "{end:?}");
        assert_eq!(over_http2(end, "POST", None).await, (502, 1), "{end:?}");
        assert_eq!(
            over_http2(end, "POST", Some("hi")).await,
            (502, 1),
            "{end:?}"
        );
    }
}

#[tokio::test]
async fn over_http2_a_stream_reset_by_the_app_is_not_opened_again() {
    let end = End::Reset(INTERNAL_ERROR);
    assert_eq!(over_http2(end, "GET", None).await, (502, 1));
}
