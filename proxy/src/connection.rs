//! One client connection: which protocol, when its head is overdue, when its client is gone, how it ends.
//!
//! hyper notices that an HTTP/1 client has left only where it happens to read: not while a request's body
//! waits unread, nor behind a pipelined request. The kernel knows at once (`EPOLLRDHUP`), whatever lies
//! unread in the socket, and tokio passes that on as `Ready::READ_CLOSED`, the one readiness that a wait for
//! `Interest::PRIORITY` ends with on a socket registered for reading. So each HTTP/1 connection has one
//! such wait beside hyper. End of input while a request is being served means that its client is gone:
//! dropping hyper's connection drops the request wherever it is, and nothing more is written.

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
use crate::relay::Place;
use crate::socket::Socket;
use crate::tls::{Negotiated, Tls};

/// So begins an HTTP/2 connection, RFC 9113 3.4.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Largest frame, as Knative's.
const HTTP2_FRAME_BYTES_MAX: u32 = 1024 * 1024;
/// Receive window of a stream: what its client may send that nobody reads.
const HTTP2_WINDOW_BYTES: u32 = 64 * 1024;
/// What is kept of a stream's response while the client does not read: the relay holds less.
const HTTP2_SEND_BYTES_MAX: usize = 64 * 1024;
/// Receive window of a connection: more than all of its streams' together, so that a stream that nobody reads (it
/// waits in the queue) does not hold up the others.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Largest header list, as Knative's: 1 MiB and 320 bytes.
const HTTP2_HEADER_LIST_BYTES_MAX: u32 = 1_048_896;
/// Added to a tighter limit on heads, as Go adds it: HTTP/2 counts 32 bytes besides for each line.
const HTTP2_HEADER_LIST_EXTRA_BYTES: usize = 320;
/// After a response to a request whose body was not read, the rest is read and thrown away for this long:
/// closing at once would reset the connection and could destroy the response on its way.
const LINGER: Duration = Duration::from_millis(500);
/// After a flood of HTTP/2 frames, at most so much is read and thrown away, that the client may see why it ends.
const LINGER_FLOOD_BYTES: usize = 1024 * 1024;
/// The kernel asks whether a client is still there after this time without a byte, as Go's listener does.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The kernel takes so much of a response that is not on its way yet. What is on its way is bounded by the client's own
/// window; without this a client that does not read would make the kernel keep megabytes, and the process would spend
/// the time of others on filling them.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;
/// At shutdown, who has begun a request head has this long to end it, as in Go's server.
const HEAD_TIME_STOPPING: Duration = Duration::from_secs(5);
/// At shutdown, an HTTP/2 client without streams has this long to answer the last ping.
const PING_TIMEOUT_STOPPING: Duration = Duration::from_secs(1);
/// Wait after a failed accept, as when the process is out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Who is on the other side of a request.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its address.
    pub peer: SocketAddr,
    /// Its TLS, if it speaks TLS.
    pub tls: Option<Arc<Negotiated>>,
    /// The connection, if it is HTTP/1.
    pub http1: Option<Arc<ConnectionState>>,
}

impl Client {
    /// A request with this head begins to be served, until what is returned is dropped.
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

/// Answers requests; one for all connections of a listener.
pub trait Handler: Send + Sync + 'static {
    /// What a request holds at the upstream.
    type Place: Place;

    /// Answers one request. The future may be dropped before it runs, if the client leaves with its request.
    fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<ProxyBody<Self::Place>>> + Send;
}

/// Tells all connections to finish what they have and to close.
#[derive(Debug, Default)]
pub struct Shutdown {
    begun: AtomicBool,
    notify: Notify,
}

impl Shutdown {
    /// Begins the shutdown.
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

/// Accepts connections until shutdown, over TLS where it is given; `connections` knows those that are open.
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
            // The client left before we took it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                failures += 1;
                // It may last, and nothing new is to be said of it.
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
    // Without it small responses wait for the client's acknowledgement; a socket that refuses it is gone.
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
    // Nothing, or an error, within the time for a head, of which the rest goes on.
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
        // Boxed: else every HTTP/1 connection's task has room for it.
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

/// Runs while a client is under way with a head. Most heads come whole: then there is no timer.
#[derive(Debug)]
struct HeadTimer {
    limit: Duration,
    /// The first head begins with the connection itself.
    first_until: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl HeadTimer {
    /// Ready when the head under way, which begins now unless it has begun, has taken too long.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| {
            let until = self.first_until.take();
            let until = until.unwrap_or_else(|| Instant::now() + self.limit);
            Box::pin(tokio::time::sleep_until(until))
        });
        sleep.as_mut().poll(cx)
    }

    /// No head is under way.
    fn stop(&mut self) {
        self.first_until = None;
        self.sleep = None;
    }

    /// From now on a head has at most so long, one under way, too.
    fn shorten(&mut self, limit: Duration) {
        self.stop();
        self.limit = self.limit.min(limit);
    }
}

/// Reads as much as tells whether the connection begins with the HTTP/2 preface.
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
                // Once what is under way is answered: no request is read behind a body whose end is in doubt.
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

/// Reads and throws away what the client still sends, until it stops, `bytes_max` have come or the time is up.
async fn linger(socket: &TcpStream, mut bytes_max: usize) {
    let until = Instant::now() + LINGER;
    // On the heap: else every connection's task has room for it.
    let mut scratch = vec![0; 16 * 1024];
    while let Ok(Ok(())) = tokio::time::timeout_at(until, socket.readable()).await {
        match socket.try_read(&mut scratch) {
            Ok(0) => return,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
            Ok(n) if n >= bytes_max => return,
            Ok(n) => bytes_max -= n,
            Err(_) => {}
        }
        // A client that sends without pause is always readable.
        if Instant::now() >= until {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Lets the kernel find out about a peer that has vanished without a word.
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
        // Nor is a client waited for that does not take its GOAWAY.
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
    // Once no stream is left, the client need only answer a ping; who does not is not waited for.
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

/// Runs the streams of one HTTP/2 connection, and knows those that are open.
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

/// A handler as hyper's service, for one connection.
struct Adapter<H> {
    handler: Arc<H>,
    client: Client,
}

impl<H: Handler> Service<Request<Incoming>> for Adapter<H> {
    type Response = Response<ProxyBody<H::Place>>;
    type Error = Infallible;
    type Future = Answer<H::Place>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let handler = Arc::clone(&self.handler);
        Answer(Box::pin(handler.handle(self.client.clone(), request)))
    }
}

/// A handler's answer as hyper takes it. A wrapper around the box: within it, every request's future would be
/// copied once more.
struct Answer<P>(Pin<Box<dyn Future<Output = Response<ProxyBody<P>>> + Send>>);

impl<P> Future for Answer<P> {
    type Output = Result<Response<ProxyBody<P>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}
