//! The user container: a process of its own that answers at once with as many bytes as the path says.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

/// The argument by which this program becomes the user container.
pub(crate) const ROLE: &str = "--app";
/// `GET /hold` takes so long.
pub(crate) const HOLD: Duration = Duration::from_secs(3);

pub(crate) async fn run(port: u16) -> ExitCode {
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await else {
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
    // A connection that breaks off is the proxy's business.
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
    if path == "/hold" {
        tokio::time::sleep(HOLD).await;
    }
    let bytes = path[1..].parse().unwrap_or(0_usize).min(BYTES.len());
    Ok(Response::new(Full::new(Bytes::from_static(
        &BYTES[..bytes],
    ))))
}
