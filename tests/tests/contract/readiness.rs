use http::{HeaderMap, HeaderValue, Response};
use http_body_util::BodyExt as _;
use tests::app::{App, ok};
use tests::app2::App2;
use tests::client2::full;
use tests::proxy::Proxy;
use tests::tls::Certificate;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::proxy;

const QUEUE: &str = "User-Agent: kube-probe/1.30\r\nK-Network-Probe: queue\r\n";

async fn probed(proxy: &Proxy) -> u16 {
    proxy.connect().await.get_with("/", QUEUE).await.status()
}

/// Starts a proxy with readiness probe `handler` and a period of a second: one attempt per probe.
async fn probing(user_port: u16, handler: &str) -> Proxy {
    proxy(user_port)
        .set(
            "SERVING_READINESS_PROBE",
            format!(r#"{{{handler},"periodSeconds":1,"timeoutSeconds":2,"successThreshold":1}}"#),
        )
        .start()
        .await
}

/// Returns the trailers of a successful gRPC call.
async fn grpc_ok() -> Option<Result<HeaderMap, std::convert::Infallible>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    Some(Ok(trailers))
}

#[tokio::test]
async fn item_101_an_http_check_passes_from_200_to_399_and_identifies_the_prober() {
    for (status, ready) in [(200, 200), (399, 200), (400, 503), (500, 503)] {
        let app = App::serving(move |_| async move {
            format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").into_bytes()
        })
        .await;
        let handler = format!(
            r#""httpGet":{{"host":"127.0.0.1","path":"/health?x=1","port":{},"scheme":"HTTP","httpHeaders":[{{"name":"X-Check","value":"yes"}}]}}"#,
            app.port
        );
        let proxy = probing(app.port, &handler).await;
        assert_eq!(probed(&proxy).await, ready, "{status}");
        let request = app.log.last();
        assert_eq!(request.target(), "/health?x=1");
        assert_eq!(request.header("user-agent"), Some("kube-probe//"));
        assert_eq!(request.header("x-check"), Some("yes"));
    }
}

#[tokio::test]
async fn item_102_a_tcp_check_passes_if_the_port_is_open() {
    let app = App::saying("x").await;
    let handler = |port| format!(r#""tcpSocket":{{"host":"127.0.0.1","port":{port}}}"#);
    let proxy = probing(app.port, &handler(app.port)).await;
    assert_eq!(probed(&proxy).await, 200);
    drop(proxy);
    let closed_port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let proxy = probing(app.port, &handler(closed_port)).await;
    assert_eq!(probed(&proxy).await, 503);
}

#[tokio::test]
async fn item_102_a_grpc_check_passes_only_on_serving_and_names_its_service() {
    for (status, ready) in [(1, 200), (2, 503), (3, 503)] {
        let app = App2::serving(move |request| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            let asked = request.into_body().collect().await.unwrap().to_bytes();
            let expected = [&[0, 0, 0, 0, 6, 0x0A, 4][..], b"echo"].concat();
            assert_eq!(asked, expected);
            Response::builder()
                .header("content-type", "application/grpc")
                .body(
                    full(vec![0, 0, 0, 0, 2, 8, status])
                        .with_trailers(grpc_ok())
                        .boxed(),
                )
                .unwrap()
        })
        .await;
        let handler = format!(r#""grpc":{{"port":{},"service":"echo"}}"#, app.port);
        let proxy = probing(app.port, &handler).await;
        assert_eq!(probed(&proxy).await, ready, "{status}");
    }
}

#[tokio::test]
async fn item_103_all_members_of_an_array_must_pass() {
    let good = App::saying("fine").await;
    let bad =
        App::serving(|_| async { b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec() }).await;
    let member = |port| {
        format!(
            r#"{{"httpGet":{{"host":"127.0.0.1","path":"/","port":{port},"scheme":"HTTP"}},"periodSeconds":1,"timeoutSeconds":1}}"#
        )
    };
    for (ports, ready) in [
        ([good.port, good.port], 200),
        ([good.port, bad.port], 503),
        ([bad.port, good.port], 503),
    ] {
        let array = format!("[{},{}]", member(ports[0]), member(ports[1]));
        let proxy = proxy(good.port)
            .set("ENABLE_MULTI_CONTAINER_PROBES", "true")
            .set("SERVING_READINESS_PROBE", array)
            .start()
            .await;
        assert_eq!(probed(&proxy).await, ready);
    }
}

#[tokio::test]
async fn item_104_either_protocol_is_detected() {
    let app = App::saying("fine").await;
    let app2 = App2::serving(|_| async { Response::new(full("fine")) }).await;
    for port in [app.port, app2.port] {
        let proxy = proxy(port)
            .set("ENABLE_HTTP2_AUTO_DETECTION", "true")
            .set(
                "SERVING_READINESS_PROBE",
                format!(r#"{{"httpGet":{{"host":"127.0.0.1","path":"/","port":{port},"scheme":"HTTP"}},"successThreshold":1}}"#),
            )
            .start()
            .await;
        assert_eq!(probed(&proxy).await, 200);
    }
}

#[tokio::test]
async fn an_https_check_accepts_any_certificate_as_the_kubelet_does() {
    let certificate = Certificate::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = certificate.acceptor();
    let serving = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // A client without a handshake is that of the plain check below.
            let Ok(mut stream) = acceptor.accept(socket).await else {
                continue;
            };
            let mut head = [0; 1024];
            if stream.read(&mut head).await.is_ok() {
                stream.write_all(&ok("fine")).await.unwrap();
            }
        }
    });
    let handler = |scheme| format!(r#""httpGet":{{"path":"/","port":{port},"scheme":"{scheme}"}}"#);
    let proxy = probing(port, &handler("HTTPS")).await;
    assert_eq!(probed(&proxy).await, 200);
    let plain = probing(port, &handler("HTTP")).await;
    assert_eq!(probed(&plain).await, 503);
    serving.abort();
}

#[tokio::test]
async fn an_exec_probe_is_refused_with_a_message() {
    let app = App::saying("fine").await;
    let proxy = probing(app.port, r#""exec":{"command":["true"]}"#).await;
    assert_eq!(probed(&proxy).await, 503);
    assert!(
        proxy.stderr().contains("not supported"),
        "{}",
        proxy.stderr()
    );
}
