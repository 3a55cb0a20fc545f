//! Connection pool of one upstream: the user container, or an instance of a function.
//!
//! An HTTP/1 connection is driven by the request that uses it and not by a separate task. This saves the wake-ups
//! between two tasks, closes the connection as soon as its request is dropped, and returns a connection to the pool
//! before the gate admits the next request. hyper-util's pool guarantees none of the three, so that it is not used.

use std::future::{Future as _, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use crate::buffered::{Buffered, Reservation};
use crate::client_body::ClientBody;
use crate::client_tls::ClientTls;
use crate::connection::keep_alive;
use crate::limits::{HEAD_BYTES_MAX, HEAD_LINES_MAX};
use crate::retry;
use crate::socket::{Budget, ReadSize, Socket};
use crate::wire::Wire;

/// Longest time for which an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// Peak number of concurrent streams above which an HTTP/2 connection is closed early.
const HTTP2_STREAMS_KEPT: usize = 64;
/// Longest time for which an idle HTTP/2 connection is kept after such a peak, since h2 keeps the memory of its peak.
const HTTP2_IDLE_MAX_AFTER_PEAK: Duration = Duration::from_secs(2);
/// Time limit of the first attempt to connect.
const DIAL_FIRST: Duration = Duration::from_millis(50);
/// Time limit of each further attempt, in percent of the previous one.
const DIAL_GROWTH_PERCENT: u32 = 140;
/// Default number of attempts to connect. Only timeouts are retried.
pub const DIAL_ATTEMPTS: u32 = 15;
/// Pause between two attempts to connect.
const DIAL_PAUSE: Duration = Duration::from_millis(40);
/// Time limit of a TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Largest response head, in bytes.
const BUFFER_BYTES_MAX: usize = 256 * 1024;
/// TCP keep-alive interval: the kernel probes the upstream after this time without a byte.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Receive window of a stream, in bytes: the most that the upstream may send before any of it is read.
const HTTP2_WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes reserved on the account for such a window: filled with frames of 100 bytes it takes five times the memory.
const HTTP2_WINDOW_CHARGE_BYTES: usize = 256 * 1024;
/// Receive window of a stream for which the account has no room, in bytes: half of a frame.
const HTTP2_NARROW_WINDOW_BYTES: u32 = 8 * 1024;
/// Receive window of a connection, in bytes: so large that streams of clients that do not read block no others.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// Largest total size of the heads of one answer, in bytes, including interim ones, of which there may be any number, and
/// further bytes of the same read.
const HEADS_BYTES_MAX: usize = 1024 * 1024;

/// Largest number of HTTP/2 connections with one window size, however few streams the upstream allows on each.
const HTTP2_CONNECTIONS_MAX: usize = 64;

/// The reason why an upstream gave no usable answer. `peer` is its name in messages, as in "the user container".
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The upstream does not accept connections.
    #[error("dial tcp {address}: {}", describe(error))]
    Dial {
        /// Address of the upstream.
        address: SocketAddr,
        /// Error of the system.
        error: io::Error,
    },
    /// The upstream closed the connection before it answered.
    #[error("{peer} closed the connection without an answer")]
    Closed {
        /// Name of the upstream in messages.
        peer: &'static str,
    },
    /// The client's own body broke off or is malformed.
    #[error("the request's body cannot be read")]
    ClientBody,
    /// The answer has an unsupported transfer coding.
    #[error("{peer}'s answer has an unsupported transfer encoding")]
    StrangeCoding {
        /// Name of the upstream in messages.
        peer: &'static str,
    },
    /// The answer has an invalid `Content-Length`, or several that differ.
    #[error("{peer}'s answer has a Content-Length that is not a number, or several that differ")]
    BadLength {
        /// Name of the upstream in messages.
        peer: &'static str,
    },
    /// The answer has more than [`HEAD_LINES_MAX`] header lines.
    #[error("{peer}'s answer has more than {HEAD_LINES_MAX} header lines")]
    TooManyHeaders {
        /// Name of the upstream in messages.
        peer: &'static str,
    },
    /// The answer is not valid HTTP.
    #[error("{peer}'s answer cannot be read: {error}")]
    Unreadable {
        /// Name of the upstream in messages.
        peer: &'static str,
        /// Error that hyper reported for the answer.
        error: hyper::Error,
    },
}

/// Returns a copy of an error, with the same code or else the same kind and text.
fn same_as(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(
        || io::Error::new(error.kind(), error.to_string()),
        io::Error::from_raw_os_error,
    )
}

/// Returns the text of a connect error without the system's error number; a refused connection has Knative's text.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        kind => format!("connect: {kind}"),
    }
}

impl UpstreamError {
    fn from_hyper(peer: &'static str, error: hyper::Error) -> Self {
        if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            return Self::Closed { peer };
        }
        if error.is_user() {
            return Self::ClientBody;
        }
        Self::Unreadable { peer, error }
    }
}

/// Settings of an upstream.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address at which the upstream listens.
    pub address: SocketAddr,
    /// Name of the upstream in error messages, as in "the user container".
    pub peer: &'static str,
    /// Largest number of idle connections to keep.
    pub idle_max: usize,
    /// Largest number of attempts to connect that time out: [`DIAL_ATTEMPTS`], or fewer if there are other upstreams.
    pub dial_attempts: u32,
    /// Time limit of connecting, with all attempts and the TLS handshake; `None`: that of the attempts.
    pub dial_max: Option<Duration>,
    /// Whether an idempotent request is retried once when a used connection closes without an answer.
    pub resends: bool,
    /// TLS client; `None` for plain connections.
    pub tls: Option<ClientTls>,
}

/// An upstream with its pool of connections. See the [module](self).
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    /// The address as a `Host` header.
    host: HeaderValue,
    /// Name of the upstream in error messages.
    peer: &'static str,
    idle_max: usize,
    dial_attempts: u32,
    dial_max: Option<Duration>,
    resends: bool,
    tls: Option<ClientTls>,
    idle: Mutex<Pool>,
    http2: Mutex<Vec<Http2>>,
    /// Lock for creating HTTP/2 connections: requests that wait for it use the connection created meanwhile.
    http2_dialing: Semaphore,
    /// Time and error of the last failure to create an HTTP/2 connection.
    http2_failed: Mutex<Option<(Instant, io::Error)>>,
    /// Number of HTTP/2 connections created so far.
    http2_made: AtomicU64,
    /// Number of retried requests since the start.
    retries: AtomicU64,
    buffered: Arc<Buffered>,
}

/// Idle connections, the most recently used one last. Boxed, since a connection of 700 bytes is moved in and out.
type Pool = Vec<Box<Connection>>;

/// Transport of an upstream connection, with TLS or without.
pub type UpstreamWire = Wire<TlsStream<Socket>>;

/// An HTTP/1 connection, driven by its current owner.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<ClientBody>,
    driver: http1::Connection<TokioIo<UpstreamWire>, ClientBody>,
    /// Whether the connection uses TLS, so that unread bytes on the socket need not be part of an answer.
    is_tls: bool,
    /// The socket, for peeking at it.
    socket: Arc<OwnedWriteHalf>,
    budget: Arc<Budget>,
    read_size: Arc<ReadSize>,
    idle_since: Instant,
}

#[derive(Debug)]
struct Http2 {
    /// Number of the connection, increasing in the order of creation.
    number: u64,
    sender: http2::SendRequest<ClientBody>,
    /// Receive window of all streams, in bytes, since it cannot be set for a single stream.
    window: u32,
    idle_since: Instant,
    streams: Arc<AtomicUsize>,
    /// Peak number of concurrent streams.
    streams_peak: AtomicUsize,
    /// Number of concurrent streams that the upstream allows.
    streams_max: Arc<AtomicUsize>,
}

/// A stream to be opened on an HTTP/2 connection.
struct StreamSlot {
    sender: http2::SendRequest<ClientBody>,
    stream: Stream,
    /// Number of the connection.
    number: u64,
    /// Whether the connection existed before.
    is_reused: bool,
}

/// Handles to a connection's socket.
struct SocketParts {
    socket: Arc<OwnedWriteHalf>,
    budget: Arc<Budget>,
    read_size: Arc<ReadSize>,
}

/// Failure of an exchange on an HTTP/1 connection.
struct ExchangeError {
    error: TrySendError<Request<ClientBody>>,
    /// Whether no byte of an answer was read.
    is_unanswered: bool,
}

/// Guard of a stream on an HTTP/2 connection, which counts it until dropped.
#[derive(Debug)]
pub struct Stream {
    streams: Arc<AtomicUsize>,
    /// Reservation for the stream's receive window.
    _window: Option<Reservation>,
}

impl Upstream {
    /// Creates an upstream without connections.
    #[must_use]
    pub fn new(settings: Settings, buffered: Arc<Buffered>) -> Arc<Self> {
        let Settings {
            address,
            peer,
            idle_max,
            dial_attempts,
            dial_max,
            resends,
            tls,
        } = settings;
        let host = HeaderValue::try_from(address.to_string()).expect("digits, dots and colons");
        Arc::new(Self {
            address,
            host,
            peer,
            dial_attempts,
            dial_max,
            resends,
            tls,
            idle_max,
            idle: Mutex::new(Vec::new()),
            http2: Mutex::new(Vec::new()),
            http2_dialing: Semaphore::new(1),
            http2_failed: Mutex::default(),
            http2_made: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            buffered,
        })
    }

    /// Returns the address at which the upstream listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address as a `Host` header.
    pub const fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Returns the number of requests that were retried although the upstream may have read them.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Sends a request over HTTP/1 and returns the response head with the connection that carries it.
    ///
    /// A request of which no byte was written is sent again on another connection. A request that `retry` allows is sent
    /// once more on a new connection if its connection was used before and closed before a byte of an answer; `refresh`
    /// updates its headers first. Any other request is sent once.
    /// The request is passed by reference and taken when it is written to the socket: passing it by value would reserve
    /// memory for it in every step of every request's future.
    ///
    /// # Errors
    /// Returns an error if no connection can be made, or if there is no valid answer.
    pub async fn send(
        &self,
        request: &mut Request<ClientBody>,
        refresh: impl Fn(&mut HeaderMap),
    ) -> Result<(Response<Incoming>, Box<Connection>), UpstreamError> {
        while let Some(mut connection) = self.take_idle().await {
            let copy = self.resends.then(|| retry::copy_of(request)).flatten();
            let mut failed = match connection.exchange(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(failed) => failed,
            };
            match (failed.error.take_message(), copy) {
                (Some(unsent), _) => *request = unsent,
                (None, Some(copy)) if failed.is_unanswered => {
                    *request = *copy;
                    self.note_retry(request, &refresh);
                    break;
                }
                _ => {
                    return Err(UpstreamError::from_hyper(
                        self.peer,
                        failed.error.into_error(),
                    ));
                }
            }
        }
        // Boxed like all rare steps, since a request's future has the size of its largest step.
        let mut connection = Box::pin(self.connect()).await?;
        match connection.exchange(request).await {
            Ok(response) => Ok((response, connection)),
            Err(failed) => Err(UpstreamError::from_hyper(
                self.peer,
                failed.error.into_error(),
            )),
        }
    }

    fn note_retry(&self, request: &mut Request<ClientBody>, refresh: impl Fn(&mut HeaderMap)) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        refresh(request.headers_mut());
    }

    /// Returns a connection to the pool, unless the pool is full or the connection is unusable.
    pub fn put_back(&self, mut connection: Box<Connection>) {
        // No task is woken by input on an idle connection: its state is checked when it is taken.
        let mut cx = Context::from_waker(Waker::noop());
        // The connection has to be polled once after an exchange to become ready again.
        if connection.drive(&mut cx).is_ready() || !connection.is_ready(&mut cx) {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < self.idle_max {
            connection.idle_since = Instant::now();
            idle.push(connection);
        }
    }

    /// Drops connections that have been idle for too long or that the upstream has closed.
    pub fn sweep(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        let now = Instant::now();
        self.idle().retain_mut(|connection| {
            now.saturating_duration_since(connection.idle_since) < IDLE_MAX
                && connection.drive(&mut cx).is_pending()
        });
        self.http2().retain_mut(|connection| {
            if connection.streams.load(Ordering::Relaxed) > 0 {
                connection.idle_since = now;
            }
            let peak = *connection.streams_peak.get_mut();
            let idle_max = if peak > HTTP2_STREAMS_KEPT {
                HTTP2_IDLE_MAX_AFTER_PEAK
            } else {
                IDLE_MAX
            };
            !connection.sender.is_closed()
                && now.saturating_duration_since(connection.idle_since) < idle_max
        });
    }

    /// Sends a request over a shared HTTP/2 connection, and returns the response head with the guard of its stream. The
    /// request is taken once there is a connection.
    ///
    /// Requests are retried as by [`Upstream::send`]; a refused stream counts as one whose connection closed. Interim
    /// responses are not visible here, so they do not count as an answer.
    ///
    /// # Errors
    /// Returns an error if no connection can be made, or if there is no valid answer.
    pub async fn send_http2(
        &self,
        request: &mut Request<ClientBody>,
        refresh: impl Fn(&mut HeaderMap),
    ) -> Result<(Response<Incoming>, Stream), UpstreamError> {
        *request.version_mut() = Version::HTTP_2;
        // After a failure only connections with larger numbers are used.
        let mut failed_on = None;
        loop {
            let mut taken = self.http2_stream(failed_on).await?;
            let may_retry = self.resends && taken.is_reused && failed_on.is_none();
            let copy = may_retry.then(|| retry::copy_of(request)).flatten();
            let unsent = std::mem::take(request);
            let mut error = match taken.sender.try_send_request(unsent).await {
                Ok(response) => return Ok((response, taken.stream)),
                Err(error) => error,
            };
            match (error.take_message(), copy) {
                (Some(unsent), _) if taken.is_reused => *request = unsent,
                (None, Some(copy)) if retry::is_unprocessed(error.error()) => {
                    *request = *copy;
                    self.note_retry(request, &refresh);
                    failed_on = Some(taken.number);
                }
                _ => return Err(UpstreamError::from_hyper(self.peer, error.into_error())),
            }
        }
    }

    /// Returns a stream on an open connection with room for it, else on a new one. `failed_on` is the number of a
    /// connection that failed; only later ones are used then.
    async fn http2_stream(&self, failed_on: Option<u64>) -> Result<StreamSlot, UpstreamError> {
        let mut reserved = self.buffered.reserve(HTTP2_WINDOW_CHARGE_BYTES);
        let window = if reserved.is_some() {
            HTTP2_WINDOW_BYTES
        } else {
            HTTP2_NARROW_WINDOW_BYTES
        };
        if let Some(taken) = self.http2_stream_of_open(failed_on, window, &mut reserved) {
            return Ok(taken);
        }
        let waits_since = Instant::now();
        // The semaphore is never closed.
        let _dialing = self.http2_dialing.acquire().await;
        if let Some(taken) = self.http2_stream_of_open(failed_on, window, &mut reserved) {
            return Ok(taken);
        }
        // A failed attempt by another request during the wait counts for this one as well.
        if let Some(error) = self.http2_failure_since(waits_since) {
            return Err(error);
        }
        let dialed = self.dial(true).await;
        if let Err(UpstreamError::Dial { error, .. }) = &dialed {
            let mut failed = self.http2_failed();
            *failed = Some((Instant::now(), same_as(error)));
        }
        let (wire, _socket) = dialed?;
        let (sender, mut driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(window)
            .max_send_buf_size(HTTP2_WINDOW_BYTES as usize)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
            .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("one mebibyte"))
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| UpstreamError::from_hyper(self.peer, error))?;
        let streams_max = Arc::new(AtomicUsize::new(driver.current_max_send_streams()));
        let number = self.http2_made.fetch_add(1, Ordering::Relaxed);
        let connection = Http2 {
            number,
            sender: sender.clone(),
            window,
            idle_since: Instant::now(),
            streams: Arc::new(AtomicUsize::new(1)),
            streams_peak: AtomicUsize::new(1),
            streams_max: Arc::clone(&streams_max),
        };
        let streams = Arc::clone(&connection.streams);
        let peer = self.peer;
        tokio::spawn(poll_fn(move |cx| {
            let ended = Pin::new(&mut driver).poll(cx);
            // The upstream may change the limit at any time.
            streams_max.store(driver.current_max_send_streams(), Ordering::Relaxed);
            ended.map(|ended| {
                if let Err(error) = ended {
                    tracing::debug!(%error, peer, "an HTTP/2 connection to the upstream ended");
                }
            })
        }));
        self.http2().push(connection);
        Ok(StreamSlot {
            sender,
            stream: Stream::new(streams, reserved),
            number,
            is_reused: false,
        })
    }

    /// Returns a stream on an open connection with this window and room for it. If there is none and the number of
    /// connections is at its limit, returns one on the connection with the fewest streams, where it waits until the
    /// upstream allows it. The stream takes over the reservation.
    fn http2_stream_of_open(
        &self,
        failed_on: Option<u64>,
        window: u32,
        reserved: &mut Option<Reservation>,
    ) -> Option<StreamSlot> {
        let mut connections = self.http2();
        connections.retain(|connection| !connection.sender.is_closed());
        let streams = |connection: &&Http2| connection.streams.load(Ordering::Relaxed);
        let alike = || connections.iter().filter(|it| it.window == window);
        let with_room = alike().find(|connection| {
            failed_on.is_none_or(|failed| connection.number > failed)
                && streams(connection) < connection.streams_max.load(Ordering::Relaxed)
        });
        let is_full = alike().count() >= HTTP2_CONNECTIONS_MAX;
        let least = || alike().min_by_key(streams).filter(|_| is_full);
        let connection = with_room.or_else(least)?;
        let streams = connection.streams.fetch_add(1, Ordering::Relaxed) + 1;
        connection
            .streams_peak
            .fetch_max(streams, Ordering::Relaxed);
        Some(StreamSlot {
            sender: connection.sender.clone(),
            stream: Stream::new(Arc::clone(&connection.streams), reserved.take()),
            number: connection.number,
            is_reused: true,
        })
    }

    /// Takes the most recently used idle connection that is still open.
    async fn take_idle(&self) -> Option<Box<Connection>> {
        poll_fn(|cx| {
            loop {
                let Some(mut connection) = self.idle().pop() else {
                    return Poll::Ready(None);
                };
                // A connection that was closed while idle, or that has unsolicited input, is dropped.
                if (connection.is_tls || connection.is_silent())
                    && connection.drive(cx).is_pending()
                    && connection.is_ready(cx)
                {
                    return Poll::Ready(Some(connection));
                }
            }
        })
        .await
    }

    async fn connect(&self) -> Result<Box<Connection>, UpstreamError> {
        let (wire, parts) = self.dial(false).await?;
        let (sender, driver) = http1::Builder::new()
            .title_case_headers(true)
            .max_buf_size(BUFFER_BYTES_MAX)
            .max_headers(HEAD_LINES_MAX)
            .allow_obsolete_multiline_headers_in_responses(true)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(|error| UpstreamError::from_hyper(self.peer, error))?;
        Ok(Box::new(Connection {
            sender,
            driver,
            is_tls: self.tls.is_some(),
            socket: parts.socket,
            budget: parts.budget,
            read_size: parts.read_size,
            idle_since: Instant::now(),
        }))
    }

    fn http2_failure_since(&self, since: Instant) -> Option<UpstreamError> {
        let failed = self.http2_failed();
        let (_, error) = failed.as_ref().filter(|(at, _)| *at >= since)?;
        Some(UpstreamError::Dial {
            address: self.address,
            error: same_as(error),
        })
    }

    fn http2_failed(&self) -> MutexGuard<'_, Option<(Instant, io::Error)>> {
        self.http2_failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn dial(&self, is_http2: bool) -> Result<(UpstreamWire, SocketParts), UpstreamError> {
        let Some(limit) = self.dial_max else {
            return self.try_dial(is_http2).await;
        };
        let dialed = tokio::time::timeout(limit, self.try_dial(is_http2)).await;
        dialed.unwrap_or_else(|_elapsed| {
            Err(UpstreamError::Dial {
                address: self.address,
                error: io::ErrorKind::TimedOut.into(),
            })
        })
    }

    async fn try_dial(&self, is_http2: bool) -> Result<(UpstreamWire, SocketParts), UpstreamError> {
        let mut limit = DIAL_FIRST;
        let mut attempt = 1;
        let error = loop {
            match tokio::time::timeout(limit, TcpStream::connect(self.address)).await {
                Ok(Ok(socket)) => {
                    match keep_alive(&socket, KEEP_ALIVE).and_then(|()| socket.set_nodelay(true)) {
                        Ok(()) => match self.handshake(socket, is_http2).await {
                            Ok(done) => return Ok(done),
                            Err(error) => break error,
                        },
                        Err(error) => break error,
                    }
                }
                Ok(Err(error)) => break error,
                Err(_) if attempt >= self.dial_attempts => break io::ErrorKind::TimedOut.into(),
                Err(_) => {}
            }
            attempt += 1;
            limit = limit * DIAL_GROWTH_PERCENT / 100;
            tokio::time::sleep(DIAL_PAUSE).await;
        };
        Err(UpstreamError::Dial {
            address: self.address,
            error,
        })
    }

    /// Performs the TLS handshake on a new socket, if TLS is configured.
    async fn handshake(
        &self,
        socket: TcpStream,
        is_http2: bool,
    ) -> io::Result<(UpstreamWire, SocketParts)> {
        let (io, socket) = Socket::of(socket);
        let parts = SocketParts {
            socket,
            budget: io.budget(),
            read_size: io.read_size(),
        };
        let Some(tls) = &self.tls else {
            return Ok((Wire::Plain(io), parts));
        };
        let handshake = Box::pin(tls.connect(io, is_http2));
        let stream = tokio::time::timeout(HANDSHAKE_MAX, handshake).await??;
        Ok((Wire::Tls(Box::new(stream)), parts))
    }

    fn idle(&self) -> MutexGuard<'_, Pool> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn http2(&self) -> MutexGuard<'_, Vec<Http2>> {
        self.http2.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Reads and writes as far as possible without blocking. Returns `Ready` when the connection has ended.
    pub fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.driver.poll_without_shutdown(cx).map(|_ended| ())
    }

    /// Returns whether the socket has neither input nor an end of input. It peeks at the socket, since the runtime only
    /// learns of an end when it polls for events.
    fn is_silent(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let socket: &TcpStream = (*self.socket).as_ref();
        let peeked = SockRef::from(socket).peek(&mut byte);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Returns the bound on one read of the connection, for adjusting it.
    pub fn read_size(&self) -> Arc<ReadSize> {
        Arc::clone(&self.read_size)
    }

    /// Returns the transport after a 101, and the bytes that the upstream has already sent on it.
    pub async fn into_tunnel(mut self) -> (UpstreamWire, Bytes) {
        poll_fn(|cx| self.drive(cx)).await;
        let parts = self.driver.into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }

    fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        matches!(self.sender.poll_ready(cx), Poll::Ready(Ok(())))
    }

    async fn exchange(
        &mut self,
        request: &mut Request<ClientBody>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        self.budget.set(HEADS_BYTES_MAX);
        let mut answer = pin!(self.sender.try_send_request(std::mem::take(request)));
        let driver = &mut self.driver;
        let mut over = false;
        let answer = poll_fn(|cx| {
            over = over || Pin::new(&mut *driver).poll_without_shutdown(cx).is_ready();
            // When the connection has ended, polling the answer returns the reason.
            answer.as_mut().poll(cx)
        })
        .await;
        let is_unanswered = self.budget.left() == HEADS_BYTES_MAX;
        self.budget.lift();
        answer.map_err(|error| ExchangeError {
            error,
            is_unanswered,
        })
    }
}

impl Stream {
    const fn new(streams: Arc<AtomicUsize>, window: Option<Reservation>) -> Self {
        Self {
            streams,
            _window: window,
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
