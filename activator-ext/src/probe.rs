//! Probes. Those of a function's pod use Knative's headers: one which its queue-proxy answers by the readiness of the
//! application, and one which it answers itself. The probe of a pod of role `data` is that of the kubelet.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::request::Builder;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proxy::headers::NETWORK_PROBE;
use tokio::net::TcpStream;

/// Value of the readiness probe's header, and the body of a positive answer.
const QUEUE: &str = "queue";
/// Value of the liveness probe's header. It is unknown to every queue-proxy, which therefore rejects it at once,
/// without probing the application.
const ALIVE: &str = "weir-alive";
/// Largest part of an answer that is read, in bytes.
const BODY_BYTES_MAX: usize = 1_024;

/// Returns whether the pod behind `address` is ready. A queue-proxy may hold the probe until it knows, so set a
/// timeout.
pub(crate) async fn is_ready(address: SocketAddr) -> bool {
    let answer = exchange(address, knatives(address, QUEUE)).await;
    answer.is_ok_and(|(status, body)| status == StatusCode::OK && body == QUEUE)
}

/// Returns whether the pod's queue-proxy answers at all, independent of its application.
pub(crate) async fn is_alive(address: SocketAddr) -> bool {
    exchange(address, knatives(address, ALIVE)).await.is_ok()
}

/// Returns whether the pod of role `data` behind `address` accepts requests.
#[cfg(feature = "kubernetes")]
pub(crate) async fn takes_requests(address: SocketAddr) -> bool {
    let request = Request::get("/")
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, "kube-probe/weir-control");
    let answer = exchange(address, request).await;
    answer.is_ok_and(|(status, _)| status == StatusCode::OK)
}

fn knatives(address: SocketAddr, value: &'static str) -> Builder {
    Request::get("/healthz")
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, "Knative-Activator-Probe")
        .header(NETWORK_PROBE, value)
}

async fn exchange(address: SocketAddr, request: Builder) -> io::Result<(StatusCode, Bytes)> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let shake = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(socket));
    let (mut sender, connection) = shake.await.map_err(io::Error::other)?;
    let request = request.body(Empty::new()).map_err(io::Error::other)?;
    // It owns the sender: once it is complete, the connection ends as well.
    let answer = async move {
        let response = sender
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect();
        let body = body.await.map_err(io::Error::other)?.to_bytes();
        Ok((status, body))
    };
    let (answer, _ended) = tokio::join!(answer, connection);
    answer
}
