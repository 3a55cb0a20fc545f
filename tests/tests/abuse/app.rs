//! A user container with wrong, incomplete or endless answers.

use std::time::{Duration, Instant};

use tests::app::{App, ok};

use crate::proxy;

/// Answer of the app to a request, and the results allowed at the client: a status, or 0 for an incomplete message.
const LIES: [(&str, &[u16]); 22] = [
    ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", &[200]),
    ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", &[200, 0]),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc", &[200]),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        &[502],
    ),
    ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc", &[502]),
    ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc", &[502]),
    (
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        &[200],
    ),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\nabc", &[502]),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
        &[200, 502, 0],
    ),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n",
        &[200, 0],
    ),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
        &[200, 502, 0],
    ),
    ("HTTP/1.1 099 X\r\n\r\n", &[502]),
    ("HTTP/1.1 1000 X\r\n\r\n", &[502]),
    ("HTTP/1.1 abc X\r\n\r\n", &[502]),
    ("HTTP/9.9 200 OK\r\n\r\n", &[502]),
    ("hello\r\n\r\n", &[502]),
    ("HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", &[502]),
    ("HTTP/1.1 200 OK\r\nX y: z\r\n\r\n", &[502]),
    (
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        &[502],
    ),
    (
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nabcde",
        &[204],
    ),
    ("HTTP/1.1 304 Not Modified\r\n\r\nabcde", &[304]),
    ("", &[502]),
];

#[tokio::test]
async fn wrong_answers_are_detected_and_do_not_affect_other_requests() {
    let app = App::raw(|mut connection| async move {
        while let Some(request) = connection.request().await {
            let n = request.target()[1..].parse::<usize>();
            match n {
                Ok(n) => {
                    connection.write(LIES[n].0).await;
                    // The connection is closed once the answer is on its way.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return;
                }
                Err(_) => connection.write(ok("hello")).await,
            }
        }
    })
    .await;
    let proxy = proxy(app.port).concurrency(2).start().await;
    for (n, (lie, allowed)) in LIES.iter().enumerate() {
        let mut client = proxy.connect().await;
        client
            .send(format!("GET /{n} HTTP/1.1\r\nHost: t\r\n\r\n"))
            .await;
        // An incomplete message counts as 0, whatever its head stated.
        let received = client
            .try_response()
            .await
            .map_or(0, |response| response.status());
        assert!(allowed.contains(&received), "{lie:?}: {received}");
        // This test does not race the closing against the next request.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(
            proxy.connect().await.get("/x").await.text(),
            "hello",
            "after {lie:?}"
        );
    }
    assert!(!proxy.stderr().contains("panicked"), "{}", proxy.stderr());
}

#[tokio::test]
async fn unsolicited_bytes_are_no_answer_to_the_next_request() {
    let app = App::raw(|mut connection| async move {
        while connection.request().await.is_some() {
            connection
                .write([&ok("mine")[..], &ok("for another request")[..]].concat())
                .await;
        }
    })
    .await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    for _ in 0..20 {
        assert_eq!(proxy.connect().await.get("/").await.text(), "mine");
    }
}

/// Starts an app that floods the proxy in answer to `/flood`, and says hello otherwise.
async fn flooding(head: &'static str, piece: String) -> App {
    App::raw(move |mut connection| {
        let piece = piece.clone();
        async move {
            while let Some(request) = connection.request().await {
                if request.target() == "/flood" {
                    connection.write(head).await;
                    while connection.try_write(&piece).await.is_ok() {}
                    return;
                }
                connection.write(ok("hello")).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn endless_answers_delay_no_other_request_and_are_cut_in_time() {
    for (head, piece) in [
        ("", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000)),
        ("", "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000)),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "1\r\nx\r\n".repeat(1000),
        ),
    ] {
        let app = flooding(head, piece).await;
        let proxy = proxy(app.port)
            .set("REVISION_TIMEOUT_SECONDS", 3)
            .start()
            .await;
        let begin = Instant::now();
        let mut victim = proxy.connect().await;
        victim.send("GET /flood HTTP/1.1\r\nHost: t\r\n\r\n").await;
        let flood = tokio::spawn(async move { victim.try_response().await });
        // Each of these would wait for its end if the flood was never preempted.
        while begin.elapsed() < Duration::from_secs(2) {
            assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
        }
        let ended = flood.await.unwrap();
        let elapsed = begin.elapsed();
        assert!(elapsed < Duration::from_secs(10), "{head:?}: {elapsed:?}");
        let status = ended.map_or(200, |response| response.status());
        // This many interim responses are no answer, whichever bound is reached first; a body is one, and ends at the request
        // timeout.
        let allowed: &[u16] = if head.is_empty() { &[502, 504] } else { &[200] };
        assert!(allowed.contains(&status), "{head:?}: {status}");
    }
}

#[tokio::test]
async fn heads_without_end_are_502() {
    for piece in ["X: y\r\n".repeat(1000), "x".repeat(10_000)] {
        let app = flooding("HTTP/1.1 200 OK\r\nA: ", piece).await;
        let proxy = proxy(app.port).start().await;
        assert_eq!(proxy.connect().await.get("/flood").await.status(), 502);
        assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
    }
}

#[tokio::test]
async fn lengths_of_bodiless_answers_are_checked_too() {
    let lengths = [
        ("Content-Length: 5\r\nContent-Length: 5\r\n", 200),
        ("Content-Length: 5, 5\r\n", 200),
        ("Content-Length: 5\r\nContent-Length: 0\r\n", 502),
        ("Content-Length: +5\r\n", 502),
        ("Content-Length: \r\n", 502),
        ("Content-Length: 5\r\n", 204),
    ];
    let app = App::raw(move |mut connection| async move {
        while let Some(request) = connection.request().await {
            let (lines, status) = lengths[request.target()[1..].parse::<usize>().unwrap()];
            let status = if status == 204 { status } else { 200 };
            connection
                .write(format!("HTTP/1.1 {status} X\r\n{lines}\r\n"))
                .await;
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    for (n, (lines, status)) in lengths.into_iter().enumerate() {
        let mut client = proxy.connect().await;
        client
            .send(format!("HEAD /{n} HTTP/1.1\r\nHost: t\r\n\r\n"))
            .await;
        let answer = client.head().await;
        assert_eq!(answer.status(), status, "{lines:?}");
        let lengths: Vec<_> = answer.values("content-length").collect();
        match status {
            200 => assert_eq!(lengths, ["5"], "{lines:?}"),
            204 => assert!(lengths.is_empty(), "{lengths:?}"),
            _ => {}
        }
    }
}
