//! A user container that lies, dies, or never ends.

use std::time::{Duration, Instant};

use tests::app::{App, ok};

use crate::proxy;

/// What the app writes in answer to a request, and what the client may see: a status, or a message that breaks off.
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
async fn lies_are_found_out_and_nobody_else_is_hurt() {
    let app = App::raw(|mut connection| async move {
        while let Some(request) = connection.request().await {
            let n = request.target()[1..].parse::<usize>();
            match n {
                Ok(n) => {
                    connection.write(LIES[n].0).await;
                    // Dies, as liars do; what it said is on its way.
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
        // A message that breaks off is 0, whatever its head said.
        let seen = client
            .try_response()
            .await
            .map_or(0, |response| response.status());
        assert!(allowed.contains(&seen), "{lie:?}: {seen}");
        // A connection that closes at the moment of its next request is another matter.
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
async fn what_an_app_says_unasked_is_no_answer_to_the_next() {
    let app = App::raw(|mut connection| async move {
        while connection.request().await.is_some() {
            connection
                .write([&ok("mine")[..], &ok("for somebody else")[..]].concat())
                .await;
        }
    })
    .await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    for _ in 0..20 {
        assert_eq!(proxy.connect().await.get("/").await.text(), "mine");
    }
}

/// An app that floods the proxy in answer to `/flood`, and says hello otherwise.
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
async fn an_app_without_end_holds_up_nobody_and_is_cut_in_time() {
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
        // Each of these would wait for its end if the flood had all turns.
        while begin.elapsed() < Duration::from_secs(2) {
            assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
        }
        let ended = flood.await.unwrap();
        let elapsed = begin.elapsed();
        assert!(elapsed < Duration::from_secs(10), "{head:?}: {elapsed:?}");
        let status = ended.map_or(200, |response| response.status());
        // So many interim responses are no answer, whichever bound strikes first; a body is one, and ends at the
        // request timeout.
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
async fn lengths_without_a_body_are_looked_at_too() {
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
        let told: Vec<_> = answer.values("content-length").collect();
        match status {
            200 => assert_eq!(told, ["5"], "{lines:?}"),
            204 => assert!(told.is_empty(), "{told:?}"),
            _ => {}
        }
    }
}
