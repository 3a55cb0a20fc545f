use tests::app::{App, ok};

use crate::proxy;

#[tokio::test]
async fn item_015_host_arrives_unchanged() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client
        .request("GET / HTTP/1.1\r\nHost: Some.Example:81\r\n\r\n")
        .await;
    assert_eq!(app.log.last().header("host"), Some("Some.Example:81"));
    client
        .request("GET http://else.where/x?y HTTP/1.1\r\nHost: ignored\r\n\r\n")
        .await;
    let seen = app.log.last();
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
    let seen = app.log.last();
    assert_eq!(
        (seen.header("host"), seen.header("k-original-host")),
        (Some("a.b"), None)
    );
}

#[tokio::test]
async fn item_017_routing_headers_are_not_forwarded() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let lines =
        "Knative-Serving-Revision: r\r\nKnative-Serving-Namespace: n\r\nKnative-Serving-Tag: t\r\n";
    proxy.connect().await.get_with("/", lines).await;
    let seen = app.log.last();
    assert_eq!(seen.header("knative-serving-revision"), None);
    assert_eq!(seen.header("knative-serving-namespace"), None);
    assert_eq!(seen.header("knative-serving-tag"), Some("t"));
}

#[tokio::test]
async fn item_018_connection_headers_are_not_forwarded() {
    let app = App::serving(|_| async {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: x\r\nX-Other: 2\r\n\r\n".to_vec()
    })
    .await;
    let proxy = proxy(app.port).start().await;
    let lines = "Connection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 1\r\nProxy-Connection: x\r\nProxy-Authorization: y\r\nX-Kept: 2\r\n";
    let response = proxy.connect().await.get_with("/", lines).await;
    let seen = app.log.last();
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
        assert_eq!(app.log.last().header("te"), seen);
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
        assert_eq!(app.log.last().header("x-forwarded-for"), Some(seen));
    }
}

#[tokio::test]
async fn item_021_x_forwarded_proto_and_host_are_passed_and_never_invented() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    let mut client = proxy.connect().await;
    client.get("/").await;
    let seen = app.log.last();
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
    let seen = app.log.last();
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
    app.log.last().header("forwarded").map(ToOwned::to_owned)
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
async fn item_023_forwarded_quotes_values_and_omits_missing_ones() {
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
async fn item_024_forwarded_is_kept_and_not_built_without_x_forwarded() {
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
    let seen = app.log.last();
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
    let seen = app.log.last();
    assert_eq!(seen.values("x-a").collect::<Vec<_>>(), ["1", "2", "1"]);
    assert_eq!(seen.header("x-b"), Some(""));
    assert_eq!(response.values("x-r").collect::<Vec<_>>(), ["1", "2", "1"]);
    assert_eq!(response.header("x-e"), Some(""));
}

#[tokio::test]
async fn header_names_are_canonical_and_reason_phrases_are_gos() {
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
        let seen = app.log.last();
        let names: Vec<_> = seen.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert!(
            names.contains(&"X-Foo") && names.contains(&"X.dot"),
            "{names:?}"
        );
    }
}

#[tokio::test]
async fn a_body_with_a_length_and_no_type_gets_one() {
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
async fn item_015_no_client_can_remove_the_host() {
    let app = App::saying("").await;
    let proxy = proxy(app.port).start().await;
    proxy
        .connect()
        .await
        .get_with("/", "Connection: close, Host\r\n")
        .await;
    assert_eq!(app.log.last().header("host"), Some("test"));
    proxy
        .connect()
        .await
        .request("GET / HTTP/1.0\r\n\r\n")
        .await;
    assert_eq!(
        app.log.last().header("host"),
        Some(format!("127.0.0.1:{}", app.port).as_str())
    );
    proxy
        .connect()
        .await
        .request("GET http://u:p@h/ HTTP/1.1\r\nHost: x\r\n\r\n")
        .await;
    assert_eq!(app.log.last().header("host"), Some("h"));
    proxy
        .connect()
        .await
        .get_with("/", "K-Original-Host: a b/..@\r\n")
        .await;
    assert_eq!(app.log.last().header("host"), Some("test"));
    let count = app.log.count();
    let response = proxy
        .connect()
        .await
        .request("GET foo HTTP/1.1\r\nHost: x\r\n\r\n")
        .await;
    assert_eq!((response.status(), app.log.count()), (400, count));
}
