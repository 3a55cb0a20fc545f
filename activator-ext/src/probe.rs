//! Probes: of a function's pod Knative's, by which its queue-proxy says whether the application is ready, and one that it answers
//! itself; of a pod of role `data` the kubelet's.

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

/// The probe's value, and the answer's whole body.
const QUEUE: &str = "queue";
/// A value that no queue-proxy knows: it says so at once, without asking the application.
const ALIVE: &str = "weir-alive";
/// More of an answer is not read.
const BODY_BYTES_MAX: usize = 1_024;

/// Returns whether the pod behind `address` is ready. A queue-proxy answers when it knows, so this may take its time.
pub(crate) async fn is_ready(address: SocketAddr) -> bool {
    let answer = ask(address, knatives(address, QUEUE)).await;
    answer.is_ok_and(|(status, body)| status == StatusCode::OK && body == QUEUE)
}

/// Returns whether the pod's queue-proxy answers at all, whatever its application does.
pub(crate) async fn is_alive(address: SocketAddr) -> bool {
    ask(address, knatives(address, ALIVE)).await.is_ok()
}

/// Returns whether the pod of role `data` behind `address` takes requests.
#[cfg(feature = "kubernetes")]
pub(crate) async fn takes_requests(address: SocketAddr) -> bool {
    let request = Request::get("/")
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, "kube-probe/weir-control");
    let answer = ask(address, request).await;
    answer.is_ok_and(|(status, _)| status == StatusCode::OK)
}

fn knatives(address: SocketAddr, value: &'static str) -> Builder {
    Request::get("/healthz")
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, "Knative-Activator-Probe")
        .header(NETWORK_PROBE, value)
}

async fn ask(address: SocketAddr, request: Builder) -> io::Result<(StatusCode, Bytes)> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let shake = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(socket));
    let (mut sender, connection) = shake.await.map_err(io::Error::other)?;
    let request = request.body(Empty::new()).map_err(io::Error::other)?;
    // It owns the sender: once it is over, the connection ends as well.
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
