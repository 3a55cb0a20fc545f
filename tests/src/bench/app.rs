//! The user container as a separate process: answers at once with as many bytes as the path states, `/hold` after 3 s, and
//! `/turn` with the number of such requests before it. It answers an activator's probes as a queue-proxy does.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

/// Argument which runs this program as the user container.
pub const ROLE: &str = "--app";
/// Delay of the answer to `GET /hold`.
pub const HOLD: Duration = Duration::from_secs(3);

pub async fn run(port: u16) -> ExitCode {
    // All addresses, since a proxy may be in a network namespace.
    let Ok(listener) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await else {
        return ExitCode::FAILURE;
    };
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream));
    }
    ExitCode::FAILURE
}

async fn serve(stream: TcpStream) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut begin = [0; 3];
    let speaks_http2 = stream
        .peek(&mut begin)
        .await
        .is_ok_and(|_| begin == *b"PRI");
    let io = TokioIo::new(stream);
    let service = service_fn(answer);
    // Connections are broken by the proxy under test.
    if speaks_http2 {
        let _ended = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .serve_connection(io, service)
            .await;
    } else {
        let _ended = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .serve_connection(io, service)
            .await;
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    static BYTES: &[u8] = &[b'x'; 1 << 20];
    let path = request.uri().path();
    if request.headers().contains_key("k-network-probe") {
        return Ok(Response::new(Full::from("queue")));
    }
    if path == "/turn" {
        static TURNS: AtomicU64 = AtomicU64::new(0);
        let turn = TURNS.fetch_add(1, Ordering::Relaxed);
        return Ok(Response::new(Full::from(turn.to_string())));
    }
    if path == "/hold" {
        tokio::time::sleep(HOLD).await;
    }
    let bytes = path[1..].parse().unwrap_or(0_usize).min(BYTES.len());
    Ok(Response::new(Full::new(Bytes::from_static(
        &BYTES[..bytes],
    ))))
}
