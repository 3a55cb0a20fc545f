use std::sync::Arc;

use tests::app::{App, chunk};
use tests::message::Kind;
use tokio::sync::{Mutex, mpsc};

use crate::proxy;

#[tokio::test]
async fn item_041_events_arrive_as_they_are_written() {
    // Each event is written after the one before has arrived, so a buffered one never arrives.
    let (arrived, arrivals) = mpsc::channel::<()>(16);
    let arrivals = Arc::new(Mutex::new(arrivals));
    let app = App::raw(move |mut connection| {
        let arrivals = Arc::clone(&arrivals);
        async move {
            if connection.request().await.is_none() {
                return;
            }
            connection.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n").await;
            for n in 0..5 {
                connection.write(chunk(&format!("data: {n}\n\n"))).await;
                arrivals.lock().await.recv().await.unwrap();
            }
            connection.write("0\r\n\r\n").await;
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert_eq!(
        client.head().await.header("content-type"),
        Some("text/event-stream")
    );
    for n in 0..5 {
        assert_eq!(
            client.chunk().await.unwrap(),
            format!("data: {n}\n\n").into_bytes()
        );
        arrived.send(()).await.unwrap();
    }
    assert!(client.chunk().await.unwrap().is_empty());
}

#[tokio::test]
async fn item_042_the_head_of_an_unbounded_response_arrives_before_its_body() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection
                .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await;
            connection.closed().await;
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let response = client.head().await;
    assert_eq!(
        (response.status(), response.header("transfer-encoding")),
        (200, Some("chunked"))
    );
}

#[tokio::test]
async fn item_043_a_slow_body_with_a_length_is_delivered_as_produced() {
    let (go_on, signal) = tokio::sync::watch::channel(false);
    let app = App::raw(move |mut connection| {
        let mut signal = signal.clone();
        async move {
            if connection.request().await.is_some() {
                connection
                    .write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nfour")
                    .await;
                // The second half follows once the client has received the first.
                signal.wait_for(|go_on| *go_on).await.unwrap();
                connection.write("more").await;
                connection.closed().await;
            }
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert_eq!(
        client.head().await.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(client.bytes(4).await, b"four");
    go_on.send(true).unwrap();
    assert_eq!(client.bytes(4).await, b"more");
}

#[tokio::test]
async fn item_046_both_directions_run_at_once() {
    let app = App::raw(|mut connection| async move {
        if connection.request_head().await.is_none() {
            return;
        }
        connection
            .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        loop {
            let bytes = connection.read().await;
            if bytes.is_empty() {
                return;
            }
            let end = bytes.ends_with(b"0\r\n\r\n");
            connection.write(&bytes).await;
            if end {
                return;
            }
        }
    })
    .await;
    for duplex in ["true", "false"] {
        let proxy = proxy(app.port)
            .set("ENABLE_HTTP_FULL_DUPLEX", duplex)
            .start()
            .await;
        let mut client = proxy.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        assert_eq!(client.head().await.status(), 200);
        for n in 0..10 {
            let data = format!("ping {n}");
            client.send(chunk(&data)).await;
            assert_eq!(client.chunk().await.unwrap(), data.into_bytes());
        }
        client.send("0\r\n\r\n").await;
        assert!(client.chunk().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn item_047_an_early_refusal_reaches_a_client_that_is_still_sending() {
    let app = App::raw(|mut connection| async move {
        while let Some(mut request) = connection.request_head().await {
            connection
                .write("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
                .await;
            if connection.body(&mut request).await.is_err() {
                return;
            }
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    for _ in 0..20 {
        let mut client = proxy.connect().await;
        let body = "x".repeat(100_000);
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n{body}"
            ))
            .await;
        let response = client.response().await;
        assert_eq!((response.status(), response.text().as_str()), (413, "big"));
    }
}

#[tokio::test]
async fn a_close_delimited_answer_is_framed_anew() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection
                .write("HTTP/1.0 200 OK\r\n\r\nuntil the end")
                .await;
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let mut response = client.head().await;
    client.body(&mut response, Kind::Response).await.unwrap();
    assert_eq!(response.header("transfer-encoding"), Some("chunked"));
    assert_eq!(response.text(), "until the end");
}

#[tokio::test]
async fn an_upload_continues_while_the_client_does_not_read() {
    let app = App::raw(|mut connection| async move {
        let Some(mut request) = connection.request_head().await else {
            return;
        };
        connection
            .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        // Far more than the sockets between app and client take, then the upload.
        let written = connection
            .write_until_stalled(chunk(&"d".repeat(60_000)))
            .await;
        assert!(written > 10);
        connection.body(&mut request).await.unwrap();
        connection.note(&request);
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 20000000\r\n\r\n")
        .await;
    let body = vec![b'u'; 20_000_000];
    client.send(body).await;
    tests::eventually("the upload has arrived", || {
        app.log
            .requests()
            .iter()
            .any(|r| r.body.len() == 20_000_000)
    })
    .await;
}
