//! Relay of a response from the upstream to the client.
//!
//! The time limits apply whether or not the client reads. hyper does not poll a body while the client's socket is full,
//! so a separate task, the watchdog, ends the upstream's side in time, and meanwhile drives its connection, so that an
//! upload continues while the response is blocked. A response that is available at once has no watchdog.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use annotations::MidStreamTimeout;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::buffered::{Buffered, Piece, Transfer};
use crate::exchange::Exchange;
use crate::headers;
use crate::io::{ConnectionState, Serving};
use crate::limits::HEAD_LINES_MAX;
use crate::outcome::Outcome;
use crate::server_timing::{self, SERVER_TIMING};
use crate::timeouts::Timeouts;
use crate::upstream::{Connection, Stream, Upstream};

/// Largest number of frames passed on in one poll of a task. Otherwise an upstream that sends single bytes would starve
/// other tasks for as long as it has bytes available.
pub const BURST_MAX: u32 = 64;

/// The reason why a response breaks off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The upstream's answer broke off or cannot be read.
    #[error("the answer broke off: {0}")]
    Upstream(#[from] hyper::Error),
    /// A timeout truncated the response.
    #[error("a timeout truncated the response")]
    Timeout,
    /// The answer has more than [`HEAD_LINES_MAX`] trailers.
    #[error("the answer has more than {HEAD_LINES_MAX} trailers")]
    TooManyTrailers,
}

/// Result of polling a response's body for a frame.
pub type PolledFrame = Poll<Option<Result<Frame<Piece>, BodyError>>>;
/// Result of polling for a frame that is not yet charged to the body.
type PolledBytes = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// A request's slot at the upstream, with all other resources of the request until its answer has ended. They are
/// released when it is dropped.
pub trait UpstreamSlot: fmt::Debug + Send + Sync + Unpin + 'static {
    /// Notes that the whole answer has arrived, and that its duration is representative for estimates.
    fn complete(&mut self);
}

/// The slot at an upstream without a concurrency limit.
impl UpstreamSlot for () {
    fn complete(&mut self) {}
}

/// Resources that a request holds until its response has ended.
#[derive(Debug, Default)]
pub struct InFlight<P> {
    /// Slot of the request at the upstream.
    pub slot: P,
    /// Guard that marks the client's HTTP/1 connection as serving; `None` for HTTP/2.
    pub serving: Option<Serving>,
    /// Observation of the request; `None` if it is not observed.
    pub exchange: Option<Arc<Exchange>>,
}

/// The connection or stream from which a response is read.
#[derive(Debug)]
pub enum Source {
    /// An HTTP/1 connection used by this request alone, with the upstream to which it is returned.
    Http1(Box<Connection>, Arc<Upstream>),
    /// A stream of a shared HTTP/2 connection, counted until it is dropped.
    Http2(Stream),
}

/// The body of a response that is relayed from the upstream. See the [module](self).
#[derive(Debug)]
pub struct Relay<P> {
    app: Arc<Mutex<AppSide<P>>>,
    /// Account of the bytes buffered for the client.
    transfer: Arc<Transfer>,
    watchdog: Option<AbortHandle>,
    serving: Option<Serving>,
    exchange: Option<Arc<Exchange>>,
    /// How the response is ended when a timeout expires.
    pub mid_stream_timeout: MidStreamTimeout,
    /// Remaining bytes of the message's `Content-Length`; `None` without one.
    pub remaining: Option<u64>,
    /// State of the client's HTTP/1 connection, which sends the trailers; `None` for HTTP/2.
    pub http1: Option<Arc<ConnectionState>>,
    /// Start of the execution time that is reported in a trailer (HTTP/2); `None` if it is not reported.
    pub server_timing_since: Option<Instant>,
    /// Frame that was read by [`first_bytes`](Self::first_bytes) and not passed on yet.
    first: Option<Frame<Bytes>>,
    broken: Option<BodyError>,
    state: State,
    /// Frames since the task last yielded.
    burst: u32,
    /// Whether there was no room for the next piece at the last poll.
    is_stuck: bool,
}

/// The upstream's side of a response, shared by the body, which reads from it, and the watchdog, which ends it.
#[derive(Debug)]
struct AppSide<P> {
    /// `None` once the answer has ended or was aborted.
    live: Option<Live<P>>,
    timeouts: Timeouts,
    expired: bool,
    /// Waker of the body while it waits for a frame.
    awaited: Option<Waker>,
    watchdog: Option<Waker>,
}

#[derive(Debug)]
struct Live<P> {
    incoming: Incoming,
    source: Source,
    slot: P,
    /// Whether the duration of the answer is representative for estimates.
    learn: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Passing,
    /// The data has ended; the execution time follows as a trailer.
    Timing,
    /// Trailers are queued on the HTTP/1 connection.
    Trailers,
    /// The message breaks off once all bytes before the error are written (HTTP/1).
    Broken,
    Ended,
}

/// Result of polling the upstream's side.
enum Polled {
    /// A frame, and whether it was the last one.
    Frame(Frame<Bytes>, bool),
    End,
    Error(hyper::Error),
    Expired,
}

impl<P: UpstreamSlot> AppSide<P> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Polled> {
        if self.expired {
            return Poll::Ready(Polled::Expired);
        }
        let Some(live) = &mut self.live else {
            return Poll::Ready(Polled::End);
        };
        let mut frame = Pin::new(&mut live.incoming).poll_frame(cx);
        if frame.is_pending()
            && let Source::Http1(connection, _) = &mut live.source
        {
            // If the connection has ended, polling the body returns the reason.
            let _over = connection.drive(cx);
            frame = Pin::new(&mut live.incoming).poll_frame(cx);
        }
        let Poll::Ready(frame) = frame else {
            self.awaited = Some(cx.waker().clone());
            return Poll::Pending;
        };
        self.awaited = None;
        self.timeouts.note_write();
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let last = live.incoming.is_end_stream();
                Polled::Frame(frame, last)
            }
            Some(Err(error)) => Polled::Error(error),
            None => Polled::End,
        })
    }

    /// Polls the watchdog: drives the connection while the body is not read, and ends the answer when its time is up.
    fn watch(&mut self, mut sleep: Pin<&mut tokio::time::Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(live) = &mut self.live else {
            return Poll::Ready(());
        };
        if self.awaited.is_none()
            && let Source::Http1(connection, _) = &mut live.source
        {
            // The result is seen when the body is read again.
            let _over = connection.drive(cx);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            let at = self.timeouts.mid_stream();
            // The idle deadline may have moved since the timer was set.
            if sleep.deadline() >= at {
                self.expired = true;
                self.live = None;
                if let Some(body) = self.awaited.take() {
                    body.wake();
                }
                return Poll::Ready(());
            }
            sleep.as_mut().reset(at);
        }
        self.watchdog = Some(cx.waker().clone());
        Poll::Pending
    }

    fn finish(&mut self) {
        if let Some(live) = self.live.take() {
            release(live.source, live.slot, live.learn);
        }
    }
}

/// Returns the connection to the upstream's pool and releases the slot, once the answer has ended. `learn` states whether
/// its duration is representative for estimates.
fn release(source: Source, mut slot: impl UpstreamSlot, learn: bool) {
    if let Source::Http1(connection, upstream) = source {
        upstream.put_back(connection);
    }
    if learn {
        slot.complete();
    }
}

impl<P: UpstreamSlot> InFlight<P> {
    /// Releases the resources of a request whose answer has no body.
    pub fn finish(self, source: Source, learn: bool) {
        release(source, self.slot, learn);
        if let Some(exchange) = &self.exchange {
            exchange.upstream_ended();
        }
    }
}

impl<P: UpstreamSlot> Relay<P> {
    /// Creates the relay of an answer whose head has just arrived. `learn` states whether its duration is representative
    /// for estimates.
    pub fn new(
        incoming: Incoming,
        source: Source,
        in_flight: InFlight<P>,
        mut timeouts: Timeouts,
        learn: bool,
        buffered: &Arc<Buffered>,
    ) -> Box<Self> {
        timeouts.note_write();
        let InFlight {
            slot,
            serving,
            exchange,
        } = in_flight;
        let read_size = match &source {
            Source::Http1(connection, _) => Some(connection.read_size()),
            Source::Http2(_) => None,
        };
        let live = Live {
            incoming,
            source,
            slot,
            learn,
        };
        Box::new(Self {
            app: Arc::new(Mutex::new(AppSide {
                live: Some(live),
                timeouts,
                expired: false,
                awaited: None,
                watchdog: None,
            })),
            transfer: Transfer::new(buffered, read_size),
            watchdog: None,
            serving,
            exchange,
            mid_stream_timeout: MidStreamTimeout::default(),
            remaining: None,
            http1: None,
            server_timing_since: None,
            first: None,
            broken: None,
            state: State::Passing,
            burst: 0,
            is_stuck: false,
        })
    }

    /// Returns the first bytes without consuming them, or no bytes if the body is empty.
    ///
    /// # Errors
    /// Returns an error if the response breaks off before its first bytes.
    pub async fn first_bytes(&mut self) -> Result<Bytes, BodyError> {
        let frame = poll_fn(|cx| self.poll_bytes(cx)).await.transpose()?;
        let bytes = frame
            .as_ref()
            .and_then(Frame::data_ref)
            .cloned()
            .unwrap_or_default();
        self.first = frame;
        Ok(bytes)
    }

    /// Returns whether the whole body has been passed on.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended && self.first.is_none()
    }

    /// Returns the number of bytes still to be passed on, or `None` if it is not known.
    pub fn bytes_left(&self) -> Option<u64> {
        let first = self
            .first
            .as_ref()
            .and_then(Frame::data_ref)
            .map_or(0, |data| data.len() as u64);
        self.remaining.map(|remaining| remaining + first)
    }

    /// Polls for the next frame for the client, and charges it to the account of the body.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let frame = ready!(self.poll_bytes(cx));
        let transfer = &self.transfer;
        let charge = |frame: Frame<Bytes>| frame.map_data(|bytes| transfer.piece(bytes));
        Poll::Ready(frame.map(|frame| frame.map(charge)))
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> PolledBytes {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        match self.state {
            State::Passing => self.poll_passing(cx),
            State::Timing => Poll::Ready(self.after_data()),
            State::Trailers => self.poll_trailers(cx),
            State::Broken => self.poll_broken(cx),
            State::Ended => Poll::Ready(None),
        }
    }

    fn poll_passing(&mut self, cx: &mut Context<'_>) -> PolledBytes {
        if self.burst >= BURST_MAX {
            self.burst = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = if self.transfer.poll_room(self.remaining, cx).is_ready() {
            self.is_stuck = false;
            self.app().poll(cx)
        } else if self.http1.is_none() || std::mem::replace(&mut self.is_stuck, true) {
            // The watchdog drives the upstream's side, as it does while hyper does not poll.
            Poll::Pending
        } else {
            // The buffered bytes go to an HTTP/1 client's socket in this very poll. That usually makes room, so that no
            // watchdog is needed.
            cx.waker().wake_by_ref();
            self.burst = 0;
            return Poll::Pending;
        };
        let Poll::Ready(polled) = polled else {
            self.burst = 0;
            self.watch();
            return Poll::Pending;
        };
        self.burst += 1;
        match polled {
            Polled::Frame(frame, last) => match frame.into_data() {
                Ok(data) => {
                    if let Some(remaining) = &mut self.remaining {
                        *remaining = remaining.saturating_sub(data.len() as u64);
                    }
                    if last {
                        self.finish();
                    } else {
                        self.watch();
                    }
                    Poll::Ready(Some(Ok(Frame::data(data))))
                }
                // Frames are either data or trailers.
                Err(frame) => self.on_trailers(frame.into_trailers().unwrap_or_default(), cx),
            },
            Polled::End => {
                self.finish();
                Poll::Ready(self.after_data())
            }
            Polled::Error(error) => self.break_off(error.into(), cx),
            Polled::Expired => self.expire(cx),
        }
    }

    /// Starts the watchdog, or wakes it if the body is not waiting for a frame.
    fn watch(&mut self) {
        if self.watchdog.is_some() {
            let mut app = self.app();
            if app.awaited.is_none()
                && let Some(watchdog) = app.watchdog.take()
            {
                watchdog.wake();
            }
            return;
        }
        let app = Arc::clone(&self.app);
        let task = tokio::spawn(async move {
            let lock = || app.lock().unwrap_or_else(PoisonError::into_inner);
            let at = lock().timeouts.mid_stream();
            let mut sleep = pin!(tokio::time::sleep_until(at));
            poll_fn(|cx| lock().watch(sleep.as_mut(), cx)).await;
        });
        self.watchdog = Some(task.abort_handle());
    }

    fn finish(&mut self) {
        // Detached before the connection serves another request.
        self.transfer.detach();
        self.app().finish();
        if let Some(exchange) = &self.exchange {
            exchange.upstream_ended();
        }
        self.end(if self.server_timing_since.is_some() {
            State::Timing
        } else {
            State::Ended
        });
    }

    fn end(&mut self, state: State) {
        self.state = state;
        if state == State::Ended {
            self.serving = None;
        }
    }

    fn on_trailers(&mut self, mut trailers: HeaderMap, cx: &mut Context<'_>) -> PolledBytes {
        if trailers.len() > HEAD_LINES_MAX {
            return self.break_off(BodyError::TooManyTrailers, cx);
        }
        self.finish();
        headers::remove_bad_trailers(&mut trailers);
        if let Some(connection) = self.http1.as_ref().filter(|_| !trailers.is_empty()) {
            connection.queue_trailers(encode_trailers(&trailers), cx);
            self.state = State::Trailers;
            return self.poll_trailers(cx);
        }
        if let Some(value) = self.server_timing() {
            trailers.append(SERVER_TIMING, value);
        }
        self.end(State::Ended);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> PolledBytes {
        if let Some(connection) = &self.http1 {
            ready!(connection.poll_trailers(cx));
        }
        self.end(State::Ended);
        Poll::Ready(None)
    }

    fn after_data(&mut self) -> Option<Result<Frame<Bytes>, BodyError>> {
        if self.state != State::Timing {
            return None;
        }
        let value = self.server_timing();
        self.end(State::Ended);
        let mut trailers = HeaderMap::new();
        trailers.insert(SERVER_TIMING, value?);
        Some(Ok(Frame::trailers(trailers)))
    }

    fn server_timing(&self) -> Option<HeaderValue> {
        self.server_timing_since
            .and_then(|since| server_timing::entry("exec", since.elapsed()))
    }

    /// Ends the response after a timeout.
    fn expire(&mut self, cx: &mut Context<'_>) -> PolledBytes {
        if let Some(exchange) = &self.exchange {
            exchange.note(Outcome::Timeout);
        }
        if self.mid_stream_timeout == MidStreamTimeout::Abort {
            return self.break_off(BodyError::Timeout, cx);
        }
        let text = self.app().timeouts.text();
        let fits = self.remaining.is_none_or(|left| left >= text.len() as u64);
        // HTTP/2 and chunked messages are terminated normally, as under Knative; one with a length ends before it.
        let short = self.http1.is_some() && self.remaining.is_some();
        if !short {
            self.end(State::Ended);
        } else if let Poll::Ready(broken) = self.break_off(BodyError::Timeout, cx) {
            return Poll::Ready(broken);
        }
        match (fits, short) {
            (true, _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))),
            (false, true) => Poll::Pending,
            (false, false) => Poll::Ready(None),
        }
    }

    /// Ends the message with an error. On HTTP/1 hyper then closes the connection at once, so the error is held back
    /// until all earlier bytes are written.
    fn break_off(&mut self, error: BodyError, cx: &mut Context<'_>) -> PolledBytes {
        self.app().live = None;
        let Some(connection) = &self.http1 else {
            self.end(State::Ended);
            return Poll::Ready(Some(Err(error)));
        };
        connection.queue_trailers(Bytes::new(), cx);
        self.broken = Some(error);
        self.end(State::Broken);
        Poll::Pending
    }

    fn poll_broken(&mut self, cx: &mut Context<'_>) -> PolledBytes {
        if let Some(connection) = &self.http1 {
            ready!(connection.poll_trailers(cx));
        }
        self.end(State::Ended);
        Poll::Ready(self.broken.take().map(Err))
    }

    fn app(&self) -> MutexGuard<'_, AppSide<P>> {
        self.app.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Drop for Relay<P> {
    fn drop(&mut self) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.abort();
        }
        let live = self
            .app
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .live
            .take();
        drop(live);
    }
}

/// Encodes the end of a chunked message with trailers, RFC 9112 7.1.
fn encode_trailers(trailers: &HeaderMap) -> Bytes {
    let mut encoded = BytesMut::with_capacity(64);
    encoded.put_slice(b"0\r\n");
    for (name, value) in trailers {
        let mut upper = true;
        for &byte in name.as_str().as_bytes() {
            encoded.put_u8(if upper {
                byte.to_ascii_uppercase()
            } else {
                byte
            });
            upper = byte == b'-';
        }
        encoded.put_slice(b": ");
        encoded.put_slice(value.as_bytes());
        encoded.put_slice(b"\r\n");
    }
    encoded.put_slice(b"\r\n");
    encoded.freeze()
}
