//! Deliberate differences from Knative's queue-proxy without an item of their own, in the order of the table in
//! `docs/queue-proxy-differences.md`.

use std::time::{Duration, Instant};

use tests::SLACK;
use tests::app::App;
use tests::message::Kind;

use crate::proxy;

#[tokio::test]
async fn item_074_a_504_during_a_slow_upload_comes_at_the_deadline() {
    let app = App::silent().await;
    let proxy = proxy(app.port)
        .set("REVISION_TIMEOUT_SECONDS", 1)
        .start()
        .await;
    let mut client = proxy.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\nsome")
        .await;
    let begin = Instant::now();
    let response = client.response().await;
    assert!(begin.elapsed() < Duration::from_secs(1) + SLACK);
    assert_eq!(
        (response.status(), response.text().as_str()),
        (504, "request timeout")
    );
}

#[tokio::test]
async fn a_timeout_after_an_interim_response_is_still_a_504() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection.write("HTTP/1.1 103 Early Hints\r\n\r\n").await;
            connection.closed().await;
        }
    })
    .await;
    let proxy = proxy(app.port)
        .set("REVISION_TIMEOUT_SECONDS", 1)
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.status(), 504);
}

#[tokio::test]
async fn headers_keep_the_order_in_which_they_came() {
    let app = App::serving(|_| async {
        b"HTTP/1.1 200 OK\r\nX-Z: 1\r\nX-A: 2\r\nContent-Length: 0\r\n\r\n".to_vec()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let response = proxy
        .connect()
        .await
        .get_with("/", "X-Z: 1\r\nX-A: 2\r\n")
        .await;
    for message in [response, app.log.last()] {
        let names: Vec<_> = message
            .headers
            .iter()
            .map(|(n, _)| n.as_str())
            .filter(|n| n.starts_with("X-Z") || *n == "X-A")
            .collect();
        assert_eq!(names, ["X-Z", "X-A"]);
    }
}

#[tokio::test]
async fn folded_header_lines_and_characters_illegal_in_a_target_are_refused() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    for head in [
        "GET / HTTP/1.1\r\nHost: t\r\nX-A: b\r\n c\r\n\r\n",
        "GET /<x> HTTP/1.1\r\nHost: t\r\n\r\n",
        "GET /?\"x\" HTTP/1.1\r\nHost: t\r\n\r\n",
    ] {
        assert_eq!(
            proxy.connect().await.request(head).await.status(),
            400,
            "{head:?}"
        );
    }
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn a_fragment_is_no_part_of_a_target() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    assert_eq!(proxy.connect().await.get("/a#b").await.status(), 200);
    assert_eq!(app.log.last().target(), "/a");
}

#[tokio::test]
async fn a_head_has_at_most_a_thousand_lines() {
    let app = App::saying("fits").await;
    let proxy = proxy(app.port).start().await;
    assert_eq!(
        proxy
            .connect()
            .await
            .get_with("/", &"X-A: b\r\n".repeat(990))
            .await
            .text(),
        "fits"
    );
    assert_eq!(
        proxy
            .connect()
            .await
            .get_with("/", &"X-A: b\r\n".repeat(1_001))
            .await
            .status(),
        431
    );
}

#[tokio::test]
async fn connect_is_refused() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let response = proxy
        .connect()
        .await
        .request("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")
        .await;
    assert_eq!(response.status(), 405);
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn the_end_of_input_after_a_request_means_that_the_client_is_gone() {
    let app = App::delaying().await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("GET /20000 HTTP/1.1\r\nHost: t\r\n\r\n").await;
    tests::eventually("the request is at the app", || app.log.live() == 1).await;
    client.half_close().await;
    let begin = Instant::now();
    assert!(client.rest().await.is_empty(), "no answer is invented");
    assert!(begin.elapsed() < Duration::from_millis(100) + SLACK);
    tests::eventually("the request is cancelled", || app.log.cancelled() == 1).await;
}

#[tokio::test]
async fn the_end_of_input_within_a_body_means_that_the_client_is_gone() {
    let app = App::silent().await;
    let proxy = proxy(app.port).start().await;
    for lines in ["Content-Length: 1000000", "Transfer-Encoding: chunked"] {
        let mut client = proxy.connect().await;
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: t\r\n{lines}\r\n\r\n5\r\nhello\r\n"
            ))
            .await;
        tests::eventually("a connection is at the app", || app.log.connections() > 0).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        client.half_close().await;
        let rest = client.rest().await;
        assert!(
            rest.is_empty(),
            "an answer is invented: {}",
            String::from_utf8_lossy(&rest)
        );
    }
    // A malformed body is reported as such.
    let mut client = proxy.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n")
        .await;
    assert_eq!(client.response().await.status(), 400);
}

#[tokio::test]
async fn the_queue_depth_is_correct_after_clients_have_disconnected() {
    let app = App::delaying().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    for _ in 0..3 {
        let mut clients = Vec::new();
        for n in 0..11 {
            let mut client = proxy.connect().await;
            client
                .send(format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", 30_000 + n))
                .await;
            client.is_read().await;
            clients.push(client);
        }
        assert_eq!(proxy.connect().await.get("/0").await.status(), 503);
        drop(clients);
        let begin = Instant::now();
        while proxy.connect().await.get("/0").await.status() != 200 {
            assert!(begin.elapsed() < SLACK, "no place is free within {SLACK:?}");
        }
    }
}

#[tokio::test]
async fn a_head_response_has_no_body_and_no_sniffed_type() {
    let app =
        App::serving(|_| async { b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_vec() }).await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("HEAD / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let mut response = client.head().await;
    client.body(&mut response, Kind::Bodiless).await.unwrap();
    assert_eq!(
        (
            response.header("content-length"),
            response.header("content-type")
        ),
        (Some("5"), None)
    );
}

#[tokio::test]
async fn an_unreadable_head_is_answered_without_a_body() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let response = proxy
        .connect()
        .await
        .request("GET / HTTP/1.1\r\nBad Name: x\r\n\r\n")
        .await;
    assert_eq!(
        (response.status(), response.header("content-length")),
        (400, Some("0"))
    );
}

#[tokio::test]
async fn a_connection_whose_request_was_answered_unread_is_closed() {
    let app = App::raw(|mut connection| async move {
        if connection.request_head().await.is_some() {
            connection
                .write("HTTP/1.1 413 Big\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
                .await;
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\nsome")
        .await;
    assert_eq!(client.response().await.status(), 413);
    assert!(client.rest().await.is_empty());
}

#[tokio::test]
async fn a_target_of_64_kib_is_refused_with_414() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let target = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
    let longest = target(65_534);
    assert_eq!(proxy.connect().await.get(&longest).await.status(), 200);
    assert_eq!(app.log.last().target(), longest);
    for bytes in [65_535, 65_536, 200_000] {
        let mut client = proxy.connect().await;
        client
            .send(format!("GET {} HTTP/1.1\r\nHost: t\r\n\r\n", target(bytes)))
            .await;
        assert_eq!(client.response().await.status(), 414, "{bytes}");
        assert_eq!(client.rest().await, b"", "{bytes}: it closes");
    }
    let query = format!("/?{}", "x".repeat(65_532));
    assert_eq!(proxy.connect().await.get(&query).await.status(), 200);
}

#[tokio::test]
async fn trailers_that_end_with_a_line_feed_alone_are_refused() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let next = "GET /next HTTP/1.1\r\nHost: t\r\n\r\n";
    client.send(format!("{head}0\r\n\n{next}")).await;
    assert_eq!(client.response().await.status(), 400);
    assert_eq!(client.rest().await, b"", "the connection is closed");
    assert!(app.log.requests().iter().all(|seen| seen.target() == "/"));
}
