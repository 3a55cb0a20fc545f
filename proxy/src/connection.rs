//! Client connections: protocol detection, head timeouts, detection of clients that have left, and shutdown.
//!
//! hyper detects that an HTTP/1 client has left only when it reads: not while a request's body is unread, nor behind
//! a pipelined request. The kernel detects it at once (`EPOLLRDHUP`), whatever is unread in the socket, and tokio
//! reports it as `Ready::READ_CLOSED`, the only readiness that ends a wait for `Interest::PRIORITY` on a socket
//! registered for reading. So each HTTP/1 connection has one such wait beside hyper. End of input while a request is
//! being served means that its client is gone: dropping hyper's connection then drops the request in whatever state it
//! is, and nothing more is written.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, Interest};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tokio_util::task::TaskTracker;

use crate::body::ProxyBody;
use crate::clock::Clock;
use crate::frames::Http2State;
use crate::framing::BodyFraming;
use crate::headers::content_length;
use crate::io::{ClientIo, ConnectionState, Protocol, Serving, Transport};
use crate::limits::{HEAD_BYTES_MAX, Limits};
use crate::relay::UpstreamSlot;
use crate::socket::Socket;
use crate::tls::{Negotiated, Tls};

/// Connection preface of HTTP/2, RFC 9113 3.4.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Largest HTTP/2 frame, in bytes, as under Knative.
const HTTP2_FRAME_BYTES_MAX: u32 = 1024 * 1024;
/// Receive window of a stream, in bytes: the most that its client may send before any of it is read.
const HTTP2_WINDOW_BYTES: u32 = 64 * 1024;
/// Largest part of a stream's response that is buffered while the client does not read; the relay buffers less.
const HTTP2_SEND_BYTES_MAX: usize = 64 * 1024;
/// Receive window of a connection, in bytes: larger than those of all its streams together, so that a stream with an
/// unread body, which waits in the queue, does not block the others.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Largest header list, in bytes, as under Knative: 1 MiB and 320 bytes.
const HTTP2_HEADER_LIST_BYTES_MAX: u32 = 1_048_896;
/// Bytes added to a tighter limit on heads, as in Go, since HTTP/2 counts 32 additional bytes for each line.
const HTTP2_HEADER_LIST_EXTRA_BYTES: usize = 320;
/// Time for which input is read and discarded after a response to a request with an unread body. Closing at once
/// would reset the connection and could destroy the response in flight.
const LINGER: Duration = Duration::from_millis(500);
/// Largest number of bytes read and discarded after a flood of HTTP/2 frames, so that the client can read the GOAWAY.
const LINGER_FLOOD_BYTES: usize = 1024 * 1024;
/// TCP keep-alive interval: the kernel probes a client after this time without a byte, as for Go's listener.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Largest unsent part of a response in the kernel's buffer. The part in flight is bounded by the client's own window.
/// Without this limit, a client that does not read would make the kernel buffer megabytes, and filling the buffer would
/// take time from other clients.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;
/// Longest time, from the start of a shutdown, until a request head that has begun is complete, as in Go's server.
const HEAD_TIME_STOPPING: Duration = Duration::from_secs(5);
/// Time for an HTTP/2 client without streams to answer the last ping of a shutdown.
const PING_TIMEOUT_STOPPING: Duration = Duration::from_secs(1);
/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The client of a request.
#[derive(Debug, Clone)]
pub struct Client {
    /// Remote address of the connection.
    pub peer: SocketAddr,
    /// Negotiated TLS parameters; `None` for a plain connection.
    pub tls: Option<Arc<Negotiated>>,
    /// State of the connection if it is HTTP/1; `None` for HTTP/2.
    pub http1: Option<Arc<ConnectionState>>,
}

impl Client {
    /// Marks the connection as serving a request with this head, until the returned value is dropped. Returns `None` for
    /// HTTP/2.
    pub fn begin(&self, head: &HeaderMap) -> Option<Serving> {
        let connection = self.http1.as_ref()?;
        let body = if head.contains_key(TRANSFER_ENCODING) {
            BodyFraming::Chunked
        } else if head.contains_key(CONTENT_LENGTH) {
            content_length(head).map_or(BodyFraming::Unknown, BodyFraming::Length)
        } else {
            BodyFraming::Length(0)
        };
        Some(connection.begin(body))
    }
}

/// Request handler, shared by all connections of a listener.
pub trait Handler: Send + Sync + 'static {
    /// Resources that a request holds at the upstream until its answer has ended.
    type Slot: UpstreamSlot;

    /// Answers one request. The future may be dropped before it is polled, if the client leaves right after its request.
    fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<ProxyBody<Self::Slot>>> + Send;
}

/// Signal for all connections to finish their requests and to close.
#[derive(Debug, Default)]
pub struct Shutdown {
    begun: AtomicBool,
    notify: Notify,
}

impl Shutdown {
    /// Begins the shutdown of all connections that wait for this signal, present and future ones.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    async fn wait(&self) {
        let notified = self.notify.notified();
        if !self.begun.load(Ordering::Acquire) {
            notified.await;
        }
    }
}

/// Accepts connections until shutdown, over TLS if `tls` is given; `connections` tracks the open ones.
pub async fn accept<H: Handler>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    limits: Limits,
    handler: Arc<H>,
    shutdown: Arc<Shutdown>,
    connections: TaskTracker,
) {
    let mut stop = pin!(shutdown.wait());
    let mut failures = 0_u64;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                failures = 0;
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                connections.spawn(serve(
                    stream,
                    tls.clone(),
                    limits,
                    peer,
                    Arc::clone(&handler),
                    Arc::clone(&shutdown),
                ));
            }
            // The client closed the connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                failures += 1;
                // The failure may persist, so that only the 1st, 2nd, 4th, … is logged.
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "cannot accept a connection");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve<H: Handler>(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    limits: Limits,
    peer: SocketAddr,
    handler: Arc<H>,
    shutdown: Arc<Shutdown>,
) {
    // Without TCP_NODELAY small responses wait for the client's acknowledgement. An error means that the socket is closed.
    if stream.set_nodelay(true).is_err()
        || keep_alive(&stream, KEEP_ALIVE).is_err()
        || SockRef::from(&stream)
            .set_tcp_notsent_lowat(UNSENT_BYTES_MAX)
            .is_err()
    {
        return;
    }
    let first_until = Instant::now() + limits.head_time;
    let (socket, write) = Socket::of(stream);
    let read_size = socket.read_size();
    let begun = async {
        let mut transport = match &tls {
            Some(tls) => Transport::Tls(Box::new(Box::pin(tls.accept(socket)).await?)),
            None => Transport::Plain(socket),
        };
        let begin = read_begin(&mut transport).await?;
        Ok::<_, io::Error>((transport, begin))
    };
    let begun = tokio::select! {
        begun = tokio::time::timeout_at(first_until, begun) => begun,
        () = shutdown.wait() => return,
    };
    // The time for the first head, which includes the handshake, keeps running for the rest of the head.
    let Ok(Ok((transport, begin))) = begun else {
        return;
    };
    let head_timer = HeadTimer {
        limit: limits.head_time,
        first_until: Some(first_until),
        sleep: None,
    };
    let mut service = Adapter {
        handler,
        client: Client {
            peer,
            tls: transport.negotiated().map(Arc::new),
            http1: None,
        },
    };
    if begin[..] == *HTTP2_PREFACE {
        let state = Arc::<Http2State>::default();
        let protocol = Protocol::Http2(Box::default(), Arc::clone(&state), Clock::start());
        let io = ClientIo::new(transport, protocol, begin);
        // Boxed, so that the tasks of HTTP/1 connections do not reserve memory for it.
        Box::pin(serve_http2(
            io, limits, head_timer, &state, service, &shutdown,
        ))
        .await;
        if state.is_flooded() {
            linger((*write).as_ref(), LINGER_FLOOD_BYTES).await;
        }
    } else {
        let state = ConnectionState::new(read_size);
        service.client.http1 = Some(Arc::clone(&state));
        let io = ClientIo::new(transport, Protocol::Http1(Arc::clone(&state)), begin);
        serve_http1(io, limits, head_timer, write, &state, service, &shutdown).await;
    }
}

/// Timer for incomplete request heads. It is created lazily, since most heads arrive in one piece.
#[derive(Debug)]
struct HeadTimer {
    limit: Duration,
    /// Deadline of the first head, which counts from the start of the connection.
    first_until: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl HeadTimer {
    /// Returns `Ready` once the current head has taken too long. The first call after [`stop`](Self::stop) starts the
    /// time of a head.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| {
            let until = self.first_until.take();
            let until = until.unwrap_or_else(|| Instant::now() + self.limit);
            Box::pin(tokio::time::sleep_until(until))
        });
        sleep.as_mut().poll(cx)
    }

    /// Stops the timer, when no head is incomplete.
    fn stop(&mut self) {
        self.first_until = None;
        self.sleep = None;
    }

    /// Shortens the limit for later heads and for the current one, for which the time starts anew.
    fn shorten(&mut self, limit: Duration) {
        self.stop();
        self.limit = self.limit.min(limit);
    }
}

/// Reads just enough bytes to decide whether the connection begins with the HTTP/2 preface, and returns them.
async fn read_begin(read: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let mut begin = BytesMut::with_capacity(HTTP2_PREFACE.len());
    loop {
        let mut missing = [0; HTTP2_PREFACE.len()];
        let missing = &mut missing[begin.len()..];
        let n = read.read(missing).await?;
        begin.extend_from_slice(&missing[..n]);
        if n == 0 || begin.len() == HTTP2_PREFACE.len() || !HTTP2_PREFACE.starts_with(&begin) {
            return Ok(begin.freeze());
        }
    }
}

async fn serve_http1<H: Handler>(
    io: ClientIo,
    limits: Limits,
    mut head_timer: HeadTimer,
    socket: Arc<OwnedWriteHalf>,
    state: &ConnectionState,
    service: Adapter<H>,
    shutdown: &Shutdown,
) {
    let ended = {
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(None)
                .title_case_headers(true)
                .max_buf_size(HEAD_BYTES_MAX)
                .max_header_size(limits.head_bytes)
                .max_headers(limits.head_lines)
                .serve_connection(TokioIo::new(io), service)
                .with_upgrades()
        );
        let mut stop = pin!(shutdown.wait());
        let mut stopping = false;
        let mut closing = false;
        let socket: &TcpStream = (*socket).as_ref();
        let mut input_end = pin!(socket.ready(Interest::PRIORITY));
        let mut client_gone = false;
        poll_fn(|cx| {
            if !stopping && stop.as_mut().poll(cx).is_ready() {
                stopping = true;
                connection.as_mut().graceful_shutdown();
                head_timer.shorten(HEAD_TIME_STOPPING);
            }
            if !closing && state.is_malformed() {
                closing = true;
                // The current request is still answered, but no request is read after a body with an ambiguous end.
                connection.as_mut().graceful_shutdown();
            }
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            client_gone = client_gone || input_end.as_mut().poll(cx).is_ready();
            if client_gone && state.is_serving() {
                return Poll::Ready(false);
            }
            if !state.is_reading_head() {
                head_timer.stop();
            } else if head_timer.poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            Poll::Pending
        })
        .await
    };
    if ended && state.has_body_unread() && !state.is_upgraded() {
        linger((*socket).as_ref(), usize::MAX).await;
    }
}

/// Reads and discards input until it ends, `bytes_max` bytes are read, or [`LINGER`] has passed.
async fn linger(socket: &TcpStream, mut bytes_max: usize) {
    let until = Instant::now() + LINGER;
    // On the heap, so that the tasks of all connections do not reserve memory for it.
    let mut scratch = vec![0; 16 * 1024];
    while let Ok(Ok(())) = tokio::time::timeout_at(until, socket.readable()).await {
        match socket.try_read(&mut scratch) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            Ok(n) if n >= bytes_max => return,
            Ok(n) => bytes_max -= n,
            Err(_) => {}
        }
        // The timeout above never fires for a client that sends without pause.
        if Instant::now() >= until {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Enables TCP keep-alive: the kernel probes the peer after this time without a byte, and again at the same interval.
pub fn keep_alive(stream: &TcpStream, after: Duration) -> io::Result<()> {
    let probes = TcpKeepalive::new().with_time(after).with_interval(after);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

async fn serve_http2<H: Handler>(
    io: ClientIo,
    limits: Limits,
    mut head_timer: HeadTimer,
    state: &Http2State,
    service: Adapter<H>,
    shutdown: &Shutdown,
) {
    let streams = TaskTracker::new();
    let header_list_bytes = u32::try_from(limits.head_bytes + HTTP2_HEADER_LIST_EXTRA_BYTES)
        .map_or(HTTP2_HEADER_LIST_BYTES_MAX, |bytes| {
            bytes.min(HTTP2_HEADER_LIST_BYTES_MAX)
        });
    let mut connection = pin!(
        http2::Builder::new(Streams(streams.clone()))
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .max_frame_size(HTTP2_FRAME_BYTES_MAX)
            .max_send_buf_size(HTTP2_SEND_BYTES_MAX)
            .initial_stream_window_size(HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
            .max_header_list_size(header_list_bytes)
            .serve_connection(TokioIo::new(io), service)
    );
    let served = poll_fn(|cx| {
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // The timer also ends a flooded connection if the client does not read its GOAWAY.
        if state.is_unfinished() || state.is_flooded() {
            return head_timer.poll(cx);
        }
        head_timer.stop();
        Poll::Pending
    });
    tokio::select! {
        () = served => return,
        () = shutdown.wait() => {}
    }
    connection.as_mut().graceful_shutdown();
    streams.close();
    // Once no stream is left, the client only has to answer a ping, within a bounded time.
    let idle = async {
        loop {
            streams.wait().await;
            tokio::time::sleep(PING_TIMEOUT_STOPPING).await;
            if streams.is_empty() {
                return;
            }
        }
    };
    tokio::select! {
        _ended = connection => {}
        () = idle => {}
    }
}

/// Executor for the streams of one HTTP/2 connection, which tracks the open ones.
#[derive(Debug, Clone)]
struct Streams(TaskTracker);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

/// Adapter from a handler to hyper's service, for one connection.
struct Adapter<H> {
    handler: Arc<H>,
    client: Client,
}

impl<H: Handler> Service<Request<Incoming>> for Adapter<H> {
    type Response = Response<ProxyBody<H::Slot>>;
    type Error = Infallible;
    type Future = Answer<H::Slot>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let handler = Arc::clone(&self.handler);
        Answer(Box::pin(handler.handle(self.client.clone(), request)))
    }
}

/// A handler's answer as a future of a `Result`, which hyper requires. It wraps the box instead of the future inside it,
/// which saves a copy of every request's future.
struct Answer<P>(Pin<Box<dyn Future<Output = Response<ProxyBody<P>>> + Send>>);

impl<P> Future for Answer<P> {
    type Output = Result<Response<ProxyBody<P>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}
