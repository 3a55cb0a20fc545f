//! A request's body on its way to the user container.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::buffered::{Buffered, Piece, Reserved, Transfer};
use crate::exchange::Exchange;
use crate::headers;
use crate::io::ConnectionState;
use crate::relay::BURST_MAX;

/// A client that waits for `100 Continue` is told to go on after this time, whatever the user container
/// says. Fixed by Knative.
const CONTINUE_MAX: Duration = Duration::from_secs(1);
/// A waiting request reads at most about this much of its body …
const READ_AHEAD_BYTES_MAX: usize = 1024 * 1024;
/// … and all of them together about this much.
const READ_AHEAD_TOTAL_BYTES_MAX: usize = 16 * 1024 * 1024;

/// See the [module](self).
#[derive(Debug)]
pub struct ClientBody {
    /// `None`: there never was one.
    incoming: Option<Incoming>,
    connection: Option<Arc<ConnectionState>>,
    /// What is held for the user container. `None`: there never was a body.
    transfer: Option<Arc<Transfer>>,
    hold: Option<(Arc<ContinueHold>, Pin<Box<Sleep>>)>,
    ahead: Option<Box<Ahead>>,
    /// The client has sent all of it.
    ended: bool,
    /// The input ended before the body did.
    gone: bool,
    /// Those who observe the request.
    exchange: Option<Arc<Exchange>>,
    /// Frames since something else had a turn.
    burst: u32,
}

/// Why a request's body cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum ClientBodyError {
    /// hyper cannot read it.
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    /// hyper reads on where RFC 9112 7.1 ends the message or allows nothing: what follows may be another request.
    #[error("the chunked body is not framed as RFC 9112 7.1 says")]
    Chunks,
}

/// What was read while the request waited.
#[derive(Debug)]
struct Ahead {
    account: Arc<ReadAhead>,
    held: Reserved,
    /// In one piece, however small the pieces were in which it came.
    bytes: BytesMut,
    /// How many bytes the account was charged.
    charged: usize,
    /// What came behind the bytes: trailers, or the error that ended the body.
    last: Option<Result<Frame<Bytes>, ClientBodyError>>,
}

/// The account of what all waiting requests have read ahead.
#[derive(Debug)]
pub struct ReadAhead {
    bytes: AtomicUsize,
    /// Of which it is a part.
    buffered: Arc<Buffered>,
}

impl ReadAhead {
    /// Returns an empty account.
    pub fn new(buffered: &Arc<Buffered>) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            buffered: Arc::clone(buffered),
        })
    }
}

/// Holds a body back until the user container wants it.
#[derive(Debug, Default)]
pub struct ContinueHold {
    released: AtomicBool,
    answered: AtomicBool,
}

impl ContinueHold {
    /// The user container said `100 Continue`.
    pub fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// It gave its final answer without having seen the body: the body is not sent any more.
    pub fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl Ahead {
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

impl Drop for Ahead {
    fn drop(&mut self) {
        self.account
            .bytes
            .fetch_sub(self.charged, Ordering::Relaxed);
    }
}

/// Empty, as what is left where a request has been taken from.
impl Default for ClientBody {
    fn default() -> Self {
        Self {
            incoming: None,
            connection: None,
            transfer: None,
            hold: None,
            ahead: None,
            ended: true,
            gone: false,
            exchange: None,
            burst: 0,
        }
    }
}

impl ClientBody {
    /// The body of a request. On HTTP/1, `connection` is told if it is not read to its end.
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
            ahead: None,
            gone: false,
            exchange: None,
            burst: 0,
        }
    }

    /// Holds the body back until the user container wants it or a second has passed.
    pub fn hold(&mut self) -> Arc<ContinueHold> {
        let hold = Arc::<ContinueHold>::default();
        self.hold = Some((
            Arc::clone(&hold),
            Box::pin(tokio::time::sleep(CONTINUE_MAX)),
        ));
        hold
    }

    /// Tells `exchange` what is read.
    pub fn observe(&mut self, exchange: Option<Arc<Exchange>>) {
        self.exchange = exchange;
    }

    /// There is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.ended && self.ahead.as_ref().is_none_or(|ahead| ahead.is_empty())
    }

    /// A body that is cut short by the end of input has no client any more: the connection task ends the
    /// request, and nothing is made of the error meanwhile. Over HTTP/2 the stream's reset does that.
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
        // All that hyper has taken for this body has been followed.
        let connection = self.connection.as_ref().filter(|_| !has_data);
        if let Some(connection) = connection.filter(|connection| connection.is_malformed()) {
            // Nothing more is read of it here; what the client still sends is, before the connection is closed.
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

    /// Reads on while the request waits. The end of input stands behind the body in the socket: unless the
    /// body is read, a client that has left is not noticed. What exceeds the bounds stays unread.
    pub fn read_ahead(&mut self, account: &Arc<ReadAhead>, cx: &mut Context<'_>) {
        while !self.ended && self.ahead.as_ref().is_none_or(|ahead| ahead.has_room()) {
            let Poll::Ready(frame) = self.poll_incoming(cx) else {
                return;
            };
            let Some(frame) = frame else { return };
            let ahead = self.ahead.get_or_insert_with(|| {
                Box::new(Ahead {
                    account: Arc::clone(account),
                    held: Reserved::none(&account.buffered),
                    bytes: BytesMut::new(),
                    charged: 0,
                    last: None,
                })
            });
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
        // What was read ahead has been handed on: the account is settled.
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
            _ if self.ahead.is_some() => SizeHint::default(),
            Some(incoming) => incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// Takes from trailers what is no business of theirs.
fn clean(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            headers::remove_bad_trailers(&mut trailers);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// Whether the input ended before the body did.
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
            // The connection's next request has a body of its own.
            transfer.detach();
        }
        if !self.ended
            && let Some(connection) = &self.connection
        {
            connection.note_body_unread();
        }
    }
}
