use std::time::{Duration, Instant};

use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::version::{TLS12, TLS13};
use tests::SLACK;
use tests::app::App;
use tests::app2::App2;
use tests::client::Client;
use tests::client2::{empty, full};
use tests::eventually;
use tests::proxy::{Builder, Proxy};
use tests::tls::Certificate;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::proxy;

/// Starts a proxy with a certificate, changed by `change`.
async fn secured(
    app_port: u16,
    certificate: &Certificate,
    change: impl FnOnce(Builder) -> Builder,
) -> Proxy {
    let builder = change(proxy(app_port));
    certificate.write(&builder.certificates());
    builder.start().await
}

/// Sends a GET over HTTP/1 and TLS, and reads to the end.
async fn get(certificate: &Certificate, proxy: &Proxy) -> std::io::Result<String> {
    let mut stream = certificate
        .connect(proxy.at(8112), &[&TLS13, &TLS12], &[b"http/1.1"])
        .await?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn item_134_both_protocols_are_offered_and_the_plain_port_stays() {
    let certificate = Certificate::new();
    let app = App::saying("one").await;
    let proxy = secured(app.port, &certificate, |builder| builder).await;
    let stream = certificate
        .connect(proxy.at(8112), &[&TLS13], &[b"http/1.1"])
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(get(&certificate, &proxy).await.unwrap().ends_with("one"));
    assert_eq!(proxy.connect().await.get("/").await.text(), "one");
    drop(proxy);

    let app2 = App2::serving(|_| async { http::Response::new(full("two")) }).await;
    let proxy = secured(app2.port, &certificate, |builder| builder).await;
    let stream = certificate
        .connect(proxy.at(8112), &[&TLS13], &[b"h2", b"http/1.1"])
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://data-plane.knative.dev/")
        .body(empty())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let (_, body, _) = tests::client2::whole(response).await.unwrap();
    assert_eq!(body, "two");
}

/// Knative's own test of system-internal TLS looks for these words in the request log.
#[tokio::test]
async fn the_request_log_has_the_tls_state_of_a_request() {
    let certificate = Certificate::new();
    let app = App::saying("one").await;
    let proxy = secured(app.port, &certificate, |builder| {
        builder.set(
            "OBSERVABILITY_CONFIG",
            r#"{"enableRequestLog":true,"requestLogTemplate":"TLS: {{.Request.TLS}}|{{if .Request.TLS}}yes{{else}}no{{end}}"}"#,
        )
    })
    .await;
    proxy.connect().await.get("/").await;
    eventually("a line", || proxy.stdout().ends_with('\n')).await;
    assert_eq!(proxy.stdout(), "TLS: <nil>|no\n");
    get(&certificate, &proxy).await.unwrap();
    eventually("another", || proxy.stdout().matches('\n').count() == 2).await;
    let log = proxy.stdout();
    let line = log.lines().nth(1).unwrap();
    // TLS 1.3, complete, not resumed, suite and group, ALPN, the server name, and the empty fields of a client without
    // certificates.
    assert!(line.starts_with("TLS: {772 true false 486"), "{line}");
    assert!(
        line.contains(" http/1.1 true data-plane.knative.dev [] [] [] [] [] false false 0x"),
        "{line}"
    );
    assert!(line.ends_with(" 0}|yes"), "{line}");
}

#[tokio::test]
async fn item_135_tls_1_2_is_refused_unless_allowed() {
    let certificate = Certificate::new();
    let app = App::saying("one").await;
    let proxy = secured(app.port, &certificate, |builder| builder).await;
    let old = certificate.connect(proxy.at(8112), &[&TLS12], &[]).await;
    assert!(old.is_err());
    drop(proxy);
    let proxy = secured(app.port, &certificate, |builder| {
        builder.set("QUEUE_PROXY_TLS_MIN_VERSION", "1.2")
    })
    .await;
    assert!(
        certificate
            .connect(proxy.at(8112), &[&TLS12], &[])
            .await
            .is_ok()
    );
    assert!(
        certificate
            .connect(proxy.at(8112), &[&TLS13], &[])
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn suites_and_curves_follow_the_settings() {
    let certificate = Certificate::new();
    let app = App::saying("one").await;
    let proxy = secured(app.port, &certificate, |builder| {
        builder
            .set("QUEUE_PROXY_TLS_MIN_VERSION", "1.2")
            .set("QUEUE_PROXY_TLS_MAX_VERSION", "1.2")
            .set(
                "QUEUE_PROXY_TLS_CIPHER_SUITES",
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            )
            .set("QUEUE_PROXY_TLS_CURVE_PREFERENCES", "CurveP384")
    })
    .await;
    let stream = certificate
        .connect(proxy.at(8112), &[&TLS13, &TLS12], &[])
        .await
        .unwrap();
    let (_, session) = stream.get_ref();
    let suite = session.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(
        suite.as_str(),
        Some("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")
    );
    let group = session.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, rustls::NamedGroup::secp384r1);
}

#[tokio::test]
async fn unusable_settings_end_the_process_only_with_certificates() {
    let certificate = Certificate::new();
    for (name, value) in [
        ("QUEUE_PROXY_TLS_MIN_VERSION", "1.1"),
        ("QUEUE_PROXY_TLS_CIPHER_SUITES", "TLS_NONSENSE"),
        ("QUEUE_PROXY_TLS_CURVE_PREFERENCES", "P-256"),
    ] {
        let app = App::saying("one").await;
        let builder = proxy(app.port).set(name, value);
        certificate.write(&builder.certificates());
        let (status, log) = builder.run_to_end(tests::PATIENCE).await;
        assert_eq!(status.code(), Some(1), "{name}");
        assert!(log.contains(value), "{log}");
    }
    let app = App::saying("one").await;
    let proxy = proxy(app.port)
        .set("QUEUE_PROXY_TLS_MIN_VERSION", "1.1")
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "one");
}

#[tokio::test]
async fn an_unusable_pair_at_the_start_ends_the_process() {
    let builder = proxy(1);
    let folder = builder.certificates();
    Certificate::new().write(&folder);
    std::fs::write(folder.join("tls.key"), "nonsense").unwrap();
    let (status, log) = builder.run_to_end(tests::PATIENCE).await;
    assert_eq!(status.code(), Some(1));
    assert!(!log.is_empty());
}

#[tokio::test]
async fn item_136_replaced_files_serve_new_connections() {
    let (first, second) = (Certificate::new(), Certificate::new());
    let app = App::saying("one").await;
    let builder = proxy(app.port);
    let folder = builder.certificates();
    first.write(&folder);
    let proxy = builder.start().await;
    let mut old = first
        .connect(proxy.at(8112), &[&TLS13], &[b"http/1.1"])
        .await
        .unwrap();
    // A connection becomes idle only after a request has been answered on it.
    old.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"one") {
        assert_ne!(old.read_buf(&mut answer).await.unwrap(), 0);
    }
    second.write(&folder);
    let begin = Instant::now();
    while get(&second, &proxy).await.is_err() {
        assert!(
            begin.elapsed() < Duration::from_secs(61) + SLACK,
            "the new certificate is not in use after {:?}",
            begin.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // The existing connection continues.
    old.write_all(b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("one"), "{answer}");
}

#[tokio::test]
async fn item_136_a_broken_pair_is_ignored() {
    let certificate = Certificate::new();
    let app = App::saying("one").await;
    let builder = proxy(app.port);
    let folder = builder.certificates();
    certificate.write(&folder);
    let proxy = builder.start().await;
    // A pair with an invalid half changes nothing; the log shows when it was checked.
    let before = proxy.stderr().len();
    std::fs::write(folder.join("tls.key"), "nonsense").unwrap();
    let begin = Instant::now();
    let looked = || {
        let log = proxy.stderr().split_off(before);
        log.contains("tls.key") || log.contains("certificate: ")
    };
    while !looked() {
        assert!(
            begin.elapsed() < Duration::from_secs(61) + SLACK,
            "the certificates were not checked after {:?}: {}",
            begin.elapsed(),
            proxy.stderr()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(get(&certificate, &proxy).await.unwrap().ends_with("one"));
}

#[tokio::test]
async fn item_137_with_one_of_both_files_there_is_no_tls() {
    for kept in ["tls.crt", "tls.key"] {
        let app = App::saying("one").await;
        let builder = proxy(app.port);
        let folder = builder.certificates();
        Certificate::new().write(&folder);
        let other = if kept == "tls.crt" {
            "tls.key"
        } else {
            "tls.crt"
        };
        std::fs::remove_file(folder.join(other)).unwrap();
        let proxy = builder.start().await;
        assert!(TcpStream::connect(proxy.at(8112)).await.is_err());
        assert_eq!(proxy.connect().await.get("/").await.text(), "one");
    }
}

#[tokio::test]
async fn item_138_the_other_ports_and_probes_stay_plain() {
    let certificate = Certificate::new();
    let app = App::saying("one").await;
    let proxy = secured(app.port, &certificate, |builder| builder).await;
    proxy.stat().await;
    assert_eq!(
        Client::connect(proxy.at(8022))
            .await
            .get("/")
            .await
            .status(),
        404
    );
    let probe = "User-Agent: kube-probe/1.30\r\nK-Network-Probe: queue\r\n";
    let answer = proxy.connect().await.get_with("/", probe).await;
    assert_eq!((answer.status(), answer.text().as_str()), (200, "queue"));
}

#[tokio::test]
async fn a_client_that_disconnects_over_tls_cancels_its_request() {
    let certificate = Certificate::new();
    let app = App::silent().await;
    let proxy = secured(app.port, &certificate, |builder| builder).await;
    let mut stream = certificate
        .connect(proxy.at(8112), &[&TLS13], &[b"http/1.1"])
        .await
        .unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
        .await
        .unwrap();
    eventually("it runs", || app.log.live() == 1).await;
    drop(stream);
    eventually("the request is cancelled", || app.log.cancelled() == 1).await;
}
