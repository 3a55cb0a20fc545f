//! Body of a request, relayed from the client to the upstream.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::buffered::{Buffered, Piece, Reservation, Transfer};
use crate::exchange::Exchange;
use crate::headers;
use crate::io::ConnectionState;
use crate::relay::BURST_MAX;

/// Longest time for which a client waits for `100 Continue`, whatever the user container answers. Fixed by Knative.
const CONTINUE_MAX: Duration = Duration::from_secs(1);
/// Approximate limit on the bytes that a waiting request reads ahead of its body.
const READ_AHEAD_BYTES_MAX: usize = 1024 * 1024;
/// Approximate limit on the bytes that all waiting requests together read ahead.
const READ_AHEAD_TOTAL_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The body of a client's request, as sent to the upstream.
#[derive(Debug)]
pub struct ClientBody {
    /// `None` for the empty body of [`Default`].
    incoming: Option<Incoming>,
    connection: Option<Arc<ConnectionState>>,
    /// Account of the bytes buffered for the upstream; `None` for a request without a body.
    transfer: Option<Arc<Transfer>>,
    hold: Option<(Arc<ContinueHold>, Pin<Box<Sleep>>)>,
    /// The body for which this one stands, until it is read.
    lent: Option<Arc<Loan>>,
    ahead: Option<Box<AheadBuffer>>,
    /// Whether nothing more of the body is to be read: it was read to its end, or its framing is malformed.
    ended: bool,
    /// Whether the input ended before the body did.
    gone: bool,
    /// Observation of the request; `None` if it is not observed.
    exchange: Option<Arc<Exchange>>,
    /// Frames since the task last yielded.
    burst: u32,
}

/// The reason why a request's body cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum ClientBodyError {
    /// The body cannot be read by hyper.
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    /// The chunked framing violates RFC 9112 7.1 in a way that hyper accepts. Bytes after it may be another request.
    #[error("the chunked body is not framed as RFC 9112 7.1 requires")]
    Chunks,
}

/// The part of a body that was read while the request waited.
#[derive(Debug)]
struct AheadBuffer {
    account: Arc<ReadAhead>,
    held: Reservation,
    /// Bytes read ahead, in one piece, however small the received pieces were.
    bytes: BytesMut,
    /// Number of bytes charged to the account.
    charged: usize,
    /// End of the body after the bytes: trailers, or an error.
    last: Option<Result<Frame<Bytes>, ClientBodyError>>,
}

/// The account of the bytes that all waiting requests have read ahead.
#[derive(Debug)]
pub struct ReadAhead {
    bytes: AtomicUsize,
    /// Account of all buffered bytes, to which those read ahead are charged as well.
    buffered: Arc<Buffered>,
}

impl ReadAhead {
    /// Creates an empty account.
    pub fn new(buffered: &Arc<Buffered>) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            buffered: Arc::clone(buffered),
        })
    }
}

/// Holds a body back until the upstream answers `100 Continue`.
#[derive(Debug, Default)]
pub struct ContinueHold {
    released: AtomicBool,
    answered: AtomicBool,
}

impl ContinueHold {
    /// Releases the body, after the upstream has sent `100 Continue`.
    pub fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// Notes the final answer. If the body is still held back then, it will never be sent.
    pub fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

/// A body that is lent to a message: it is not read before [`Loan::release`], and can be taken back until it is read.
#[derive(Debug)]
pub struct Loan {
    hold: ContinueHold,
    body: Mutex<Option<ClientBody>>,
}

impl Loan {
    /// Lets the body be read, after the receiver of the message has sent `100 Continue`.
    pub fn release(&self) {
        self.hold.release();
    }

    /// Notes the final answer. If the body is still held back then, it will never be sent.
    pub fn answered(&self) {
        self.hold.answered();
    }

    /// Returns the body, or `None` once it was released.
    pub fn take_back(&self) -> Option<ClientBody> {
        if self.hold.released.load(Ordering::Relaxed) {
            return None;
        }
        self.take()
    }

    fn take(&self) -> Option<ClientBody> {
        self.body
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl AheadBuffer {
    fn new(account: &Arc<ReadAhead>) -> Self {
        Self {
            account: Arc::clone(account),
            held: Reservation::none(&account.buffered),
            bytes: BytesMut::new(),
            charged: 0,
            last: None,
        }
    }

    fn has_room(&self) -> bool {
        self.bytes.len() < READ_AHEAD_BYTES_MAX
            && self.account.bytes.load(Ordering::Relaxed) < READ_AHEAD_TOTAL_BYTES_MAX
            && self.account.buffered.has_room()
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.last.is_none()
    }

    fn push(&mut self, frame: Result<Frame<Bytes>, ClientBodyError>) {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                self.bytes.extend_from_slice(&data);
                self.charged += data.len();
                self.account.bytes.fetch_add(data.len(), Ordering::Relaxed);
                self.held.add(data.len());
            }
            Ok(Err(other)) => self.last = Some(Ok(other)),
            Err(error) => self.last = Some(Err(error)),
        }
    }

    fn pop(&mut self) -> Option<Result<Frame<Bytes>, ClientBodyError>> {
        if self.bytes.is_empty() {
            return self.last.take();
        }
        let bytes = std::mem::take(&mut self.bytes).freeze();
        Some(Ok(Frame::data(bytes)))
    }
}

impl Drop for AheadBuffer {
    fn drop(&mut self) {
        self.account
            .bytes
            .fetch_sub(self.charged, Ordering::Relaxed);
    }
}

/// Creates the empty body that remains where a request has been taken.
impl Default for ClientBody {
    fn default() -> Self {
        Self {
            incoming: None,
            connection: None,
            transfer: None,
            hold: None,
            lent: None,
            ahead: None,
            ended: true,
            gone: false,
            exchange: None,
            burst: 0,
        }
    }
}

impl ClientBody {
    /// Wraps the body of a request. `connection` is the client's HTTP/1 connection, which is notified if the body is
    /// not read to its end.
    pub fn new(
        incoming: Incoming,
        connection: Option<Arc<ConnectionState>>,
        buffered: &Arc<Buffered>,
    ) -> Self {
        let ended = incoming.is_end_stream();
        let read_size = || connection.as_ref().map(|connection| connection.read_size());
        Self {
            ended,
            transfer: (!ended).then(|| Transfer::new(buffered, read_size())),
            incoming: Some(incoming),
            connection,
            hold: None,
            lent: None,
            ahead: None,
            gone: false,
            exchange: None,
            burst: 0,
        }
    }

    /// Holds the body back until the returned hold is released or a second has passed.
    pub fn hold(&mut self) -> Arc<ContinueHold> {
        let hold = Arc::<ContinueHold>::default();
        self.hold = Some((
            Arc::clone(&hold),
            Box::pin(tokio::time::sleep(CONTINUE_MAX)),
        ));
        hold
    }

    /// Lends the body: returns one that stands for it in a message, and the loan.
    #[must_use]
    pub fn lend(self) -> (Self, Arc<Loan>) {
        let loan = Arc::new(Loan {
            hold: ContinueHold::default(),
            body: Mutex::new(Some(self)),
        });
        let mut body = Self::default();
        (body.lent, body.ended) = (Some(Arc::clone(&loan)), false);
        (body, loan)
    }

    /// Returns a copy of the body if all of it is here, without trailers, and it has at most `bytes_max` bytes. What has been received is read
    /// ahead.
    #[must_use]
    pub fn copy_of_whole(&mut self, account: &Arc<ReadAhead>, bytes_max: usize) -> Option<Self> {
        if !self.is_whole(account, bytes_max, &mut Context::from_waker(Waker::noop())) {
            return None;
        }
        let mut copy = Self::default();
        if let Some(own) = &self.ahead {
            let mut ahead = AheadBuffer::new(account);
            ahead.push(Ok(Frame::data(Bytes::copy_from_slice(&own.bytes))));
            copy.ahead = Some(Box::new(ahead));
        }
        Some(copy)
    }

    /// Returns whether all of the body is here, without trailers, and has at most `bytes_max` bytes. What has been received is read ahead; the
    /// task is woken when there is more, unless there can be no more.
    pub fn is_whole(
        &mut self,
        account: &Arc<ReadAhead>,
        bytes_max: usize,
        cx: &mut Context<'_>,
    ) -> bool {
        self.read_ahead(account, cx);
        let ahead = self.ahead.as_ref();
        let can_be_copied = |own: &AheadBuffer| own.last.is_none() && own.bytes.len() <= bytes_max;
        self.ended && ahead.is_none_or(|own| can_be_copied(own))
    }

    /// Reports the bytes and trailers that are read to `exchange`.
    pub fn observe(&mut self, exchange: Option<Arc<Exchange>>) {
        self.exchange = exchange;
    }

    /// Returns whether there is nothing left to send.
    pub fn is_empty(&self) -> bool {
        self.ended && self.ahead.as_ref().is_none_or(|ahead| ahead.is_empty())
    }

    /// Returns the frame, unless it is the error of an HTTP/1 body that is truncated by the end of input. That client
    /// is gone: the connection task ends the request, and the error is not reported meanwhile. Over HTTP/2 the
    /// stream's reset ends the request.
    fn unless_gone(
        &mut self,
        frame: Option<Result<Frame<Bytes>, ClientBodyError>>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        if let (Some(exchange), Some(Ok(frame))) = (&self.exchange, &frame) {
            exchange.add_request_bytes(frame.data_ref().map_or(0, Bytes::len));
            if let Some(trailers) = frame.trailers_ref() {
                exchange.note_request_trailers(trailers);
            }
        }
        match &frame {
            Some(Err(error)) if self.connection.is_some() && is_end_of_input(error) => {
                self.gone = true;
                Poll::Pending
            }
            _ => Poll::Ready(frame),
        }
    }

    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(&mut *incoming).poll_frame(cx);
        let is_data = |frame: &Result<Frame<Bytes>, _>| frame.as_ref().is_ok_and(Frame::is_data);
        let has_data = matches!(&frame, Poll::Ready(Some(frame)) if is_data(frame));
        // The framing has been followed up to here for all bytes that hyper has read of this body.
        let connection = self.connection.as_ref().filter(|_| !has_data);
        if let Some(connection) = connection.filter(|connection| connection.is_malformed()) {
            // The rest of the client's input is read and discarded when the connection is closed.
            self.ended = true;
            connection.note_body_unread();
            return Poll::Ready(Some(Err(ClientBodyError::Chunks)));
        }
        let frame = ready!(frame);
        let is_last =
            |frame: &Result<Frame<Bytes>, _>| frame.as_ref().is_ok_and(Frame::is_trailers);
        self.ended = frame.as_ref().is_none_or(is_last) || incoming.is_end_stream();
        let frame = frame.map(|frame| frame.map(clean).map_err(ClientBodyError::from));
        Poll::Ready(frame)
    }

    /// Reads ahead while the request waits, up to the limits of the request and of `account`. The end of input follows
    /// the body in the socket, so that a client that has left is only detected if the body is read.
    pub fn read_ahead(&mut self, account: &Arc<ReadAhead>, cx: &mut Context<'_>) {
        while !self.ended && self.ahead.as_ref().is_none_or(|ahead| ahead.has_room()) {
            let Poll::Ready(frame) = self.poll_incoming(cx) else {
                return;
            };
            let Some(frame) = frame else { return };
            let new = || Box::new(AheadBuffer::new(account));
            let ahead = self.ahead.get_or_insert_with(new);
            ahead.push(frame);
        }
    }
}

impl ClientBody {
    fn poll_bytes(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        if self.gone {
            return Poll::Pending;
        }
        if let Some(loan) = &self.lent {
            let is_held = !loan.hold.released.load(Ordering::Relaxed);
            if is_held || loan.hold.answered.load(Ordering::Relaxed) {
                // The driver of the connection polls again after either.
                return Poll::Pending;
            }
            let Some(body) = loan.take() else {
                return Poll::Pending;
            };
            *self = body;
        }
        if let Some((hold, limit)) = &mut self.hold {
            if hold.answered.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            if !hold.released.load(Ordering::Relaxed) {
                ready!(limit.as_mut().poll(cx));
            }
            self.hold = None;
        }
        if self.burst >= BURST_MAX {
            self.burst = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(transfer) = &self.transfer
            && transfer.poll_room(None, cx).is_pending()
        {
            self.burst = 0;
            return Poll::Pending;
        }
        if let Some(frame) = self.ahead.as_mut().and_then(|ahead| ahead.pop()) {
            return self.unless_gone(Some(frame));
        }
        // All bytes read ahead have been passed on, so the account is released.
        self.ahead = None;
        if self.ended {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = self.poll_incoming(cx) else {
            self.burst = 0;
            return Poll::Pending;
        };
        self.burst += 1;
        self.unless_gone(frame)
    }
}

impl Body for ClientBody {
    type Data = Piece;
    type Error = ClientBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, ClientBodyError>>> {
        let frame = ready!(self.poll_bytes(cx));
        let charge = |bytes| match &self.transfer {
            Some(transfer) => transfer.piece(bytes),
            None => Piece::free(bytes),
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(charge))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty() && !self.gone
    }

    fn size_hint(&self) -> SizeHint {
        match &self.incoming {
            _ if self.ahead.is_some() || self.lent.is_some() => SizeHint::default(),
            Some(incoming) => incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// Removes fields from trailers that must not be sent there.
fn clean(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            headers::remove_bad_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// Returns whether the error is an end of input within the body.
fn is_end_of_input(error: &ClientBodyError) -> bool {
    let ClientBodyError::Hyper(error) = error else {
        return false;
    };
    error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let Some(transfer) = &self.transfer {
            // The connection's next request has its own account.
            transfer.detach();
        }
        if !self.ended
            && let Some(connection) = &self.connection
        {
            connection.note_body_unread();
        }
    }
}
