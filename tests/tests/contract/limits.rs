//! Endless heads, large bodies, clients that do not read.

use std::time::{Duration, Instant};

use tests::app::App;

use crate::proxy;

const GIBIBYTE: usize = 1 << 30;
const MEBIBYTE: usize = 1 << 20;

#[tokio::test]
async fn item_031_an_incomplete_head_is_cut_after_a_minute() {
    let app = App::saying("x").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    let begin = Instant::now();
    client.send("GET / HTTP/1.1\r\nHost: t\r\nX-Slow: ").await;
    // Single bytes now and then do not extend the limit.
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        client.send("a").await;
    }
    client.rest().await;
    let elapsed = begin.elapsed();
    assert!(elapsed >= Duration::from_secs(59), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(65), "{elapsed:?}");
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn item_044_a_gibibyte_each_way_takes_no_memory() {
    let app = App::raw(|mut connection| async move {
        let Some(_head) = connection.request_head().await else {
            return;
        };
        let mut taken = 0;
        while taken < GIBIBYTE {
            match connection.read().await.len() {
                0 => return,
                n => taken += n,
            }
        }
        connection
            .write(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {GIBIBYTE}\r\n\r\n"
            ))
            .await;
        let piece = vec![b'x'; MEBIBYTE];
        for _ in 0..GIBIBYTE / MEBIBYTE {
            connection.write(&piece).await;
        }
        connection.closed().await;
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let before = proxy.resident_bytes();
    let mut client = proxy.connect().await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {GIBIBYTE}\r\n\r\n"
        ))
        .await;
    let piece = vec![b'y'; MEBIBYTE];
    let mut peak = 0;
    for _ in 0..GIBIBYTE / MEBIBYTE {
        client.send(&piece).await;
        peak = peak.max(proxy.resident_bytes());
    }
    assert_eq!(client.head().await.status(), 200);
    for _ in 0..GIBIBYTE / MEBIBYTE {
        client.bytes(MEBIBYTE).await;
        peak = peak.max(proxy.resident_bytes());
    }
    let growth = peak.saturating_sub(before);
    assert!(growth < 64 * MEBIBYTE, "{growth}");
}

#[tokio::test]
async fn item_045_a_client_that_stops_reading_stops_the_app_and_no_other_client() {
    let (report, mut reported) = tokio::sync::mpsc::channel(1);
    let app = App::raw(move |mut connection| {
        let report = report.clone();
        async move {
            while let Some(request) = connection.request().await {
                if request.target() == "/endless" {
                    connection
                        .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                        .await;
                    let piece = [
                        format!("{MEBIBYTE:x}\r\n").as_bytes(),
                        &vec![b'x'; MEBIBYTE],
                        b"\r\n",
                    ]
                    .concat();
                    let written = connection.write_until_stalled(piece).await;
                    let _sent = report.send(written).await;
                    return;
                }
                connection.write(tests::app::ok("other")).await;
            }
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut stalled = proxy.connect().await;
    stalled
        .send("GET /endless HTTP/1.1\r\nHost: t\r\n\r\n")
        .await;
    assert_eq!(stalled.head().await.status(), 200);
    for _ in 0..20 {
        assert_eq!(proxy.connect().await.get("/").await.text(), "other");
    }
    let written: usize = reported.recv().await.unwrap();
    assert!(
        written < 32,
        "{written} MiB went to a client that does not read"
    );
}
