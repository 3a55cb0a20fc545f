use std::time::{Duration, Instant};

use tests::app::{App, chunk, ok};
use tests::message::Kind;
use tests::{SLACK, eventually};

use crate::proxy;

#[tokio::test]
async fn item_011_path_and_query_arrive_byte_for_byte() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for target in [
        "/a;b=c/%2F//x/../y?",
        "/?a=1;b=%zz",
        "/%C3%A9",
        "//",
        "/a?b?c=d&&",
        "/~!$&'()*+,:@-._",
    ] {
        assert_eq!(client.get(target).await.status(), 200, "{target}");
        assert_eq!(app.log.last().target(), target);
    }
    let count = app.log.count();
    for target in ["/%zz", "/a%2"] {
        let response = proxy.connect().await.get(target).await;
        assert_eq!(
            (response.status(), response.text().as_str()),
            (400, "400 Bad Request"),
            "{target}"
        );
    }
    assert_eq!(app.log.count(), count, "a malformed path is not forwarded");
}

#[tokio::test]
async fn item_012_any_method_is_forwarded() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for method in ["PATCH", "PROPFIND", "FOO", "DELETE", "OPTIONS", "TRACE"] {
        let response = client
            .request(format!("{method} /x HTTP/1.1\r\nHost: t\r\n\r\n"))
            .await;
        assert_eq!(response.status(), 200, "{method}");
        assert!(app.log.last().start.starts_with(&format!("{method} /x ")));
    }
}

#[tokio::test]
async fn item_013_bodies_arrive_whole_whatever_their_framing() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.post("/", "hello").await;
    let seen = app.log.last();
    assert_eq!(
        (seen.text().as_str(), seen.header("content-length")),
        ("hello", Some("5"))
    );
    for method in ["POST", "GET", "PUT"] {
        client
            .request(format!(
                "{method} / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"
            ))
            .await;
        let seen = app.log.last();
        assert_eq!(seen.text(), "abcdefg", "{method}");
        assert_eq!(seen.header("transfer-encoding"), Some("chunked"));
    }
    client.get("/").await;
    let seen = app.log.last();
    assert!(seen.body.is_empty() && seen.header("transfer-encoding").is_none());
}

#[tokio::test]
async fn item_014_answers_return_unchanged() {
    let app = App::serving(|request| async move {
        match request.target() {
            "/head" => b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n".to_vec(),
            "/204" => b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n".to_vec(),
            "/304" => b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n".to_vec(),
            target => {
                let code = &target[1..];
                format!(
                    "HTTP/1.1 {code} Whatever\r\nX-Code: {code}\r\nContent-Length: 4\r\n\r\nbody"
                )
                .into_bytes()
            }
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for code in [200, 201, 206, 301, 400, 404, 418, 422, 429, 500, 503, 599] {
        let response = client.get(&format!("/{code}")).await;
        assert_eq!(response.status(), code);
        assert_eq!(response.header("x-code"), Some(code.to_string().as_str()));
        assert_eq!(response.text(), "body");
    }
    for code in [204, 304] {
        let response = client.get(&format!("/{code}")).await;
        assert_eq!(response.status(), code);
        assert!(response.header("content-length").is_none(), "{response:?}");
    }
    client.send("HEAD /head HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let mut response = client.head().await;
    client.body(&mut response, Kind::Bodiless).await.unwrap();
    assert_eq!(
        (response.status(), response.header("content-length")),
        (200, Some("77"))
    );
    assert_eq!(
        client.get("/200").await.text(),
        "body",
        "the connection continues"
    );
}

#[tokio::test]
async fn item_026_heads_are_bounded_at_a_mebibyte() {
    let app = App::saying("fits").await;
    let proxy = proxy(app.port).start().await;
    let mebibyte = 1024 * 1024;
    let one = format!("X-Big: {}\r\n", "v".repeat(mebibyte));
    assert_eq!(
        proxy.connect().await.get_with("/", &one).await.text(),
        "fits"
    );
    let line = format!("X-Big: {}\r\n", "v".repeat(8 * 1024 - 9));
    assert_eq!(
        proxy
            .connect()
            .await
            .get_with("/", &line.repeat(128))
            .await
            .text(),
        "fits"
    );

    let mut client = proxy.connect().await;
    let begin = Instant::now();
    let head = format!(
        "GET / HTTP/1.1\r\nHost: t\r\nX-Big: {}",
        "v".repeat(mebibyte + 6000)
    );
    // The proxy may close before all of it is sent.
    let _sent = client.try_send(head).await;
    let response = client.response().await;
    assert_eq!(response.status(), 431);
    assert!(client.rest().await.is_empty());
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn item_027_malformed_heads_get_400_and_are_not_forwarded() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "GET / HTTP/1.1\r\nHost: a\r\nX-Space : b\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let mut client = proxy.connect().await;
        client.send(head).await;
        assert_eq!(client.response().await.status(), 400, "{head:?}");
        assert!(client.rest().await.is_empty(), "{head:?}");
    }
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn item_028_length_and_chunked_are_never_forwarded_together() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    for lines in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    ] {
        let mut client = proxy.connect().await;
        client
            .send(format!(
                "POST / HTTP/1.1\r\nHost: t\r\n{lines}\r\n4\r\nabcd\r\n0\r\n\r\n"
            ))
            .await;
        assert_eq!(client.response().await.status(), 200);
        let seen = app.log.last();
        assert_eq!(
            (seen.header("content-length"), seen.text().as_str()),
            (None, "abcd")
        );
    }
}

#[tokio::test]
async fn item_029_http10_is_answered_and_closed_unless_asked_otherwise() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    let response = client.response().await;
    assert_eq!(
        (response.status(), response.text().as_str()),
        (200, "hello")
    );
    assert!(
        response.start.starts_with("HTTP/1.0 "),
        "{}",
        response.start
    );
    assert!(client.rest().await.is_empty());
    assert!(app.log.last().start.ends_with("HTTP/1.1"));

    let mut client = proxy.connect().await;
    for _ in 0..3 {
        let response = client
            .request("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            .await;
        assert_eq!(response.text(), "hello");
        assert!(
            response
                .header("connection")
                .unwrap()
                .eq_ignore_ascii_case("keep-alive")
        );
    }
}

#[tokio::test]
async fn item_030_a_thousand_requests_in_a_row_need_one_connection() {
    let app = App::serving(|request| async move {
        if request.target() == "/chunked" {
            [
                &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
                &chunk("abc"),
                b"0\r\n\r\n",
            ]
            .concat()
        } else {
            ok("hello")
        }
    })
    .await;
    for concurrency in [0, 1, 3] {
        let before = app.log.connections();
        let proxy = proxy(app.port).concurrency(concurrency).start().await;
        let mut client = proxy.connect().await;
        for n in 0..1000 {
            let response = match n % 3 {
                0 => client.get("/").await,
                1 => client.get("/chunked").await,
                _ => client.post("/", "body").await,
            };
            assert_eq!(response.status(), 200);
        }
        assert_eq!(
            app.log.connections() - before,
            1,
            "concurrency {concurrency}"
        );
    }
}

#[tokio::test]
async fn item_032_the_true_status_follows_interim_ones() {
    let app = App::serving(|request| async move {
        let interim = if request.target() == "/103" {
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        } else {
            "HTTP/1.1 100 Continue\r\n\r\n"
        };
        format!("{interim}HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone").into_bytes()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for target in ["/103", "/100"] {
        client
            .send(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"))
            .await;
        let mut response = client.response().await;
        while response.status() < 200 {
            response = client.response().await;
        }
        assert_eq!((response.status(), response.text().as_str()), (404, "gone"));
    }
}

#[tokio::test]
async fn item_033_a_client_that_waits_for_continue_gets_it() {
    let app = App::raw(|mut connection| async move {
        while let Some(mut request) = connection.request_head().await {
            if request.target() == "/late" {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            if request.target() == "/refuse" {
                connection
                    .write("HTTP/1.1 413 No\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
                    .await;
                return;
            }
            connection.write("HTTP/1.1 100 Continue\r\n\r\n").await;
            connection.body(&mut request).await.unwrap();
            connection.write(ok(&request.text())).await;
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    for target in ["/", "/late"] {
        let mut client = proxy.connect().await;
        let begin = Instant::now();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        );
        client.send(head).await;
        assert_eq!(client.head().await.status(), 100);
        assert!(begin.elapsed() < Duration::from_millis(300) + SLACK);
        client.send("body").await;
        let response = client.response().await;
        assert_eq!((response.status(), response.text().as_str()), (200, "body"));
    }
    // A refused client gets no 100.
    let mut client = proxy.connect().await;
    client
        .send(
            "POST /refuse HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        )
        .await;
    let response = client.response().await;
    assert_eq!((response.status(), response.text().as_str()), (413, "big"));

    let mut client = proxy.connect().await;
    client
        .send("POST / HTTP/1.1\r\nHost: t\r\nExpect: a-miracle\r\nContent-Length: 4\r\n\r\n")
        .await;
    assert_eq!(client.response().await.status(), 417);
}

#[tokio::test]
async fn item_034_trailers_reach_the_client() {
    let app = App::serving(|request| async move {
        let announced = if request.target() == "/announced" { "Trailer: X-Sum\r\n" } else { "" };
        format!("HTTP/1.1 200 OK\r\n{announced}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\nContent-Length: 9\r\nx-two: b\r\n\r\n")
            .into_bytes()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for lines in ["", "TE: trailers\r\n"] {
        for target in ["/announced", "/unannounced"] {
            let response = client.get_with(target, lines).await;
            assert_eq!(response.text(), "abc");
            let trailers: Vec<_> = response
                .trailers
                .iter()
                .map(|(n, v)| (n.as_str(), v.as_str()))
                .collect();
            assert_eq!(trailers, [("X-Sum", "6"), ("X-Two", "b")]);
        }
    }
    assert_eq!(
        client.get("/announced").await.header("trailer"),
        Some("X-Sum")
    );
}

#[tokio::test]
async fn item_034_trailers_of_a_request_are_forwarded_except_framing_ones() {
    let app = App::saying("x").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client
        .send(
            "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\
             Trailer: X-Sum, Connection, Content-Length\r\n\r\n\
             3\r\nabc\r\n0\r\nX-Sum: 6\r\nConnection: X-Other\r\nContent-Length: 9\r\nX-Two: b\r\n\r\n",
        )
        .await;
    assert_eq!(client.response().await.status(), 200);
    let names: Vec<_> = app
        .log
        .last()
        .trailers
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert!(names.contains(&"X-Sum".to_owned()), "{names:?}");
    assert!(
        !names
            .iter()
            .any(|name| ["Connection", "Content-Length"].contains(&name.as_str())),
        "{names:?}"
    );
}

#[tokio::test]
async fn item_035_no_listener_at_the_user_port_is_502_at_once() {
    let port = App::saying("").await.port;
    let proxy = proxy(port).start().await;
    let mut client = proxy.connect().await;
    let begin = Instant::now();
    let response = client.get("/").await;
    assert!(begin.elapsed() < Duration::from_millis(100) + SLACK);
    assert_eq!(response.status(), 502);
    assert_eq!(
        response.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    assert!(response.text().contains("connection refused") && response.text().ends_with('\n'));
}

#[tokio::test]
async fn item_036_a_broken_answer_is_502_before_and_an_aborted_message_after_its_head() {
    let app = App::raw(|mut connection| async move {
        let Some(request) = connection.request().await else {
            return;
        };
        match request.target() {
            "/length" => {
                connection
                    .write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
                    .await
            }
            "/chunked" => {
                connection
                    .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
                    .await;
            }
            "/head" => connection.write("HTTP/1.1 200 OK\r\nX-Ha").await,
            "/nonsense" => connection.write("EHLO there\r\n\r\n").await,
            _ => {}
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    for target in ["/nothing", "/head", "/nonsense"] {
        let response = proxy.connect().await.get(target).await;
        assert_eq!(response.status(), 502, "{target}");
        assert!(!response.body.is_empty());
    }
    for target in ["/length", "/chunked"] {
        let mut client = proxy.connect().await;
        client
            .send(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"))
            .await;
        let mut response = client.head().await;
        assert_eq!(response.status(), 200);
        client
            .body(&mut response, Kind::Response)
            .await
            .unwrap_err();
        assert_eq!(response.text(), "half", "{target}");
    }
    assert_eq!(app.log.count(), 5, "nothing is sent twice");
}

#[tokio::test]
async fn item_037_a_connection_closed_while_idle_is_never_noticed() {
    let app = App::raw(|mut connection| async move {
        if connection.request().await.is_some() {
            connection.write(ok("hello")).await;
        }
    })
    .await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let mut client = proxy.connect().await;
    for n in 0..50 {
        let response = if n % 2 == 0 {
            client.get("/").await
        } else {
            client.post("/", "x").await
        };
        assert_eq!(response.text(), "hello", "request {n}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(app.log.count(), 50);
}

#[tokio::test]
async fn item_038_a_client_that_disconnects_cancels_its_request() {
    let app = App::silent().await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let big = "b".repeat(300_000);
    for (n, request) in [
        "GET / HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nbody".to_owned(),
        format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 300000\r\n\r\n{big}"),
        // A pipelined request behind it keeps hyper from reading on.
        "GET / HTTP/1.1\r\nHost: t\r\n\r\nGET /second HTTP/1.1\r\nHost: t\r\n\r\n".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = proxy.connect().await;
        client.send(request).await;
        eventually("the request is at the app", || app.log.live() == 1).await;
        drop(client);
        let begin = Instant::now();
        eventually("the request is cancelled", || app.log.cancelled() == n + 1).await;
        assert!(
            begin.elapsed() < Duration::from_millis(100) + SLACK,
            "{:?}",
            begin.elapsed()
        );
    }
    assert!(
        !app.log
            .requests()
            .iter()
            .any(|request| request.target() == "/second")
    );
}

#[tokio::test]
async fn item_038_an_unread_body_does_not_hide_the_clients_disconnection() {
    let app = App::raw(|mut connection| async move {
        if connection.request_head().await.is_some() {
            // Never reads: both sockets between client and app fill up.
            std::future::pending::<()>().await;
        }
    })
    .await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let mut client = proxy.connect().await;
    // More than the socket to the app takes, less than both sockets: the rest stays unread in the proxy's socket.
    client
        .send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3000000\r\n\r\n")
        .await;
    client.send(vec![0; 3_000_000]).await;
    eventually("the first is at the app", || app.log.count() == 1).await;
    drop(client);
    // The place is free again: a second request is dispatched.
    let mut second = proxy.connect().await;
    second.send("GET /second HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("the second is at the app", || app.log.count() == 2).await;
}

#[tokio::test]
async fn options_star_is_answered_by_the_proxy() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let response = proxy
        .connect()
        .await
        .request("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n")
        .await;
    assert_eq!(
        (response.status(), response.header("content-length")),
        (200, Some("0"))
    );
    assert_eq!(app.log.count(), 0);
}

#[tokio::test]
async fn bare_line_feeds_and_eight_bit_values_are_tolerated() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    assert_eq!(
        client
            .request("GET /lf HTTP/1.1\nHost: t\nX-A: b\n\n")
            .await
            .text(),
        "hello"
    );
    assert_eq!(app.log.last().header("x-a"), Some("b"));
    assert_eq!(
        client
            .request(b"GET / HTTP/1.1\r\nHost: t\r\nX-A: \xe9\r\n\r\n")
            .await
            .text(),
        "hello"
    );
}

#[tokio::test]
async fn item_013_a_length_stays_one_whatever_connection_names() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    proxy
        .connect()
        .await
        .request("POST / HTTP/1.1\r\nHost: t\r\nConnection: Content-Length\r\nContent-Length: 4\r\n\r\nbody")
        .await;
    let seen = app.log.last();
    assert_eq!(
        (seen.header("content-length"), seen.text().as_str()),
        (Some("4"), "body")
    );
}

#[tokio::test]
async fn item_014_an_answer_with_a_length_and_chunks_is_chunked() {
    let app = App::serving(|request| async move {
        let length = &request.target()[1..];
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
            .into_bytes()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for length in [0, 3, 9] {
        let response = client.get(&format!("/{length}")).await;
        assert_eq!(
            (response.text().as_str(), response.header("content-length")),
            ("hello", None)
        );
    }
}

#[tokio::test]
async fn strange_transfer_codings_are_refused() {
    let app = App::serving(|_| async {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_vec()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    for coding in ["gzip, chunked", "chunked, chunked", "identity, chunked"] {
        let request =
            format!("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n");
        assert_eq!(
            proxy.connect().await.request(request).await.status(),
            501,
            "{coding}"
        );
    }
    assert_eq!(app.log.count(), 0);
    assert_eq!(proxy.connect().await.get("/").await.status(), 502);
}
