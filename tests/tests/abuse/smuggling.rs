//! Requests which two parsers may read differently. Whatever the answer, no part of a second request within the first one reaches
//! the user container, and no message reaches it with two framings.

use std::time::Duration;

use tests::app::{App, ok};
use tests::client::Client;
use tests::eventually;

use crate::{Target, Watched};

const INNER: &str = "GET /smuggled HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\n";

/// Sends bytes on a connection of their own, and returns the answers received within half a second.
async fn answers(watched: &Watched, bytes: &[u8]) -> String {
    let mut client = Client::connect(watched.proxy.address()).await;
    client.send(bytes).await;
    let answered = client.rest_within(Duration::from_millis(500)).await;
    String::from_utf8_lossy(&answered).into_owned()
}

fn spellings() -> Vec<String> {
    let mut heads = Vec::new();
    for coding in [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: Chunked",
        "Transfer-Encoding:chunked",
        "Transfer-Encoding: chunked ",
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding: \x0Bchunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked,",
        "Transfer-Encoding: ,chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding : chunked",
        " Transfer-Encoding: chunked",
        "Transfer-Encoding\0: chunked",
        "Transfer-Encoding: chun\0ked",
        "Transfer_Encoding: chunked",
        "Transfer-Encoding:\r\n chunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "X: y\nTransfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
        "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
        "Connection: Content-Length",
        "transfer-encoding: CHUNKED",
        "Transfer-Encoding: \u{7f}chunked",
        "Transfer-Encoding: chunk",
        "Transfer-Encoding:",
    ] {
        heads.push(format!("Content-Length: {}\r\n{coding}", INNER.len() + 5));
        heads.push(format!("{coding}\r\nContent-Length: 4"));
        heads.push(coding.to_owned());
    }
    for length in [
        "+5",
        "-5",
        " 5",
        "5 ",
        "0x5",
        "5, 5",
        "5, 6",
        "5,5",
        "05",
        "5.0",
        "5 5",
        "",
        "1e1",
        "5\0",
        "\t5",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999",
        "9223372036854775808",
    ] {
        heads.push(format!("Content-Length: {length}"));
    }
    heads.push("Content-Length: 5\r\nContent-Length: 6".to_owned());
    heads.push("Content-Length: 5\r\nContent-Length: 5".to_owned());
    heads.push("Content-Length : 5".to_owned());
    heads.push("Content-Length: 5\r\nHost: other".to_owned());
    heads.push("Content-Length: 5\nX: y".to_owned());
    heads
}

fn bodies() -> Vec<String> {
    let chunks = |sizes: &[&str]| -> Vec<String> {
        sizes
            .iter()
            .map(|size| format!("{size}\r\nabcde\r\n0\r\n\r\n{INNER}"))
            .collect()
    };
    let mut bodies = chunks(&[
        "5",
        "5;x=y",
        "5 ;x",
        "05",
        "0000000000000005",
        "0x5",
        "+5",
        "-5",
        "5 5",
        "5\t",
        " 5",
        "FFFFFFFFFFFFFFFF",
        "10000000000000005",
        "100000005",
        "5;\nx",
        "5\0",
        "g",
        "",
        "5;a=\"\r\n\"",
        "٥",
    ]);
    bodies.push(format!("0\r\n\r\n{INNER}"));
    bodies.push(format!("5\r\nabcde0\r\n\r\n{INNER}"));
    bodies.push(format!("5\nabcde\n0\n\n{INNER}"));
    bodies.push(format!(
        "5\r\nabcde\r\n0\r\nContent-Length: 9\r\nHost: evil\r\n\r\n{INNER}"
    ));
    bodies.push(format!("5\r\nabcde\r\n0\r\n X: y\r\n\r\n{INNER}"));
    bodies.push(format!("5;{}\r\nabcde\r\n0\r\n\r\n", "x".repeat(100_000)));
    bodies.push(INNER.to_owned());
    bodies
}

/// Asserts that the user container received requests with a single framing, and no more of them than were answered.
fn check(watched: &Watched, before: usize, sent: &str, answered: &str) {
    let statuses = answered.matches("HTTP/1.1 ").count();
    let requests = watched.requests().split_off(before);
    for request in &requests {
        let has = |name: &str| request.values(name).next().is_some();
        assert!(
            !(has("content-length") && has("transfer-encoding")),
            "two framings from {sent:?}"
        );
        assert!(request.values("host").count() == 1, "{sent:?}");
        let codings: Vec<_> = request.values("transfer-encoding").collect();
        assert!(
            codings.is_empty() || codings == ["chunked"],
            "{codings:?} from {sent:?}"
        );
    }
    // A second request must have been recognized and answered as one by the proxy.
    let reached = requests.len();
    assert!(
        reached <= statuses,
        "{reached} requests, {statuses} answers: {sent:?}"
    );
}

#[tokio::test]
async fn every_spelling_of_a_framing_is_parsed_unambiguously() {
    for watched in Watched::each(0).await {
        let heads = spellings();
        for (n, head) in heads.iter().enumerate() {
            let path = format!("/{n}");
            let sent = format!(
                "POST {path} HTTP/1.1\r\nHost: t.default.svc.x\r\n{head}\r\n\r\n0\r\n\r\n{INNER}"
            );
            let before = watched.requests().len();
            let answered = answers(&watched, sent.as_bytes()).await;
            check(&watched, before, &sent, &answered);
            // A body which ends before the inner request may be followed by it as a separate request, which the proxy has
            // checked. If the stated length covers it, it is part of the body.
            let stated = watched
                .requests()
                .into_iter()
                .find(|request| request.target() == path);
            if let Some(request) = stated
                && let Some(length) = request.header("content-length")
            {
                assert_eq!(
                    length.trim().parse::<usize>().ok(),
                    Some(request.body.len()),
                    "{sent:?}"
                );
            }
        }
        watched.serves().await;
    }
}

#[tokio::test]
async fn every_chunk_is_parsed_unambiguously() {
    for watched in Watched::each(0).await {
        for (n, body) in bodies().iter().enumerate() {
            let sent = format!(
                "POST /{n} HTTP/1.1\r\nHost: t.default.svc.x\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
            );
            let before = watched.requests().len();
            let answered = answers(&watched, sent.as_bytes()).await;
            check(&watched, before, &sent, &answered);
        }
        for request in watched.requests() {
            assert_ne!(request.header("host"), Some("evil"));
            assert!(
                !request.text().contains("HTTP/1.1"),
                "a request within a body: {request:?}"
            );
        }
        watched.serves().await;
    }
}

/// Trailers with line ends other than CR LF, and a size that Go's server refuses: parsers disagree on their end, and so on the
/// begin of the next request.
const AMBIGUOUS_ENDS: [&str; 6] = [
    "0\r\n\n",
    "5\r\nabcde\r\n0\r\n\n",
    "0\r\nX: y\n\r\n",
    "0\r\nX: y\r\n\n",
    "0\r\nX: y\n\n",
    "00000000000000005\r\nabcde\r\n0\r\n\r\n",
];

#[tokio::test]
async fn a_chunked_body_with_an_ambiguous_end_is_refused_and_ends_the_connection() {
    for watched in Watched::each(0).await {
        for end in AMBIGUOUS_ENDS {
            let mut client = Client::connect(watched.proxy.address()).await;
            let head = "POST /doubtful HTTP/1.1\r\nHost: t.default.svc.x\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.send(format!("{head}{end}{INNER}{INNER}")).await;
            // The answer ends with the connection.
            let answered = client.rest().await;
            let answered = String::from_utf8_lossy(&answered);
            assert!(answered.starts_with("HTTP/1.1 400 "), "{end:?}: {answered}");
            let answers = answered.matches("HTTP/1.1 ").count();
            assert_eq!(answers, 1, "{end:?}: {answered}");
        }
        // The ambiguous end alone is enough, without further bytes.
        let mut client = Client::connect(watched.proxy.address()).await;
        client
            .send("POST / HTTP/1.1\r\nHost: t.default.svc.x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n")
            .await;
        assert_eq!(client.response().await.status(), 400);
        let requests = watched.requests();
        assert!(requests.iter().all(|request| request.target() == "/"));
        watched.serves().await;
    }
}

#[tokio::test]
async fn an_ambiguous_body_is_refused_while_its_request_waits() {
    let app = App::delaying().await;
    let proxy = crate::proxy(app.port).concurrency(1).start().await;
    refuses_while_it_waits(&Target::QueueProxy(Box::new(proxy)), &app).await;
    let app = App::serving(|request| async move {
        if request.header("k-network-probe").is_none() && request.target() != "/0" {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        ok("queue")
    })
    .await;
    refuses_while_it_waits(&Target::activator(&app, 1).await, &app).await;
}

/// Holds the only place with one request, and asserts that an ambiguous one queued behind it is refused.
async fn refuses_while_it_waits(proxy: &Target, app: &App) {
    let mut running = proxy.connect().await;
    running
        .send("GET /1000 HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\n")
        .await;
    eventually("the place is held", || app.log.live() == 1).await;
    let mut waiting = proxy.connect().await;
    let head = "POST /0 HTTP/1.1\r\nHost: t.default.svc.x\r\nTransfer-Encoding: chunked\r\n\r\n";
    waiting.send(format!("{head}0\r\n\n{INNER}")).await;
    assert_eq!(running.response().await.status(), 200);
    let answered = waiting.rest().await;
    let answered = String::from_utf8_lossy(&answered);
    assert!(answered.starts_with("HTTP/1.1 400 "), "{answered}");
    assert_eq!(answered.matches("HTTP/1.1 ").count(), 1, "{answered}");
}

#[tokio::test]
async fn nothing_is_served_after_an_unread_ambiguous_body() {
    for watched in Watched::each(0).await {
        for end in AMBIGUOUS_ENDS {
            let mut client = Client::connect(watched.proxy.address()).await;
            // A probe is answered without reading its body.
            let head = "POST / HTTP/1.1\r\nHost: t.default.svc.x\r\nK-Network-Probe: queue\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
            client
                .send(format!("{head}{end}{INNER}{INNER}{INNER}"))
                .await;
            let answered = client.rest().await;
            let answered = String::from_utf8_lossy(&answered);
            let answers = answered.matches("HTTP/1.1 ").count();
            assert!((1..=2).contains(&answers), "{end:?}: {answered}");
            assert!(
                answered.matches(" 200 ").count() <= 1,
                "{end:?}: {answered}"
            );
        }
        let requests = watched.requests();
        assert!(
            requests
                .iter()
                .all(|request| request.target() != "/smuggled")
        );
        watched.serves().await;
    }
}

#[tokio::test]
async fn malformed_heads_are_not_forwarded() {
    for watched in Watched::each(0).await {
        let before = watched.requests().len();
        for start in [
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b",
            "GET / HTTP/1.1",
            "GET / HTTP/1.1\r\nHost: a\r\nX\0: y",
            "GET / HTTP/1.1\r\nHost: a\r\nX: y\0z",
            "GET / HTTP/1.1\r\nHost: a\r\nX : y",
            "GET / HTTP/1.1\r\nHost: a\r\n: y",
            "GET / HTTP/1.1\r\nHost: a\r\nno colon",
            "GET /\0 HTTP/1.1\r\nHost: a",
            "GET / HTTP/9.9\r\nHost: a",
            "GET /a b HTTP/1.1\r\nHost: a",
            "GE T / HTTP/1.1\r\nHost: a",
            "GET / HTTP/1.1\r\nHost: a b",
            "GET  / HTTP/1.1\r\nHost: a",
            "GET / http/1.1\r\nHost: a",
            "\0\0\0\0",
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}",
        ] {
            let answered = answers(&watched, format!("{start}\r\n\r\n").as_bytes()).await;
            assert!(!answered.contains(" 200 "), "{start:?}: {answered}");
            assert_eq!(watched.requests().len(), before, "{start:?}");
        }
        watched.serves().await;
    }
}
