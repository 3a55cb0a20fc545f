//! A small HTTP/1.1 server for loopback. Bounds: 256 connections, beyond which the next waits; heads of 16 KiB within 2
//! s, which is also the limit of idle connections; a connection whose client accepts no byte for 10 s is closed.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::page::EVENT_MAX;

/// Largest number of connections at a time.
const CONNECTIONS_MAX: usize = 256;
/// Longest time until a request's head is complete.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// Largest request head in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Interval of keep-alive probes to a silent peer.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// Pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address that is not one of the loopback.
#[derive(Debug)]
pub struct NotLoopback(SocketAddr);

impl fmt::Display for NotLoopback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.0;
        write!(
            formatter,
            "{address}: the page has no authentication here, so it is served on loopback only: 127.0.0.0/8 or [::1]"
        )
    }
}

impl std::error::Error for NotLoopback {}

/// Listens on a port of the loopback.
///
/// # Errors
///
/// Fails for another address, or if the port cannot be bound.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !IpAddr::is_loopback(&address.ip()) {
        return Err(io::Error::other(NotLoopback(address)));
    }
    TcpListener::bind(address).await
}

/// Makes the kernel close a connection whose peer accepts nothing for [`EVENT_MAX`], or has disappeared.
pub fn bound_silence(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    // Without these options a closed stream still frees the reader's permit.
    let _longer = socket.set_tcp_user_timeout(Some(EVENT_MAX));
    let looks = TcpKeepalive::new()
        .with_time(EVENT_MAX)
        .with_interval(LOOK_PERIOD);
    let _longer = socket.set_tcp_keepalive(&looks);
    // Without this option answers are only later.
    let _slower = stream.set_nodelay(true);
}

/// Serves connections; never returns.
pub async fn serve<B, F>(
    listener: TcpListener,
    respond: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    F: Future<Output = Response<B>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        bound_silence(&stream);
        let respond = respond.clone();
        let service = service_fn(move |request| {
            let answer = respond(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _place = place;
            // A client's error ends only its own connection.
            let _ended = connection.await;
        });
    }
}
