//! Connections to one upstream: the user container, or an instance of a function.
//!
//! An HTTP/1 connection is driven by the request that uses it, not by a task of its own: so the wake-ups
//! between two tasks are saved, a dropped request closes its connection at that moment, and a connection is
//! back in the pool before the gate lets the next request go. That is why hyper's connections are used
//! without hyper-util's pool, which can promise none of the three.

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

use crate::buffered::{Buffered, Reserved};
use crate::client_body::ClientBody;
use crate::client_tls::ClientTls;
use crate::connection::keep_alive;
use crate::limits::{HEAD_BYTES_MAX, HEAD_LINES_MAX};
use crate::retry;
use crate::socket::{Budget, ReadSize, Socket};
use crate::wire::Wire;

/// An idle connection is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// An HTTP/2 connection that had more streams at once than this …
const HTTP2_STREAMS_KEPT: usize = 64;
/// … is closed after this time without one: h2 keeps the memory of the most that it had until then.
const HTTP2_IDLE_MAX_AFTER_PEAK: Duration = Duration::from_secs(2);
/// The first attempt to connect may take this long …
const DIAL_FIRST: Duration = Duration::from_millis(50);
/// … each further one longer by this factor, in per cent …
const DIAL_GROWTH_PERCENT: u32 = 140;
/// … and there are at most this many, unless an upstream has fewer. Only time-outs are tried again.
pub const DIAL_ATTEMPTS: u32 = 15;
const DIAL_PAUSE: Duration = Duration::from_millis(40);
/// A handshake of TLS may take this long.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The largest response head.
const BUFFER_BYTES_MAX: usize = 256 * 1024;
/// The kernel asks whether the upstream is still there after this time without a byte.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Receive window of a stream from the upstream: bytes which it may send before any are read.
const HTTP2_WINDOW_BYTES: u32 = 64 * 1024;
/// What is set aside for it: filled with frames of 100 bytes it takes five times as much as with large ones.
const HTTP2_WINDOW_CHARGE_BYTES: usize = 256 * 1024;
/// Receive window of a stream for which there is no room on the account of what is held: half of a frame …
const HTTP2_NARROW_WINDOW_BYTES: u32 = 8 * 1024;
/// … and of a connection: streams whose clients do not read hold up no other.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// The heads of one answer, interim ones without end among them, and what follows in the same read.
const HEADS_BYTES_MAX: usize = 1024 * 1024;

/// HTTP/2 connections of one window at once, however few streams the upstream allows on each.
const HTTP2_CONNECTIONS_MAX: usize = 64;

/// Why the upstream gave no answer. `peer` is what messages call it, as in "the user container".
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// It accepts no connection.
    #[error("dial tcp {address}: {}", describe(error))]
    Dial {
        /// Where.
        address: SocketAddr,
        /// What the kernel says.
        error: io::Error,
    },
    /// It closed the connection before it answered.
    #[error("{peer} closed the connection without an answer")]
    Closed {
        /// Who.
        peer: &'static str,
    },
    /// The client's own body broke off or is malformed.
    #[error("the request's body cannot be read")]
    ClientBody,
    /// Its answer has a transfer coding that is not known.
    #[error("{peer}'s answer has an unsupported transfer encoding")]
    StrangeCoding {
        /// Whose.
        peer: &'static str,
    },
    /// Its answer states lengths that are none, or that differ.
    #[error("{peer}'s answer states a Content-Length that is no number, or several that differ")]
    BadLength {
        /// Whose.
        peer: &'static str,
    },
    /// Its answer has more header lines than are taken.
    #[error("{peer}'s answer has more than {HEAD_LINES_MAX} header lines")]
    TooManyHeaders {
        /// Whose.
        peer: &'static str,
    },
    /// What it said is not HTTP.
    #[error("{peer}'s answer cannot be read: {error}")]
    Unreadable {
        /// Whose.
        peer: &'static str,
        /// Why.
        error: hyper::Error,
    },
}

/// Returns an error that reads the same.
fn same_as(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(
        || io::Error::new(error.kind(), error.to_string()),
        io::Error::from_raw_os_error,
    )
}

/// The system's words without its numbers, a refusal as users know it from Knative.
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

/// What is fixed of an upstream.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it listens.
    pub address: SocketAddr,
    /// What error messages call it, as in "the user container".
    pub peer: &'static str,
    /// Idle connections that are kept, at most.
    pub idle_max: usize,
    /// Attempts to connect, each of which has timed out, at most: [`DIAL_ATTEMPTS`] unless there is somewhere else to go.
    pub dial_attempts: u32,
    /// Whether a request that can do no harm twice is sent once more when a used connection closes without an answer.
    pub resends: bool,
    /// TLS; `None`: plain.
    pub tls: Option<ClientTls>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    /// The address as a `Host`.
    host: HeaderValue,
    /// What error messages call it.
    peer: &'static str,
    idle_max: usize,
    dial_attempts: u32,
    resends: bool,
    tls: Option<ClientTls>,
    idle: Mutex<Pool>,
    http2: Mutex<Vec<Http2>>,
    /// One HTTP/2 connection is made at a time; those who wait find it made.
    http2_dialing: Semaphore,
    /// The last time that no connection for HTTP/2 could be had, and why.
    http2_failed: Mutex<Option<(Instant, io::Error)>>,
    /// How many HTTP/2 connections were made.
    http2_made: AtomicU64,
    /// Requests sent a second time, since the start.
    retries: AtomicU64,
    buffered: Arc<Buffered>,
}

/// Idle connections, the one used last at the end. Boxed once, then moved about: one is 700 bytes.
type Pool = Vec<Box<Connection>>;

/// What carries an upstream's bytes.
pub type UpstreamWire = Wire<TlsStream<Socket>>;

/// An HTTP/1 connection, driven by whoever holds it.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<ClientBody>,
    driver: http1::Connection<TokioIo<UpstreamWire>, ClientBody>,
    /// What is on the socket need not be a part of an answer.
    is_tls: bool,
    /// The socket, to look at it without reading.
    socket: Arc<OwnedWriteHalf>,
    budget: Arc<Budget>,
    read_size: Arc<ReadSize>,
    idle_since: Instant,
}

#[derive(Debug)]
struct Http2 {
    /// Grows from connection to connection.
    number: u64,
    sender: http2::SendRequest<ClientBody>,
    /// Receive window of each stream: that of a stream cannot be set by itself.
    window: u32,
    idle_since: Instant,
    streams: Arc<AtomicUsize>,
    /// The most streams there were at once.
    streams_peak: AtomicUsize,
    /// How many streams the upstream allows at once.
    streams_max: Arc<AtomicUsize>,
}

/// A place on an HTTP/2 connection.
struct Taken {
    sender: http2::SendRequest<ClientBody>,
    stream: Stream,
    /// The connection's number.
    number: u64,
    /// The connection was there before.
    is_reused: bool,
}

/// What is known of a connection's socket.
struct SocketParts {
    socket: Arc<OwnedWriteHalf>,
    budget: Arc<Budget>,
    read_size: Arc<ReadSize>,
}

/// An exchange without an answer.
struct Failed {
    error: TrySendError<Request<ClientBody>>,
    /// No byte of an answer was read.
    is_unanswered: bool,
}

/// A stream of an HTTP/2 connection, counted as long as this lives.
#[derive(Debug)]
pub struct Stream {
    streams: Arc<AtomicUsize>,
    /// Its window, on the account of what is held.
    _window: Option<Reserved>,
}

impl Upstream {
    /// Returns an upstream without connections yet.
    #[must_use]
    pub fn new(settings: Settings, buffered: Arc<Buffered>) -> Arc<Self> {
        let Settings {
            address,
            peer,
            idle_max,
            dial_attempts,
            resends,
            tls,
        } = settings;
        let host = HeaderValue::try_from(address.to_string()).expect("digits, dots and colons");
        Arc::new(Self {
            address,
            host,
            peer,
            dial_attempts,
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

    /// Returns where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address as a `Host`.
    pub const fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Returns how many requests were sent a second time after the upstream may have seen them.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Sends a request over HTTP/1 and returns the response head with the connection that carries it.
    ///
    /// A request of which no byte was written is sent again on another connection. One that `retry` allows, whose
    /// connection was used before and closed before a byte of an answer, is sent once more on a new connection;
    /// `refresh` brings its headers up to date. Any other is sent once.
    /// It is taken from where it stands when it goes to the socket: each step that it were handed through by
    /// value would keep room for it in every request's future.
    ///
    /// # Errors
    /// No connection, no answer, or one that is not HTTP.
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
        // Boxed, as all that is rare on the way: a request's future has room for the largest step.
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

    /// Keeps a connection for the next request, unless there are enough or it is of no more use.
    pub fn put_back(&self, mut connection: Box<Connection>) {
        // Nobody waits for what may come while it is idle: whoever takes it looks.
        let mut cx = Context::from_waker(Waker::noop());
        // The last step of an exchange is the connection's own: only then it is ready again.
        if connection.drive(&mut cx).is_ready() || !connection.is_ready(&mut cx) {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < self.idle_max {
            connection.idle_since = Instant::now();
            idle.push(connection);
        }
    }

    /// Closes connections that have been idle for too long or that the upstream has closed.
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

    /// Sends a request over HTTP/2, on a connection that it shares. It is taken from where it stands when a connection is
    /// there.
    ///
    /// What is sent again, and when, is as in [`Upstream::send`]; a stream that the upstream refused counts
    /// as one whose connection closed. An interim response cannot be seen here, so it does not count as an answer.
    ///
    /// # Errors
    /// No connection, no answer, or one that is not HTTP/2.
    pub async fn send_http2(
        &self,
        request: &mut Request<ClientBody>,
        refresh: impl Fn(&mut HeaderMap),
    ) -> Result<(Response<Incoming>, Stream), UpstreamError> {
        *request.version_mut() = Version::HTTP_2;
        // Connections up to this number are not used.
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

    /// Returns a stream of an open connection with room for it, else of a new one. After a failure, only of
    /// connections made after the one that failed.
    async fn http2_stream(&self, failed_on: Option<u64>) -> Result<Taken, UpstreamError> {
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
        // Closed never: it lives as long as `self`.
        let _dialing = self.http2_dialing.acquire().await;
        if let Some(taken) = self.http2_stream_of_open(failed_on, window, &mut reserved) {
            return Ok(taken);
        }
        // What was tried meanwhile was tried for all that waited.
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
            // The upstream may say another number at any time.
            streams_max.store(driver.current_max_send_streams(), Ordering::Relaxed);
            ended.map(|ended| {
                if let Err(error) = ended {
                    tracing::debug!(%error, peer, "an HTTP/2 connection to the upstream ended");
                }
            })
        }));
        self.http2().push(connection);
        Ok(Taken {
            sender,
            stream: Stream::new(streams, reserved),
            number,
            is_reused: false,
        })
    }

    /// Returns a stream of a connection with this window and room for it; where there are as many such connections as
    /// there may be, of the one with the fewest streams, on which it waits until the upstream allows it.
    /// The stream takes over what was reserved for it.
    fn http2_stream_of_open(
        &self,
        failed_on: Option<u64>,
        window: u32,
        reserved: &mut Option<Reserved>,
    ) -> Option<Taken> {
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
        Some(Taken {
            sender: connection.sender.clone(),
            stream: Stream::new(Arc::clone(&connection.streams), reserved.take()),
            number: connection.number,
            is_reused: true,
        })
    }

    /// The connection that was idle for the shortest time and is still open.
    async fn take_idle(&self) -> Option<Box<Connection>> {
        poll_fn(|cx| {
            loop {
                let Some(mut connection) = self.idle().pop() else {
                    return Poll::Ready(None);
                };
                // A connection that was closed while idle, or that says what nobody asked, is of no use.
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
        let mut limit = DIAL_FIRST;
        let mut attempt = 1;
        let error = loop {
            match tokio::time::timeout(limit, TcpStream::connect(self.address)).await {
                Ok(Ok(socket)) => {
                    match keep_alive(&socket, KEEP_ALIVE).and_then(|()| socket.set_nodelay(true)) {
                        Ok(()) => match self.shake_hands(socket, is_http2).await {
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

    /// Makes a connection of a socket, with TLS where that is set.
    async fn shake_hands(
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
        let shake = Box::pin(tls.connect(io, is_http2));
        let stream = tokio::time::timeout(HANDSHAKE_MAX, shake).await??;
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
    /// Lets the connection read and write what it can. Ready: it is over.
    pub fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.driver.poll_without_shutdown(cx).map(|_ended| ())
    }

    /// Nothing is to be read: neither data nor the end of input. Asks the kernel, since the runtime hears of
    /// an end only at its next turn.
    fn is_silent(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        let socket: &TcpStream = (*self.socket).as_ref();
        let peeked = SockRef::from(socket).peek(&mut byte);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Returns the bound on one read of the connection.
    pub fn read_size(&self) -> Arc<ReadSize> {
        Arc::clone(&self.read_size)
    }

    /// After a 101: the socket, and what the upstream has sent on it already.
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
    ) -> Result<Response<Incoming>, Failed> {
        self.budget.set(HEADS_BYTES_MAX);
        let mut answer = pin!(self.sender.try_send_request(std::mem::take(request)));
        let driver = &mut self.driver;
        let mut over = false;
        let answer = poll_fn(|cx| {
            over = over || Pin::new(&mut *driver).poll_without_shutdown(cx).is_ready();
            // Once the connection is over, the answer says how.
            answer.as_mut().poll(cx)
        })
        .await;
        let is_unanswered = self.budget.left() == HEADS_BYTES_MAX;
        self.budget.lift();
        answer.map_err(|error| Failed {
            error,
            is_unanswered,
        })
    }
}

impl Stream {
    const fn new(streams: Arc<AtomicUsize>, window: Option<Reserved>) -> Self {
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
