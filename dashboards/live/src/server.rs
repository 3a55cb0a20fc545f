//! A small HTTP/1.1 server for loopback. Bounds: 256 connections, of more the next waits; heads of 16 KiB within 2 s, for which idle connections are kept as well; a client that
//! takes no byte for 10 s is let go.

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

/// Connections at a time.
const CONNECTIONS_MAX: usize = 256;
/// A head has come within this time.
const HEAD_TIME: Duration = Duration::from_secs(2);
/// Bytes of a head, at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// A peer that is silent is looked for this often.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// After a failure to take a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address that is not this machine's own.
#[derive(Debug)]
pub struct NotLoopback(SocketAddr);

impl fmt::Display for NotLoopback {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.0;
        write!(
            formatter,
            "{address}: no token is asked for, so the page is served on loopback only: 127.0.0.0/8 or [::1]"
        )
    }
}

impl std::error::Error for NotLoopback {}

/// Listens on a port of this machine's loopback.
///
/// # Errors
/// Another address, or a port that cannot be had.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !IpAddr::is_loopback(&address.ip()) {
        return Err(io::Error::other(NotLoopback(address)));
    }
    TcpListener::bind(address).await
}

/// Lets the kernel end a connection whose peer takes nothing for [`EVENT_MAX`], or is no longer there.
pub fn bound_silence(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    // Without them only the place of a reader is freed.
    let _longer = socket.set_tcp_user_timeout(Some(EVENT_MAX));
    let looks = TcpKeepalive::new()
        .with_time(EVENT_MAX)
        .with_interval(LOOK_PERIOD);
    let _longer = socket.set_tcp_keepalive(&looks);
    // It only makes answers later.
    let _slower = stream.set_nodelay(true);
}

/// Serves for ever.
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
            // What a client does wrong ends its connection.
            let _ended = connection.await;
        });
    }
}
