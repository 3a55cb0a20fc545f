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
        assert_eq!(app.seen.last().target(), target);
    }
    let count = app.seen.count();
    for target in ["/%zz", "/a%2"] {
        let response = proxy.connect().await.get(target).await;
        assert_eq!(
            (response.status(), response.text().as_str()),
            (400, "400 Bad Request"),
            "{target}"
        );
    }
    assert_eq!(app.seen.count(), count, "a bad path reaches nobody");
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
        assert!(app.seen.last().start.starts_with(&format!("{method} /x ")));
    }
}

#[tokio::test]
async fn item_013_bodies_arrive_whole_whatever_their_framing() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.post("/", "hello").await;
    let seen = app.seen.last();
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
        let seen = app.seen.last();
        assert_eq!(seen.text(), "abcdefg", "{method}");
        assert_eq!(seen.header("transfer-encoding"), Some("chunked"));
    }
    client.get("/").await;
    let seen = app.seen.last();
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
        "the connection goes on"
    );
}

#[tokio::test]
async fn item_015_host_arrives_unchanged() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client
        .request("GET / HTTP/1.1\r\nHost: Some.Example:81\r\n\r\n")
        .await;
    assert_eq!(app.seen.last().header("host"), Some("Some.Example:81"));
    client
        .request("GET http://else.where/x?y HTTP/1.1\r\nHost: ignored\r\n\r\n")
        .await;
    let seen = app.seen.last();
    assert_eq!(
        (seen.header("host"), seen.target()),
        (Some("else.where"), "/x?y")
    );
}

#[tokio::test]
async fn item_016_the_original_host_is_restored() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    proxy
        .connect()
        .await
        .get_with("/", "K-Original-Host: a.b\r\n")
        .await;
    let seen = app.seen.last();
    assert_eq!(
        (seen.header("host"), seen.header("k-original-host")),
        (Some("a.b"), None)
    );
}

#[tokio::test]
async fn item_017_routing_headers_go_no_further() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let lines =
        "Knative-Serving-Revision: r\r\nKnative-Serving-Namespace: n\r\nKnative-Serving-Tag: t\r\n";
    proxy.connect().await.get_with("/", lines).await;
    let seen = app.seen.last();
    assert_eq!(seen.header("knative-serving-revision"), None);
    assert_eq!(seen.header("knative-serving-namespace"), None);
    assert_eq!(seen.header("knative-serving-tag"), Some("t"));
}

#[tokio::test]
async fn item_018_what_concerns_one_connection_stays_there() {
    let app = App::serving(|_| async {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: x\r\nX-Other: 2\r\n\r\n".to_vec()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let lines = "Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 1\r\nProxy-Connection: x\r\nProxy-Authorization: y\r\nX-Kept: 2\r\n";
    let response = proxy.connect().await.get_with("/", lines).await;
    let seen = app.seen.last();
    for gone in [
        "connection",
        "x-hop",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
    ] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    assert_eq!(seen.header("x-kept"), Some("2"));
    for gone in ["connection", "x-mine", "keep-alive", "proxy-authenticate"] {
        assert_eq!(response.header(gone), None, "{gone}");
    }
    assert_eq!(response.header("x-other"), Some("2"));
}

#[tokio::test]
async fn item_019_only_te_trailers_survives() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for (sent, seen) in [
        ("trailers", Some("trailers")),
        ("gzip", None),
        ("gzip, trailers", Some("trailers")),
    ] {
        client.get_with("/", &format!("TE: {sent}\r\n")).await;
        assert_eq!(app.seen.last().header("te"), seen);
    }
}

#[tokio::test]
async fn item_020_the_client_is_appended_to_x_forwarded_for() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for (lines, seen) in [
        ("", "127.0.0.1"),
        ("X-Forwarded-For: 1.2.3.4\r\n", "1.2.3.4, 127.0.0.1"),
        (
            "X-Forwarded-For: a\r\nX-Forwarded-For: b\r\n",
            "a, b, 127.0.0.1",
        ),
    ] {
        client.get_with("/", lines).await;
        assert_eq!(app.seen.last().header("x-forwarded-for"), Some(seen));
    }
}

#[tokio::test]
async fn item_021_x_forwarded_proto_and_host_are_passed_and_never_invented() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.get("/").await;
    let seen = app.seen.last();
    assert_eq!(
        (
            seen.header("x-forwarded-proto"),
            seen.header("x-forwarded-host")
        ),
        (None, None)
    );
    client
        .get_with("/", "X-Forwarded-Proto: p\r\nX-Forwarded-Host: h\r\n")
        .await;
    let seen = app.seen.last();
    assert_eq!(
        (
            seen.header("x-forwarded-proto"),
            seen.header("x-forwarded-host")
        ),
        (Some("p"), Some("h"))
    );
}

async fn forwarded(lines: &str) -> Option<String> {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    proxy.connect().await.get_with("/", lines).await;
    app.seen.last().header("forwarded").map(ToOwned::to_owned)
}

#[tokio::test]
async fn item_022_forwarded_is_built_from_x_forwarded() {
    let lines = "X-Forwarded-For: a, b\r\nX-Forwarded-Host: h\r\nX-Forwarded-Proto: https\r\n";
    assert_eq!(
        forwarded(lines).await.as_deref(),
        Some("for=a;host=h;proto=https, for=b")
    );
}

#[tokio::test]
async fn item_023_forwarded_quotes_and_leaves_out() {
    assert_eq!(
        forwarded("X-Forwarded-For: ::1\r\n").await.as_deref(),
        Some("for=\"[::1]\"")
    );
    assert_eq!(
        forwarded("X-Forwarded-Host: h\r\n").await.as_deref(),
        Some("host=h")
    );
    assert_eq!(
        forwarded("X-Forwarded-Proto: p\r\n").await.as_deref(),
        Some("proto=p")
    );
    assert_eq!(
        forwarded("X-Forwarded-For: ,,,\r\n").await.as_deref(),
        Some("for=, for=, for=, for=")
    );
}

#[tokio::test]
async fn item_024_forwarded_is_kept_and_not_made_of_nothing() {
    assert_eq!(
        forwarded("Forwarded: for=z\r\nX-Forwarded-For: a\r\n")
            .await
            .as_deref(),
        Some("for=z")
    );
    assert_eq!(forwarded("").await, None);
}

#[tokio::test]
async fn item_025_nothing_is_added_and_encodings_pass() {
    let app = App::serving(|_| async {
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08"
            .to_vec()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let response = proxy
        .connect()
        .await
        .get_with("/", "Accept-Encoding: br;q=0.1, *\r\n")
        .await;
    let seen = app.seen.last();
    assert_eq!(seen.header("accept-encoding"), Some("br;q=0.1, *"));
    assert_eq!(
        (seen.header("via"), seen.header("user-agent")),
        (None, None)
    );
    assert_eq!(
        (response.header("via"), response.header("server")),
        (None, None)
    );
    assert_eq!(response.body, b"\x1f\x8b\x08");
    assert_eq!(
        response.header("content-type"),
        None,
        "an encoded body is not sniffed"
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
async fn item_027_malformed_heads_get_400_and_reach_nobody() {
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
    assert_eq!(app.seen.count(), 0);
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
        let seen = app.seen.last();
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
    assert!(app.seen.last().start.ends_with("HTTP/1.1"));

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
        let before = app.seen.connections();
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
            app.seen.connections() - before,
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
async fn item_033_a_client_that_waits_for_continue_is_told_to() {
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
    // Who is refused is not told to go on.
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
        format!("HTTP/1.1 200 OK\r\n{announced}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\nx-two: b\r\n\r\n")
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
async fn item_035_nobody_at_the_user_port_is_502_at_once() {
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
async fn item_036_an_app_that_breaks_off_is_502_before_and_an_aborted_message_after_its_head() {
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
    assert_eq!(app.seen.count(), 5, "nothing is sent twice");
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
    assert_eq!(app.seen.count(), 50);
}

#[tokio::test]
async fn item_038_a_client_that_leaves_cancels_its_request() {
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
        eventually("the request is at the app", || app.seen.live() == 1).await;
        drop(client);
        let begin = Instant::now();
        eventually("the request is cancelled", || app.seen.cancelled() == n + 1).await;
        assert!(
            begin.elapsed() < Duration::from_millis(100) + SLACK,
            "{:?}",
            begin.elapsed()
        );
    }
    assert!(
        !app.seen
            .requests()
            .iter()
            .any(|request| request.target() == "/second")
    );
}

#[tokio::test]
async fn item_038_an_app_that_does_not_read_the_body_does_not_hide_that_the_client_left() {
    let app = App::raw(|mut connection| async move {
        if connection.request_head().await.is_some() {
            // Never reads: both sockets between client and app fill up.
            std::future::pending::<()>().await;
        }
    })
    .await;
    let proxy = proxy(app.port).concurrency(1).start().await;
    let mut client = proxy.connect().await;
    // More than the socket to the app takes, less than both sockets: the rest lies unread in ours.
    client
        .send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3000000\r\n\r\n")
        .await;
    client.send(vec![0; 3_000_000]).await;
    eventually("the first is at the app", || app.seen.count() == 1).await;
    drop(client);
    // The place is free again: a second request is dispatched.
    let mut second = proxy.connect().await;
    second.send("GET /second HTTP/1.1\r\nHost: t\r\n\r\n").await;
    eventually("the second is at the app", || app.seen.count() == 2).await;
}

#[tokio::test]
async fn item_040_repeated_and_empty_values_keep_their_order() {
    let app = App::serving(|_| async {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-R: 1\r\nX-E:\r\nX-R: 2\r\nX-R: 1\r\n\r\n"
            .to_vec()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let response = proxy
        .connect()
        .await
        .get_with("/", "X-A: 1\r\nX-B: \r\nX-A: 2\r\nX-A: 1\r\n")
        .await;
    let seen = app.seen.last();
    assert_eq!(seen.values("x-a").collect::<Vec<_>>(), ["1", "2", "1"]);
    assert_eq!(seen.header("x-b"), Some(""));
    assert_eq!(response.values("x-r").collect::<Vec<_>>(), ["1", "2", "1"]);
    assert_eq!(response.header("x-e"), Some(""));
}

#[tokio::test]
async fn section_2_10_header_names_are_canonical_and_reason_phrases_are_gos() {
    let app = App::serving(|request| async move {
        let code = request.target()[1..].to_owned();
        format!(
            "HTTP/1.1 {code} Own Words\r\nx-lower-case: 1\r\nX.DOT: 2\r\nContent-Length: 0\r\n\r\n"
        )
        .into_bytes()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for (code, reason) in [
        ("200", "OK"),
        ("299", "status code 299"),
        ("413", "Request Entity Too Large"),
        ("416", "Requested Range Not Satisfiable"),
        ("418", "I'm a teapot"),
        ("999", "status code 999"),
    ] {
        let response = client
            .get_with(&format!("/{code}"), "x-foo: a\r\nX.DOT: b\r\n")
            .await;
        assert_eq!(response.start, format!("HTTP/1.1 {code} {reason}"));
        let names: Vec<_> = response
            .headers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert!(
            names.contains(&"X-Lower-Case") && names.contains(&"X.dot"),
            "{names:?}"
        );
        assert!(
            names.contains(&"Date") && names.contains(&"Content-Length"),
            "{names:?}"
        );
        let seen = app.seen.last();
        let names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert!(
            names.contains(&"X-Foo") && names.contains(&"X.dot"),
            "{names:?}"
        );
    }
}

#[tokio::test]
async fn section_2_10_a_body_with_a_length_and_no_type_gets_one() {
    let app = App::serving(|request| async move {
        match request.target() {
            "/chunked" => {
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                    .to_vec()
            }
            "/html" => ok("<html><body>"),
            "/typed" => {
                b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 1\r\n\r\nx".to_vec()
            }
            "/empty" => ok(""),
            _ => ok("hello"),
        }
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    for (target, kind) in [
        ("/", Some("text/plain; charset=utf-8")),
        ("/html", Some("text/html; charset=utf-8")),
        ("/typed", Some("a/b")),
        ("/chunked", None),
        ("/empty", None),
    ] {
        assert_eq!(
            client.get(target).await.header("content-type"),
            kind,
            "{target}"
        );
    }
}

#[tokio::test]
async fn section_2_2_options_star_is_answered_by_the_proxy() {
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
    assert_eq!(app.seen.count(), 0);
}

#[tokio::test]
async fn section_2_2_bare_line_feeds_and_eight_bit_values_are_tolerated() {
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
    assert_eq!(app.seen.last().header("x-a"), Some("b"));
    assert_eq!(
        client
            .request(b"GET / HTTP/1.1\r\nHost: t\r\nX-A: \xe9\r\n\r\n")
            .await
            .text(),
        "hello"
    );
}

#[tokio::test]
async fn item_015_no_client_can_take_the_host_away() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    proxy
        .connect()
        .await
        .get_with("/", "Connection: close, Host\r\n")
        .await;
    assert_eq!(app.seen.last().header("host"), Some("test"));
    proxy
        .connect()
        .await
        .request("GET / HTTP/1.0\r\n\r\n")
        .await;
    assert_eq!(
        app.seen.last().header("host"),
        Some(format!("127.0.0.1:{}", app.port).as_str())
    );
    proxy
        .connect()
        .await
        .request("GET http://u:p@h/ HTTP/1.1\r\nHost: x\r\n\r\n")
        .await;
    assert_eq!(app.seen.last().header("host"), Some("h"));
    proxy
        .connect()
        .await
        .get_with("/", "K-Original-Host: a b/..@\r\n")
        .await;
    assert_eq!(app.seen.last().header("host"), Some("test"));
    let count = app.seen.count();
    let response = proxy
        .connect()
        .await
        .request("GET foo HTTP/1.1\r\nHost: x\r\n\r\n")
        .await;
    assert_eq!((response.status(), app.seen.count()), (400, count));
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
    let seen = app.seen.last();
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
async fn section_2_2_strange_transfer_codings_are_refused() {
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
    assert_eq!(app.seen.count(), 0);
    assert_eq!(proxy.connect().await.get("/").await.status(), 502);
}
