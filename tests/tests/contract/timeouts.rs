use std::time::{Duration, Instant};

use tests::app::{App, chunk};
use tests::app2::App2;
use tests::client2::{Client2, empty, whole};
use tests::message::Kind;
use tests::{SLACK, eventually};

use crate::proxy;

const REQUEST: &str = "REVISION_TIMEOUT_SECONDS";
const RESPONSE_START: &str = "REVISION_RESPONSE_START_TIMEOUT_SECONDS";
const IDLE: &str = "REVISION_IDLE_TIMEOUT_SECONDS";
const SECOND: Duration = Duration::from_secs(1);
const GET: &str = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";

fn about(elapsed: Duration, wanted: Duration) {
    assert!(
        elapsed >= wanted && elapsed < wanted + SLACK,
        "{elapsed:?}, not {wanted:?}"
    );
}

/// Starts an app which sends a head, then chunks with pauses between them.
async fn app_with_pauses(pause: Duration, chunks: usize) -> App {
    App::raw(move |mut connection| async move {
        while connection.request().await.is_some() {
            let served = async { tokio::time::sleep(pause).await };
            connection
                .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await;
            connection.write(chunk("foo")).await;
            for _ in 1..chunks {
                tokio::time::sleep(pause).await;
                connection.write(chunk("foo")).await;
            }
            served.await;
            connection.write("0\r\n\r\n").await;
        }
    })
    .await
}

#[tokio::test]
async fn item_064_a_silent_app_gets_the_client_a_504() {
    let app = App::silent().await;
    let proxy = proxy(app.port).set(REQUEST, 1).start().await;
    let mut client = proxy.connect().await;
    let begin = Instant::now();
    let response = client.get("/").await;
    about(begin.elapsed(), SECOND);
    assert_eq!(response.start, "HTTP/1.1 504 Gateway Timeout");
    assert_eq!(response.text(), "request timeout");
    assert_eq!(
        response.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(response.header("content-length"), Some("15"));
}

#[tokio::test]
async fn item_065_the_clock_starts_on_arrival() {
    let app = App::delaying().await;
    let proxy = proxy(app.port).concurrency(1).set(REQUEST, 2).start().await;
    let mut first = proxy.connect().await;
    first.send("GET /5000 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("the first is at the app", || app.log.count() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let begin = Instant::now();
    assert_eq!(proxy.connect().await.get("/5000").await.status(), 504);
    about(begin.elapsed(), 2 * SECOND);
}

#[tokio::test]
async fn item_066_no_header_within_the_response_start_timeout_is_504() {
    let app = App::silent().await;
    let proxy = proxy(app.port)
        .set(REQUEST, 10)
        .set(RESPONSE_START, 1)
        .start()
        .await;
    let mut client = proxy.connect().await;
    let begin = Instant::now();
    let response = client.get("/").await;
    about(begin.elapsed(), SECOND);
    assert_eq!(
        (response.status(), response.text().as_str()),
        (504, "request timeout")
    );
}

#[tokio::test]
async fn item_067_a_started_response_may_take_longer() {
    let app = app_with_pauses(Duration::from_millis(500), 4).await;
    let proxy = proxy(app.port)
        .set(REQUEST, 10)
        .set(RESPONSE_START, 1)
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "foo".repeat(4));
}

#[tokio::test]
async fn item_068_no_first_byte_within_the_idle_timeout_is_504() {
    let app = App::silent().await;
    let proxy = proxy(app.port).set(REQUEST, 10).set(IDLE, 1).start().await;
    let mut client = proxy.connect().await;
    let begin = Instant::now();
    assert_eq!(client.get("/").await.status(), 504);
    about(begin.elapsed(), SECOND);
}

#[tokio::test]
async fn item_069_bytes_in_time_keep_a_response_alive() {
    let app = app_with_pauses(Duration::from_millis(500), 10).await;
    let proxy = proxy(app.port).set(IDLE, 1).start().await;
    assert_eq!(
        proxy.connect().await.get("/").await.text(),
        "foo".repeat(10)
    );
}

#[tokio::test]
async fn item_070_zero_turns_response_start_and_idle_off() {
    let app = App::delaying().await;
    let proxy = proxy(app.port)
        .set(RESPONSE_START, 0)
        .set(IDLE, 0)
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/1500").await.text(), "done");
}

#[tokio::test]
async fn item_071_a_response_that_has_begun_is_ended_with_the_text() {
    let app = app_with_pauses(Duration::from_secs(30), 2).await;
    for name in [REQUEST, IDLE] {
        let proxy = proxy(app.port).set(name, 1).start().await;
        let mut client = proxy.connect().await;
        let begin = Instant::now();
        let response = client.get("/").await;
        about(begin.elapsed(), SECOND);
        assert_eq!(
            (response.status(), response.text().as_str()),
            (200, "foorequest timeout")
        );
        assert_eq!(
            client.get("/").await.status(),
            200,
            "the connection continues"
        );
    }
}

#[tokio::test]
async fn item_071_over_http2_it_is_ended_too_and_with_a_length_it_is_cut_short() {
    let app = App2::serving(|_| async {
        let first = futures_util::stream::once(async {
            Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(bytes::Bytes::from("foo")))
        });
        let stream = futures_util::StreamExt::chain(first, futures_util::stream::pending());
        http::Response::new(http_body_util::BodyExt::boxed(
            http_body_util::StreamBody::new(stream),
        ))
    })
    .await;
    let proxy2 = proxy(app.port).set(REQUEST, 1).start().await;
    let mut client = Client2::connect(proxy2.address()).await;
    let request = client.builder("GET", "/").body(empty()).unwrap();
    let (head, body, _) = whole(client.send(request).await.unwrap()).await.unwrap();
    assert_eq!(
        (head.status.as_u16(), &body[..]),
        (200, &b"foorequest timeout"[..])
    );

    drop(proxy2);
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection
                .write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfoo")
                .await;
            connection.closed().await;
        }
    })
    .await;
    let proxy1 = proxy(app.port).set(REQUEST, 1).start().await;
    let mut client = proxy1.connect().await;
    client.send(GET).await;
    let mut response = client.head().await;
    client
        .body(&mut response, Kind::Response)
        .await
        .unwrap_err();
    assert_eq!(response.text(), "foorequest timeout");
}

#[tokio::test]
async fn item_071_with_the_option_it_is_cut_instead() {
    let app = app_with_pauses(Duration::from_secs(30), 2).await;
    let proxy = proxy(app.port)
        .set(REQUEST, 1)
        .set("WEIR_MID_STREAM_TIMEOUT", "abort")
        .start()
        .await;
    let mut client = proxy.connect().await;
    client.send(GET).await;
    let mut response = client.head().await;
    client
        .body(&mut response, Kind::Response)
        .await
        .unwrap_err();
    assert_eq!(response.text(), "foo");
}

#[tokio::test]
async fn item_072_expiry_cancels_the_request_and_frees_its_place() {
    let app = App::silent().await;
    let proxy = proxy(app.port).concurrency(1).set(REQUEST, 3).start().await;
    let mut first = proxy.connect().await;
    first.send(GET).await;
    eventually("the first is at the app", || app.log.live() == 1).await;
    // Its own limit ends that much later than the first one's.
    tokio::time::sleep(2 * SECOND).await;
    let mut second = proxy.connect().await;
    second.send(GET).await;
    assert_eq!(first.response().await.status(), 504);
    eventually("the first is cancelled and the second at the app", || {
        app.log.cancelled() == 1 && app.log.count() == 2
    })
    .await;
    assert_eq!(app.log.live_max(), 1);
}

#[tokio::test]
async fn item_073_expiry_of_one_stream_leaves_its_siblings_alone() {
    let app = App2::serving(|request| async move {
        if request.uri().path() == "/slow" {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        http::Response::new(tests::client2::full("done"))
    })
    .await;
    let proxy = proxy(app.port).set(REQUEST, 1).start().await;
    let client = Client2::connect(proxy.address()).await;
    let mut slow = client.clone();
    let slow = tokio::spawn(async move { slow.get("/slow").await.0.status.as_u16() });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut sibling = client.clone();
    let (head, body) = sibling.get("/").await;
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"done"[..]));
    assert_eq!(slow.await.unwrap(), 504);
}

#[tokio::test]
async fn a_timeout_of_zero_strikes_at_once() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).set(REQUEST, 0).start().await;
    assert_eq!(proxy.connect().await.get("/").await.status(), 504);
}

#[tokio::test]
async fn an_interim_response_ends_the_response_start_timeout() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection.write("HTTP/1.1 103 Early Hints\r\n\r\n").await;
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            connection.write(tests::app::ok("late")).await;
        }
    })
    .await;
    let proxy = proxy(app.port).set(RESPONSE_START, 1).start().await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "late");
}

#[tokio::test]
async fn item_075_bytes_written_after_expiry_are_discarded() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            tokio::time::sleep(Duration::from_millis(1_300)).await;
            connection.write(tests::app::ok("late")).await;
        }
    })
    .await;
    let proxy = proxy(app.port).set(REQUEST, 1).start().await;
    let mut client = proxy.connect().await;
    assert_eq!(client.get("/").await.status(), 504);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let response = client.get("/").await;
    assert_eq!(
        (response.status(), response.text().as_str()),
        (504, "request timeout")
    );
}

#[tokio::test]
async fn item_072_expiry_frees_the_place_while_the_client_does_not_read() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_none() {
            return;
        }
        connection
            .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        let endless = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let data = chunk(&"d".repeat(60_000));
        while connection.try_write(&data).await.is_ok() {}
        let _gone = connection.run_unless_closed::<()>(endless).await;
    })
    .await;
    for name in [REQUEST, IDLE] {
        let proxy = proxy(app.port).concurrency(1).set(name, 2).start().await;
        let before = app.log.count();
        let mut deaf = proxy.connect().await;
        deaf.send(GET).await;
        eventually("the first is at the app", || app.log.count() == before + 1).await;
        let begin = Instant::now();
        // Its own limit ends later than the first one's.
        tokio::time::sleep(SECOND).await;
        let mut second = proxy.connect().await;
        second.send(GET).await;
        eventually("the second is at the app", || app.log.count() == before + 2).await;
        let elapsed = begin.elapsed();
        assert!(elapsed < 2 * SECOND + SLACK, "{name}: {elapsed:?}");
        if name == REQUEST {
            assert_eq!(deaf.head().await.status(), 200);
        }
    }
}

#[tokio::test]
async fn item_067_a_response_with_a_sniffed_type_may_take_longer() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            tokio::time::sleep(Duration::from_millis(300)).await;
            connection
                .write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
                .await;
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            connection.write("hello").await;
        }
    })
    .await;
    let proxy = proxy(app.port).set(RESPONSE_START, 1).start().await;
    let response = proxy.connect().await.get("/").await;
    assert_eq!(
        (response.status(), response.text().as_str()),
        (200, "hello")
    );
    assert_eq!(
        response.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
}

#[tokio::test]
async fn item_069_the_head_of_a_response_counts_as_written() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            tokio::time::sleep(Duration::from_millis(700)).await;
            connection
                .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await;
            tokio::time::sleep(Duration::from_millis(700)).await;
            connection.write("5\r\nhello\r\n0\r\n\r\n").await;
        }
    })
    .await;
    let proxy = proxy(app.port).set(IDLE, 1).start().await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
}
