//! Limits are settings, which only tighten.

use std::time::{Duration, Instant};

use tests::client::Client;
use tests::client2::{Client2, empty, whole};
use tests::proxy::Builder;
use tokio::net::TcpStream;

use crate::Watched;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const SETTINGS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const MAX_HEADER_LIST_SIZE: u16 = 6;

fn tight(builder: Builder) -> Builder {
    builder
        .set("WEIR_LIMIT_HEAD_BYTES", 8192)
        .set("WEIR_LIMIT_HEAD_LINES", 40)
        .set("WEIR_LIMIT_STREAMS", 2)
}

fn lines(n: usize) -> String {
    (0..n).map(|n| format!("X-{n}: 1\r\n")).collect()
}

/// Returns the settings with which an HTTP/2 server begins.
async fn settings(client: &mut Client) -> Vec<(u16, u32)> {
    client.send(PREFACE).await;
    loop {
        let head = client.bytes(9).await;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let payload = client.bytes(usize::try_from(length).unwrap()).await;
        if head[3] == SETTINGS && !payload.is_empty() {
            let each = payload.chunks(6).map(|setting| {
                (
                    u16::from_be_bytes([setting[0], setting[1]]),
                    u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]),
                )
            });
            return each.collect();
        }
    }
}

#[tokio::test]
async fn the_size_and_the_lines_of_a_head_can_be_limited() {
    let watched = Watched::start(tight).await;
    for (what, head, status) in [
        ("40 lines", lines(39), 200),
        ("41 lines", lines(40), 431),
        ("7 KiB", format!("X: {}\r\n", "x".repeat(7 << 10)), 200),
        ("9 KiB", format!("X: {}\r\n", "x".repeat(9 << 10)), 431),
    ] {
        let mut client = watched.proxy.connect().await;
        let answer = client.get_with("/", &head).await;
        assert_eq!(answer.status(), status, "{what}");
    }
    let mut client = Client2::connect(watched.proxy.address()).await;
    let mut request = client.builder("GET", "/");
    for n in 0..41 {
        request = request.header(format!("x-{n}"), "1");
    }
    let request = request.body(empty()).unwrap();
    let (parts, _, _) = whole(client.send(request).await.unwrap()).await.unwrap();
    assert_eq!(parts.status, 431);
    watched.end_well().await;
}

#[tokio::test]
async fn the_time_for_a_head_can_be_limited() {
    let watched = Watched::start(|builder| builder.set("WEIR_LIMIT_HEAD_TIME", "5s")).await;
    // Idle time between requests is not limited: these connections begin before those that are cut, and outlive them.
    let post = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
    let get = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut thinking = Vec::new();
    for requests in [
        vec![get],
        vec![post, post],
        vec![get, post],
        vec![post, get],
        vec!["GET / HTTP/1.1\nHost: t\n\n"],
        vec!["\r\n\r\n", post],
    ] {
        let mut client = watched.proxy.connect().await;
        client.send(requests.concat()).await;
        for request in requests.iter().filter(|request| !request.trim().is_empty()) {
            assert_eq!(client.response().await.status(), 200, "{request:?}");
        }
        thinking.push(client);
    }
    let mut slow = Vec::new();
    for (what, bytes) in [
        ("nothing", &b""[..]),
        ("a part of a head", b"GET / HTTP/1.1\r\nHost: t\r\n"),
        ("a part of the preface", &PREFACE[..10]),
        ("the preface alone", &PREFACE[..24]),
        ("a part of a frame", &[PREFACE, &[0, 0, 9, 1]].concat()),
        (
            "a part behind trailers",
            b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n\
              5\r\nhello\r\n0\r\nX: y\r\n\r\nGET / HT",
        ),
        (
            "a part behind an unread body",
            b"OPTIONS * HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabcGET / HT",
        ),
        (
            "a part behind a probe's body",
            b"POST / HTTP/1.1\r\nHost: t\r\nK-Network-Probe: probe\r\nContent-Length: 3\r\n\r\nabcGET / HT",
        ),
    ] {
        let mut client = watched.proxy.connect().await;
        let begin = Instant::now();
        client.send(bytes).await;
        slow.push((what, client, begin));
    }
    for (what, client, begin) in &mut slow {
        client.rest_within(Duration::from_secs(40)).await;
        // All are cut at the same time, slightly later if the machine is busy.
        let elapsed = begin.elapsed().as_secs_f64();
        assert!((4.9..30.0).contains(&elapsed), "{what}: {elapsed} s");
    }
    for client in &mut thinking {
        assert_eq!(client.get("/").await.status(), 200);
    }
    watched.end_well().await;
}

#[tokio::test]
async fn the_streams_of_a_connection_can_be_limited() {
    let tight = Watched::start(tight).await;
    let said = settings(&mut tight.proxy.connect().await).await;
    assert!(said.contains(&(MAX_CONCURRENT_STREAMS, 2)), "{said:?}");
    assert!(said.contains(&(MAX_HEADER_LIST_SIZE, 8512)), "{said:?}");
    let usual = Watched::start(|builder| builder).await;
    let said = settings(&mut usual.proxy.connect().await).await;
    assert!(said.contains(&(MAX_CONCURRENT_STREAMS, 250)), "{said:?}");
    assert!(
        said.contains(&(MAX_HEADER_LIST_SIZE, 1_048_896)),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_limit_enables_nothing_and_is_never_loosened() {
    let watched = Watched::start(|builder| {
        builder
            .set("WEIR_LIMIT_HEAD_LINES", 40)
            .set("WEIR_LIMIT_STREAMS", 251)
    })
    .await;
    let log = watched.proxy.stderr();
    assert!(
        log.contains("WEIR_LIMIT_STREAMS") && log.contains("from 1 to 250"),
        "{log}"
    );
    let said = settings(&mut watched.proxy.connect().await).await;
    assert!(said.contains(&(MAX_CONCURRENT_STREAMS, 250)), "{said:?}");
    let answer = watched.proxy.connect().await.get("/").await;
    assert_eq!(answer.values("server-timing").count(), 0);
    assert!(
        TcpStream::connect((watched.proxy.address().ip(), 9091))
            .await
            .is_err()
    );
}
