//! Body type of all responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};

use crate::buffered::Piece;
use crate::exchange::Exchange;
use crate::relay::{BodyError, PolledFrame, Relay, UpstreamSlot};

/// The body of a response: the proxy's own, or one relayed from the upstream, at which the request holds a slot of type
/// `P`.
#[derive(Debug)]
pub struct ProxyBody<P = ()> {
    inner: Inner<P>,
    /// Observation of the request; `None` if it is not observed.
    exchange: Option<Arc<Exchange>>,
}

#[derive(Debug)]
enum Inner<P> {
    Full(Option<Bytes>),
    Relay(Box<Relay<P>>),
}

impl<P: UpstreamSlot> ProxyBody<P> {
    const fn of(inner: Inner<P>) -> Self {
        Self {
            inner,
            exchange: None,
        }
    }

    /// Creates a body without bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self::of(Inner::Full(None))
    }

    /// Creates a body of these bytes.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::of(Inner::Full(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    /// Creates a body that is relayed from the upstream.
    pub const fn relay(relay: Box<Relay<P>>) -> Self {
        Self::of(Inner::Relay(relay))
    }

    /// Returns the first bytes without consuming them, or no bytes if the body is empty.
    ///
    /// # Errors
    /// Returns an error if the response breaks off before its first bytes.
    pub async fn first_bytes(&mut self) -> Result<Bytes, BodyError> {
        match &mut self.inner {
            Inner::Full(bytes) => Ok(bytes.clone().unwrap_or_default()),
            Inner::Relay(relay) => relay.first_bytes().await,
        }
    }
}

impl<P: UpstreamSlot> ProxyBody<P> {
    /// Reports the bytes that are passed on, and the end of the body, to `exchange`. `head_only` means that the body is
    /// never polled.
    pub fn observe(&mut self, exchange: Arc<Exchange>, head_only: bool) {
        if head_only || self.is_end_stream() {
            exchange.complete();
        }
        self.exchange = Some(exchange);
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        match &mut self.inner {
            Inner::Full(bytes) => Poll::Ready(
                bytes
                    .take()
                    .map(|bytes| Ok(Frame::data(Piece::free(bytes)))),
            ),
            Inner::Relay(relay) => relay.poll_frame(cx),
        }
    }
}

impl<P: UpstreamSlot> Body for ProxyBody<P> {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let polled = self.poll_inner(cx);
        if let (Some(exchange), Poll::Ready(frame)) = (&self.exchange, &polled) {
            match frame {
                Some(Ok(frame)) => {
                    exchange
                        .add_response_bytes(frame.data_ref().map_or(0, |piece| piece.remaining()));
                    if self.is_end_stream() {
                        exchange.complete();
                    }
                }
                Some(Err(_)) => exchange.break_off(),
                None => exchange.complete(),
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Full(bytes) => bytes.is_none(),
            Inner::Relay(relay) => relay.has_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Full(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Inner::Relay(relay) => relay
                .bytes_left()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
