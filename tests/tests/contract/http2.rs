use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use tests::app::App;
use tests::app2::{App2, Body};
use tests::client2::{Client2, empty, full, whole};
use tests::proxy::is_own;
use tests::{SLACK, eventually};
use tokio::sync::{Notify, mpsc};

use crate::proxy;

/// Returns a request body fed by a channel.
fn channel() -> (mpsc::Sender<Frame<Bytes>>, Body) {
    let (tx, rx) = mpsc::channel(16);
    let stream = futures_util::stream::unfold(rx, |mut rx: mpsc::Receiver<Frame<Bytes>>| async {
        rx.recv().await.map(|frame| (Ok(frame), rx))
    });
    (tx, StreamBody::new(stream).boxed())
}

async fn next_data(body: &mut Incoming) -> Option<Bytes> {
    body.frame()
        .await
        .map(|frame| frame.unwrap().into_data().unwrap())
}

/// Returns a gRPC message with its five bytes of head.
fn message(text: &str) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.into()
}

fn grpc_trailers(status: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    trailers.insert("grpc-message", HeaderValue::from_static("said so"));
    trailers
}

#[tokio::test]
async fn item_048_the_protocol_of_the_client_is_the_protocol_to_the_app() {
    let app = App2::serving(|request| async move {
        Response::new(full(format!("{:?} {}", request.version(), request.uri())))
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = Client2::connect(proxy.address()).await;
    let (head, body) = client.get("/x;y/%2F?z=").await;
    assert_eq!(head.status, 200);
    assert_eq!(
        body,
        format!("HTTP/2.0 http://{}/x;y/%2F?z=", proxy.address())
    );
    drop(proxy);
    let app1 = App::saying("one").await;
    let proxy = crate::proxy(app1.port).start().await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "one");
    assert!(app1.log.last().start.ends_with("HTTP/1.1"));
}

#[tokio::test]
async fn item_050_250_streams_run_on_one_connection() {
    let gate = Arc::new(Notify::new());
    let app = App2::serving({
        let gate = Arc::clone(&gate);
        move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                Response::new(full("hello"))
            }
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let client = Client2::connect(proxy.address()).await;
    let streams: Vec<_> = (0..250)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.get("/").await.0.status })
        })
        .collect();
    eventually("all streams are at the app", || app.live() == 250).await;
    assert!(
        app.connections.load(Ordering::SeqCst) <= if is_own() { 3 } else { 25 },
        "streams share connections"
    );
    for _ in 0..250 {
        gate.notify_one();
        tokio::task::yield_now().await;
    }
    while app.live() > 0 {
        gate.notify_waiters();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for stream in streams {
        assert_eq!(stream.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn item_051_grpc_calls_pass_with_metadata_trailers_and_status() {
    let app = App2::serving(|request| async move {
        assert_eq!(request.headers()["te"], "trailers");
        assert_eq!(request.headers()["grpc-encoding"], "identity");
        let bin = request.headers()["x-meta-bin"].clone();
        let streaming = request.uri().path() == "/svc/ServerStream";
        let failing = request.uri().path() == "/svc/Fail";
        let (tx, body) = channel();
        tokio::spawn(async move {
            let collected = request.into_body().collect().await.unwrap();
            assert_eq!(
                collected.trailers().map(|t| t["x-client"].clone()),
                Some(HeaderValue::from_static("end"))
            );
            let received = collected.to_bytes();
            if failing {
                tx.send(Frame::trailers(grpc_trailers("5"))).await.unwrap();
                return;
            }
            for _ in 0..if streaming { 3 } else { 1 } {
                tx.send(Frame::data(received.clone())).await.unwrap();
            }
            tx.send(Frame::trailers(grpc_trailers("0"))).await.unwrap();
        });
        let mut response = Response::new(body);
        response
            .headers_mut()
            .insert("content-type", HeaderValue::from_static("application/grpc"));
        response.headers_mut().insert("x-meta-bin", bin);
        response
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = Client2::connect(proxy.address()).await;
    for (path, messages, status) in [
        ("/svc/Unary", 1, "0"),
        ("/svc/ServerStream", 3, "0"),
        ("/svc/ClientStream", 1, "0"),
        ("/svc/Fail", 0, "5"),
    ] {
        let (tx, body) = channel();
        let request = client
            .builder("POST", path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-encoding", "identity")
            .header("x-meta-bin", "AAEC")
            .body(body)
            .unwrap();
        let sender = tokio::spawn(async move {
            tx.send(Frame::data(message("one"))).await.unwrap();
            if path == "/svc/ClientStream" {
                tx.send(Frame::data(message("two"))).await.unwrap();
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("x-client", HeaderValue::from_static("end"));
            tx.send(Frame::trailers(trailers)).await.unwrap();
        });
        let (head, bytes, trailers) = whole(client.send(request).await.unwrap()).await.unwrap();
        sender.await.unwrap();
        assert_eq!(head.headers["content-type"], "application/grpc");
        assert_eq!(head.headers["x-meta-bin"], "AAEC");
        let trailers = trailers.unwrap();
        assert_eq!(
            (&trailers["grpc-status"], &trailers["grpc-message"]),
            (
                &HeaderValue::from_static(status),
                &HeaderValue::from_static("said so")
            )
        );
        let sent = if path == "/svc/ClientStream" {
            [message("one"), message("two")].concat()
        } else {
            message("one").to_vec()
        };
        assert_eq!(bytes, sent.repeat(messages), "{path}");
    }
}

#[tokio::test]
async fn item_052_a_ping_pong_is_not_buffered() {
    let app = App2::serving(|request| async move {
        let (tx, body) = channel();
        tokio::spawn(async move {
            let mut incoming = request.into_body();
            while let Some(data) = next_data(&mut incoming).await {
                tx.send(Frame::data(data)).await.unwrap();
            }
            tx.send(Frame::trailers(grpc_trailers("0"))).await.unwrap();
        });
        Response::new(body)
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = Client2::connect(proxy.address()).await;
    let (tx, body) = channel();
    let request = client.builder("POST", "/").body(body).unwrap();
    let mut pongs = client.send(request).await.unwrap().into_body();
    for n in 0..20 {
        let ping = message(&format!("ping {n}"));
        tx.send(Frame::data(ping.clone())).await.unwrap();
        assert_eq!(next_data(&mut pongs).await.unwrap(), ping);
    }
    drop(tx);
    assert_eq!(
        pongs
            .frame()
            .await
            .unwrap()
            .unwrap()
            .into_trailers()
            .unwrap()["grpc-status"],
        "0"
    );
}

#[tokio::test]
async fn item_053_a_reset_cancels_its_stream_only_whether_queued_or_dispatched() {
    let started = Arc::<AtomicUsize>::default();
    let app = App2::serving({
        let started = Arc::clone(&started);
        move |_| {
            started.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Response<Body>>()
        }
    })
    .await;
    let proxy = proxy(app.port).concurrency(2).start().await;
    let client = Client2::connect(proxy.address()).await;
    let call = |kind: &'static str| {
        let mut client = client.clone();
        // An endless body stays unread while its call waits.
        let (tx, body) = channel();
        let request = client
            .builder("POST", "/")
            .header("content-type", kind)
            .body(body)
            .unwrap();
        tokio::spawn(async move {
            let _open = tx;
            client.send(request).await.map(drop)
        })
    };
    let first = call("application/grpc");
    eventually("the first is at the app", || app.live() == 1).await;
    let second = call("text/plain");
    eventually("both are at the app", || app.live() == 2).await;
    let queued = call("application/grpc");
    tokio::time::sleep(Duration::from_millis(100)).await;
    queued.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    first.abort();
    let begin = Instant::now();
    eventually("one is left", || app.live() == 1).await;
    assert!(begin.elapsed() < Duration::from_millis(100) + SLACK);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        started.load(Ordering::SeqCst),
        2,
        "the queued one never reached the app"
    );
    assert!(!second.is_finished(), "its sibling continues");
}

#[tokio::test]
async fn an_upstream_connection_after_many_streams_is_closed_once_idle() {
    let (release, released) = tokio::sync::watch::channel(false);
    let app = App2::serving(move |_| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            Response::new(empty())
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let client = Client2::connect(proxy.address()).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let mut client = client.clone();
        calls.spawn(async move { client.get("/").await.0.status });
    }
    eventually("all are at the app", || app.live() == 100).await;
    let connections = app.connections.load(Ordering::SeqCst);
    release.send(true).unwrap();
    while let Some(status) = calls.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    eventually("the connection is closed", || {
        app.ended.load(Ordering::SeqCst) == connections
    })
    .await;
    assert_eq!(client.clone().get("/").await.0.status, 200);
}

#[tokio::test]
async fn item_053_the_end_of_a_connection_cancels_all_its_streams() {
    let app = App2::serving(|_| std::future::pending::<Response<Body>>()).await;
    let proxy = proxy(app.port).start().await;
    let mut stream = tokio::net::TcpStream::connect(proxy.address())
        .await
        .unwrap();
    // Preface, SETTINGS, HEADERS of stream 1: GET http / on authority t, without END_STREAM.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let block = [0x83, 0x86, 0x84, 0x41, 0x01, b't'];
    bytes.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), 1, 4, 0, 0, 0, 1]);
    bytes.extend_from_slice(&block);
    tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes)
        .await
        .unwrap();
    eventually("the request is at the app", || app.live() == 1).await;
    drop(stream);
    let begin = Instant::now();
    eventually("the request is cancelled", || app.live() == 0).await;
    assert!(begin.elapsed() < Duration::from_millis(100) + SLACK);
}

#[tokio::test]
async fn item_054_http2_to_an_http1_app_is_502() {
    let app = App::raw(|mut connection| async move {
        connection.read().await;
        connection
            .write("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .await;
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let (head, body) = Client2::connect(proxy.address()).await.get("/").await;
    assert_eq!(head.status, 502);
    assert!(!body.is_empty());
}

#[tokio::test]
async fn item_055_errors_of_the_proxy_carry_a_grpc_status() {
    let closed = App2::serving(|_| async { Response::new(empty()) })
        .await
        .port;
    let bad_gateway = proxy(closed).start().await;
    let silent = App2::serving(|_| std::future::pending::<Response<Body>>()).await;
    let timeout = proxy(silent.port)
        .set("REVISION_TIMEOUT_SECONDS", 1)
        .start()
        .await;
    for (proxy, status, grpc) in [(&bad_gateway, 502, "14"), (&timeout, 504, "4")] {
        let mut client = Client2::connect(proxy.address()).await;
        let request = client
            .builder("POST", "/svc/Call")
            .header("content-type", "application/grpc+proto")
            .body(full(message("x")))
            .unwrap();
        let response = client.send(request).await.unwrap();
        assert!(
            hyper::body::Body::is_end_stream(response.body()),
            "a head alone"
        );
        assert_eq!(
            (
                response.status().as_u16(),
                &response.headers()["grpc-status"]
            ),
            (status, &HeaderValue::from_static(grpc))
        );
    }
}

#[tokio::test]
async fn the_authority_governs_over_a_host_header() {
    let app = App2::serving(|request| async move {
        let host = request.headers().get("host").cloned();
        Response::new(full(format!(
            "{} {host:?}",
            request.uri().authority().unwrap()
        )))
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = Client2::connect(proxy.address()).await;
    let request = client
        .builder("GET", "/")
        .header("host", "other")
        .body(empty())
        .unwrap();
    let (_, body, _) = whole(client.send(request).await.unwrap()).await.unwrap();
    assert_eq!(body, format!("{} None", proxy.address()));
}

#[tokio::test]
async fn headers_are_treated_alike_over_http2() {
    let app = App2::serving(|request| async move {
        let headers = request.headers();
        let text = |name: &str| {
            headers.get(name).map_or_else(
                || "-".to_owned(),
                |value| value.to_str().unwrap().to_owned(),
            )
        };
        let line = format!(
            "{} {} {} {}",
            request.uri().authority().unwrap(),
            text("x-forwarded-for"),
            text("k-original-host"),
            text("knative-serving-revision")
        );
        let mut response = Response::new(Full::new(Bytes::from(line)).boxed());
        *response.status_mut() = http::StatusCode::IM_A_TEAPOT;
        response
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = Client2::connect(proxy.address()).await;
    let request = client
        .builder("GET", "/")
        .header("k-original-host", "a.b")
        .header("knative-serving-revision", "r")
        .header("x-forwarded-for", "1.2.3.4")
        .body(empty())
        .unwrap();
    let (head, body, _) = whole(client.send(request).await.unwrap()).await.unwrap();
    assert_eq!(head.status, 418);
    assert_eq!(body, "a.b 1.2.3.4, 127.0.0.1 - -");
    assert!(head.headers.contains_key("date"));
}

#[tokio::test]
async fn an_unread_waiting_stream_delays_no_other() {
    let app = App2::serving(|request| async move {
        if request.uri().path() == "/hold" {
            std::future::pending::<()>().await;
        }
        Response::new(full("done"))
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let client = Client2::connect(proxy.address()).await;
    // Uploads that the app never reads fill the windows of their own streams only.
    for _ in 0..4 {
        let mut client = client.clone();
        let request = client
            .builder("POST", "/hold")
            .body(full(vec![0; 3 << 20]))
            .unwrap();
        tokio::spawn(async move { client.send(request).await.map(drop) });
    }
    eventually("they are at the app", || app.live() == 4).await;
    let mut other = client.clone();
    let request = other
        .builder("POST", "/")
        .body(full(vec![0; 1 << 20]))
        .unwrap();
    let (head, body, _) = whole(other.send(request).await.unwrap()).await.unwrap();
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"done"[..]));
}
