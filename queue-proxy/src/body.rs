//! The bodies that pass through: the client's towards the user container, and the response's back.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::admission::Permit;
use crate::io::{ConnectionState, Serving};
use crate::options::MidStreamTimeout;
use crate::stat::Counted;
use crate::timeouts::Timeouts;
use crate::upstream::{Connection, Stream, Upstream};

/// What is said when a timeout strikes, in a 504 and, as Knative does it, in the midst of a response.
pub(crate) const TIMEOUT_TEXT: &[u8] = b"request timeout";
/// A client that waits for `100 Continue` is told to go on after this time, whatever the user container
/// says. Fixed by Knative.
const CONTINUE_MAX: Duration = Duration::from_secs(1);
/// A waiting request reads at most about this much of its body …
const READ_AHEAD_BYTES_MAX: usize = 1024 * 1024;
/// … and all of them together about this much.
const READ_AHEAD_TOTAL_BYTES_MAX: usize = 16 * 1024 * 1024;
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// A response that breaks off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The user container's own answer broke off, or cannot be read.
    #[error("the user container's answer broke off: {0}")]
    Upstream(#[from] hyper::Error),
    /// A timeout cut it.
    #[error("a timeout cut the response")]
    Timeout,
}

/// The request's body on its way to the user container.
#[derive(Debug)]
pub(crate) struct ClientBody {
    incoming: Incoming,
    connection: Option<Arc<ConnectionState>>,
    hold: Option<(Arc<ContinueHold>, Pin<Box<Sleep>>)>,
    /// Read while its request waited, in order.
    ahead: VecDeque<Result<Frame<Bytes>, hyper::Error>>,
    ahead_bytes: usize,
    account: Option<Arc<ReadAhead>>,
    /// The client has sent all of it.
    ended: bool,
}

/// The account of what all waiting requests have read ahead.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    bytes: AtomicUsize,
}

impl ReadAhead {
    fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < READ_AHEAD_TOTAL_BYTES_MAX
    }
}

/// Holds a body back until the user container wants it.
#[derive(Debug, Default)]
pub(crate) struct ContinueHold {
    released: AtomicBool,
    answered: AtomicBool,
}

impl ContinueHold {
    /// The user container said `100 Continue`.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// It gave its final answer without having seen the body: the body is not sent any more.
    pub(crate) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl ClientBody {
    /// The body of a request. On HTTP/1, `connection` is told if it is not read to its end.
    pub(crate) fn new(incoming: Incoming, connection: Option<Arc<ConnectionState>>) -> Self {
        let ended = incoming.is_end_stream();
        Self {
            incoming,
            connection,
            hold: None,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            account: None,
            ended,
        }
    }

    /// Holds the body back until the user container wants it or a second has passed.
    pub(crate) fn hold(&mut self) -> Arc<ContinueHold> {
        let hold = Arc::<ContinueHold>::default();
        self.hold = Some((
            Arc::clone(&hold),
            Box::pin(tokio::time::sleep(CONTINUE_MAX)),
        ));
        hold
    }

    /// There is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.ended && self.ahead.is_empty()
    }

    /// Reads on while the request waits. The end of input stands behind the body in the socket: unless the
    /// body is read, a client that has left is not noticed. What exceeds the bounds stays unread.
    pub(crate) fn read_ahead(&mut self, account: &Arc<ReadAhead>, cx: &mut Context<'_>) {
        while !self.ended && self.ahead_bytes < READ_AHEAD_BYTES_MAX && account.has_room() {
            let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) else {
                return;
            };
            self.ended = frame.is_none() || self.incoming.is_end_stream();
            let Some(frame) = frame else { return };
            let bytes = frame
                .as_ref()
                .ok()
                .and_then(Frame::data_ref)
                .map_or(0, Bytes::len);
            self.ahead_bytes += bytes;
            account.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.account.get_or_insert_with(|| Arc::clone(account));
            self.ahead.push_back(frame);
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some((hold, limit)) = &mut self.hold {
            if hold.answered.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            if !hold.released.load(Ordering::Relaxed) {
                ready!(limit.as_mut().poll(cx));
            }
            self.hold = None;
        }
        if let Some(frame) = self.ahead.pop_front() {
            let bytes = frame
                .as_ref()
                .ok()
                .and_then(Frame::data_ref)
                .map_or(0, Bytes::len);
            self.ahead_bytes -= bytes;
            if let Some(account) = &self.account {
                account.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            return Poll::Ready(Some(frame));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        self.ended = frame.is_none() || self.incoming.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if self.ahead.is_empty() {
            self.incoming.size_hint()
        } else {
            SizeHint::default()
        }
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.bytes.fetch_sub(self.ahead_bytes, Ordering::Relaxed);
        }
        if !self.ended
            && let Some(connection) = &self.connection
        {
            connection.note_body_unread();
        }
    }
}

/// What a request holds until its response has ended.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Its place at the user container.
    pub permit: Option<Permit>,
    /// Its count in the stat.
    pub counted: Option<Counted>,
    /// The mark on its HTTP/1 connection.
    pub serving: Option<Serving>,
}

/// Where a response comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A connection of its own.
    Http1(Box<Connection>, Arc<Upstream>),
    /// A stream of a shared one.
    Http2(#[expect(dead_code, reason = "held: it counts the stream until it ends")] Stream),
}

/// A response's body.
#[derive(Debug)]
pub(crate) struct ProxyBody {
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Full(Option<Bytes>),
    Relay(Box<Relay>),
}

/// A response on its way from the user container to the client.
#[derive(Debug)]
pub(crate) struct Relay {
    /// What the user container sends.
    pub incoming: Incoming,
    /// Where from.
    pub source: Option<Source>,
    /// What it holds.
    pub in_flight: InFlight,
    /// The limits on its time.
    pub timeouts: Timeouts,
    /// How it ends when one strikes.
    pub mid_stream_timeout: MidStreamTimeout,
    /// Bytes left of its `Content-Length`.
    pub remaining: Option<u64>,
    /// The client's HTTP/1 connection, which takes trailers; `None`: HTTP/2.
    pub http1: Option<Arc<ConnectionState>>,
    /// Tell the execution time at the end (HTTP/2): since when.
    pub server_timing_since: Option<Instant>,
    broken: Option<BodyError>,
    first: Option<Frame<Bytes>>,
    sleep: Option<Pin<Box<Sleep>>>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Passing,
    /// The data has ended; the execution time follows as a trailer.
    Timing,
    /// Trailers are queued on the HTTP/1 connection.
    Trailers,
    /// The message breaks off, once all before that is written (HTTP/1).
    Broken,
    Ended,
}

impl Relay {
    /// A relay that has sent nothing yet.
    pub(crate) fn new(
        incoming: Incoming,
        source: Source,
        in_flight: InFlight,
        timeouts: Timeouts,
    ) -> Box<Self> {
        Box::new(Self {
            incoming,
            source: Some(source),
            in_flight,
            timeouts,
            mid_stream_timeout: MidStreamTimeout::default(),
            remaining: None,
            http1: None,
            server_timing_since: None,
            broken: None,
            first: None,
            sleep: None,
            state: State::Passing,
        })
    }

    /// Reads the first bytes, which then come first from the body as well.
    ///
    /// # Errors
    /// The answer breaks off before them.
    pub(crate) async fn first_bytes(&mut self) -> Result<Bytes, hyper::Error> {
        let frame = std::future::poll_fn(|cx| self.poll_incoming(cx))
            .await
            .transpose()?;
        let bytes = frame
            .as_ref()
            .and_then(Frame::data_ref)
            .cloned()
            .unwrap_or_default();
        self.first = frame;
        Ok(bytes)
    }

    /// The body of the response; `cx` is the request's task.
    pub(crate) fn into_body(mut self: Box<Self>, cx: &mut Context<'_>) -> ProxyBody {
        if self.first.is_none() && self.incoming.is_end_stream() {
            // A response that is a head alone stays one: gRPC's errors are such, and a trailer would hide
            // the status in it.
            self.server_timing_since = None;
            self.finish(cx);
            return ProxyBody::empty();
        }
        ProxyBody {
            inner: Inner::Relay(self),
        }
    }

    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        if let Some(Source::Http1(connection, _)) = &mut self.source {
            // If the connection is over, the body says how.
            let _over = connection.drive(cx);
            return Pin::new(&mut self.incoming).poll_frame(cx);
        }
        Poll::Pending
    }

    /// The user container has said all: its connection is free, and so is its place.
    fn finish(&mut self, cx: &mut Context<'_>) {
        if let Some(Source::Http1(connection, upstream)) = self.source.take() {
            upstream.put_back(connection, cx);
        }
        if let Some(permit) = &mut self.in_flight.permit {
            permit.complete();
        }
        self.in_flight.permit = None;
        self.in_flight.counted = None;
        self.sleep = None;
        self.end(match self.server_timing_since {
            Some(_) => State::Timing,
            None => State::Ended,
        });
    }

    /// Nothing more comes from the user container, and it need not go on.
    fn abandon(&mut self, state: State) {
        self.source = None;
        self.in_flight.permit = None;
        self.in_flight.counted = None;
        self.end(state);
    }

    fn end(&mut self, state: State) {
        self.state = state;
        if state == State::Ended {
            self.in_flight.serving = None;
        }
    }

    fn on_trailers(
        &mut self,
        mut trailers: HeaderMap,
        cx: &mut Context<'_>,
    ) -> Option<Frame<Bytes>> {
        self.finish(cx);
        match self.http1.as_ref().filter(|_| !trailers.is_empty()) {
            Some(connection) => {
                connection.queue_trailers(encode_trailers(&trailers), cx);
                self.state = State::Trailers;
                None
            }
            None => {
                if let Some(value) = self.server_timing() {
                    trailers.append(SERVER_TIMING, value);
                }
                self.end(State::Ended);
                Some(Frame::trailers(trailers))
            }
        }
    }

    fn server_timing(&self) -> Option<HeaderValue> {
        self.server_timing_since
            .and_then(|since| timing("exec", since.elapsed()))
    }

    /// A timeout struck in the midst of the response.
    fn expire(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.mid_stream_timeout == MidStreamTimeout::Abort {
            return self.break_off(BodyError::Timeout, cx);
        }
        let fits = self
            .remaining
            .is_none_or(|left| left >= TIMEOUT_TEXT.len() as u64);
        // HTTP/2 and chunked messages end well, as under Knative; one with a length is cut short of it.
        let short = self.http1.is_some() && self.remaining.is_some();
        if !short {
            self.abandon(State::Ended);
        } else if let Poll::Ready(broken) = self.break_off(BodyError::Timeout, cx) {
            return Poll::Ready(broken);
        }
        match (fits, short) {
            (true, _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(TIMEOUT_TEXT))))),
            (false, true) => Poll::Pending,
            (false, false) => Poll::Ready(None),
        }
    }

    /// Ends the message with an error. On HTTP/1 hyper closes the connection at once then, so what was
    /// passed on before is written first.
    fn break_off(
        &mut self,
        error: BodyError,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(connection) = &self.http1 else {
            self.abandon(State::Ended);
            return Poll::Ready(Some(Err(error)));
        };
        connection.queue_trailers(Bytes::new(), cx);
        self.broken = Some(error);
        self.abandon(State::Broken);
        Poll::Pending
    }

    fn poll_broken(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(connection) = &self.http1 {
            ready!(connection.poll_trailers(cx));
        }
        self.end(State::Ended);
        Poll::Ready(self.broken.take().map(Err))
    }

    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let at = self.timeouts.mid_stream();
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
            ready!(sleep.as_mut().poll(cx));
            // The idle clock may have been set back since the timer was.
            if sleep.deadline() >= at {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(at);
        }
    }

    fn poll_passing(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.poll_incoming(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.timeouts.note_write();
                match frame.into_data() {
                    Ok(data) => {
                        if let Some(remaining) = &mut self.remaining {
                            *remaining = remaining.saturating_sub(data.len() as u64);
                        }
                        if self.incoming.is_end_stream() {
                            self.finish(cx);
                        }
                        Poll::Ready(Some(Ok(Frame::data(data))))
                    }
                    Err(frame) => match frame.into_trailers() {
                        Ok(trailers) => {
                            let frame = self.on_trailers(trailers, cx);
                            match frame {
                                Some(frame) => Poll::Ready(Some(Ok(frame))),
                                None => self.poll_trailers(cx),
                            }
                        }
                        // No other kind of frame is known; one that comes is passed over.
                        Err(_) => {
                            cx.waker().wake_by_ref();
                            Poll::Pending
                        }
                    },
                }
            }
            Poll::Ready(Some(Err(error))) => self.break_off(error.into(), cx),
            Poll::Ready(None) => {
                self.finish(cx);
                Poll::Ready(self.after_data())
            }
            Poll::Pending => {
                ready!(self.poll_expired(cx));
                self.expire(cx)
            }
        }
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

    fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(connection) = &self.http1 {
            ready!(connection.poll_trailers(cx));
        }
        self.end(State::Ended);
        Poll::Ready(None)
    }
}

impl ProxyBody {
    /// No bytes.
    #[must_use]
    pub(crate) const fn empty() -> Self {
        Self {
            inner: Inner::Full(None),
        }
    }

    /// These bytes.
    #[must_use]
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            inner: Inner::Full(Some(bytes).filter(|bytes| !bytes.is_empty())),
        }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.inner {
            Inner::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Relay(relay) => match relay.state {
                State::Passing => relay.poll_passing(cx),
                State::Timing => Poll::Ready(relay.after_data()),
                State::Trailers => relay.poll_trailers(cx),
                State::Broken => relay.poll_broken(cx),
                State::Ended => Poll::Ready(None),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Full(bytes) => bytes.is_none(),
            Inner::Relay(relay) => relay.state == State::Ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Inner::Relay(relay) => relay
                .remaining
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// A `Server-Timing` entry (W3C Server Timing): milliseconds to the microsecond.
pub(crate) fn timing(name: &str, span: Duration) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{name};dur={:.3}", span.as_secs_f64() * 1e3)).ok()
}

/// The end of a chunked message with trailers, RFC 9112 7.1.
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
