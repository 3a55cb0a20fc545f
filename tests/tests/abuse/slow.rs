use std::time::{Duration, Instant};

use tests::app::App;
use tests::client::Client;

use crate::{Watched, proxy};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Asserts that the connection is closed between 59 and 66 seconds after `begin`.
async fn is_cut(client: &mut Client, begin: Instant, what: &str) {
    // The client itself times out after a minute.
    let soon = Duration::from_secs(57).saturating_sub(begin.elapsed());
    tokio::time::sleep(soon).await;
    client.rest().await;
    let elapsed = begin.elapsed().as_secs();
    assert!((59..66).contains(&elapsed), "{what}: {elapsed} s");
}

#[tokio::test]
async fn a_partial_head_behind_a_request_is_cut_after_a_minute() {
    let [one, other] = Watched::each(0).await;
    tokio::join!(partial_head(one), partial_head(other));
}

async fn partial_head(watched: Watched) {
    let mut clients = Vec::new();
    let chunked = "POST /a HTTP/1.1\r\nHost: t.default.svc.x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    for (what, bytes) in [
        (
            "behind a GET",
            "GET /a HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\nGET /b HTT".to_owned(),
        ),
        (
            "behind a length",
            "POST /a HTTP/1.1\r\nHost: t.default.svc.x\r\nContent-Length: 3\r\n\r\nabcGET /b".to_owned(),
        ),
        ("behind chunks", format!("{chunked}GET /b HTTP/1.1\r\nX: ")),
        (
            "in the second of two",
            "GET /a HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\nGET /b HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\nG".to_owned(),
        ),
    ] {
        let mut client = watched.proxy.connect().await;
        let begin = Instant::now();
        client.send(bytes).await;
        assert_eq!(client.response().await.status(), 200, "{what}");
        clients.push((what, client, begin));
    }
    // These connections have no message in progress, and may stay open.
    let mut idle = Vec::new();
    for bytes in [
        "GET /a HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\n",
        "POST /a HTTP/1.1\r\nHost: t.default.svc.x\r\nContent-Length: 3\r\n\r\nabc",
        chunked,
    ] {
        let mut client = watched.proxy.connect().await;
        client.send(bytes).await;
        assert_eq!(client.response().await.status(), 200);
        idle.push(client);
    }
    for (what, client, begin) in &mut clients {
        is_cut(client, *begin, what).await;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    for client in &mut idle {
        assert_eq!(client.get("/again").await.status(), 200);
    }
}

#[tokio::test]
async fn an_unfinished_head_over_http2_is_cut_after_a_minute() {
    let [one, other] = Watched::each(0).await;
    tokio::join!(unfinished_head(one), unfinished_head(other));
}

async fn unfinished_head(watched: Watched) {
    let headers_without_end = [&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82][..], &[0, 0, 4]].concat();
    let mut clients = Vec::new();
    for (what, more) in [
        ("the preface alone", &[][..]),
        ("part of a frame's header", &[0, 0, 9, 1][..]),
        ("HEADERS without END_HEADERS", &headers_without_end[..]),
    ] {
        let mut client = watched.proxy.connect().await;
        let begin = Instant::now();
        let preface = if more.is_empty() {
            &PREFACE[..24]
        } else {
            PREFACE
        };
        client.send(preface).await;
        client.send(more).await;
        clients.push((what, client, begin));
    }
    // An idle connection without a frame in progress stays.
    let mut idle = watched.proxy.connect().await;
    idle.send(PREFACE).await;
    for (what, client, begin) in &mut clients {
        is_cut(client, *begin, what).await;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    idle.try_send([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
        .await
        .unwrap();
    watched.end_well().await;
}

#[tokio::test]
async fn slow_bodies_end_at_the_request_timeout() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set("REVISION_TIMEOUT_SECONDS", 3)
        .start()
        .await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut client = proxy.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: t.default.svc.x\r\nContent-Length: 1000\r\n\r\n")
            .await;
        slow.push(client);
    }
    for _ in 0..4 {
        for client in &mut slow {
            // Some have been answered already.
            let _sent = client.try_send("x").await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for client in &mut slow {
        assert_eq!(client.response().await.status(), 504);
    }
    assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
}
