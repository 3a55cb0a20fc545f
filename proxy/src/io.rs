//! I/O of a client connection, shared by hyper and the connection task.
//!
//! hyper reads and writes. The connection task must detect the end of input at any time, also while hyper does not
//! read (see [`crate::connection`]), so both share the socket's write half (see [`crate::socket`]).
//!
//! hyper sends trailers on HTTP/1 only if the request has `TE: trailers`, and only announced ones; Knative always
//! sends them. So the response body passes its trailers to [`ConnectionState`], waits until all bytes before them are
//! written, and ends. hyper then writes the terminator `0\r\n\r\n`, which is replaced here by one with the trailers.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::clock::Clock;
use crate::frames::{Frames, GOAWAY_BYTES, Http2State};
use crate::framing::{BodyFraming, Framing};
use crate::socket::{ReadSize, Socket};
use crate::tls::Negotiated;
use crate::wire::Wire;

const TERMINATOR: &[u8] = b"0\r\n\r\n";

/// Shared state of one HTTP/1 connection.
#[derive(Debug)]
pub struct ConnectionState {
    /// Whether a request is being served: from its head until hyper has its whole response.
    serving: AtomicBool,
    /// Whether a head has begun and is not complete, as tracked by [`Framing`].
    within_head: AtomicBool,
    /// Whether the body of the last request was not read to its end.
    body_unread: AtomicBool,
    /// Whether the framing of a chunked body was ambiguous between parsers.
    malformed: AtomicBool,
    /// Whether the connection has become a tunnel.
    upgraded: AtomicBool,
    framing: Mutex<Framing>,
    trailers: Mutex<Trailers>,
    /// Bound on one read.
    read_size: Arc<ReadSize>,
}

#[derive(Debug, Default)]
enum Trailers {
    #[default]
    None,
    /// Encoded trailers, waiting until all bytes before them are written, and the waker of the response body.
    Queued(Bytes, Waker),
    /// Encoded trailers, with all bytes before them written.
    Flushed(Bytes),
    /// Encoded trailers of a body that has ended, so that the next bytes from hyper are the terminator.
    Ending(Bytes),
    /// Rest of the encoded trailers, which are being written in place of the terminator.
    Writing(Bytes),
}

/// Guard that marks the connection as serving a request until it is dropped.
#[derive(Debug)]
pub struct Serving(Arc<ConnectionState>);

impl ConnectionState {
    /// Creates the state of a new connection, which waits for its first request head.
    pub fn new(read_size: Arc<ReadSize>) -> Arc<Self> {
        Arc::new(Self {
            read_size,
            serving: AtomicBool::new(false),
            within_head: AtomicBool::new(true),
            body_unread: AtomicBool::new(false),
            malformed: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
            framing: Mutex::new(Framing::new()),
            trailers: Mutex::default(),
        })
    }

    /// Notes that a request head is complete, with this framing of its body.
    pub(crate) fn begin(self: &Arc<Self>, body: BodyFraming) -> Serving {
        self.serving.store(true, Ordering::Relaxed);
        self.body_unread.store(false, Ordering::Relaxed);
        self.follow(|framing| framing.begin(body));
        Serving(Arc::clone(self))
    }

    /// Returns the bound on one read of the connection.
    pub fn read_size(&self) -> Arc<ReadSize> {
        Arc::clone(&self.read_size)
    }

    /// Follows the framing of received bytes, unless the connection is a tunnel.
    fn note_read(&self, bytes: &[u8]) {
        if !self.is_upgraded() {
            self.follow(|framing| framing.read(bytes));
        }
    }

    fn follow(&self, step: impl FnOnce(&mut Framing)) {
        let mut framing = self.framing.lock().unwrap_or_else(PoisonError::into_inner);
        step(&mut framing);
        let is_within_head = framing.is_within_head();
        self.within_head.store(is_within_head, Ordering::Relaxed);
        if framing.is_malformed() {
            self.malformed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether a request is being served.
    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Relaxed)
    }

    /// Returns whether the client is sending a head and no request is being served. The time limit of a pipelined head
    /// only starts when the request before it is answered.
    pub fn is_reading_head(&self) -> bool {
        self.within_head.load(Ordering::Relaxed) && !self.is_serving()
    }

    /// Returns whether a chunked body was malformed, so that nothing after it may be read as a request.
    pub fn is_malformed(&self) -> bool {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Notes that the body of the current request will not be read to its end.
    pub fn note_body_unread(&self) {
        self.body_unread.store(true, Ordering::Relaxed);
    }

    /// Returns whether the body of the last request was not read to its end.
    pub fn has_body_unread(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed)
    }

    /// Notes that the connection is a tunnel from here on.
    pub fn note_upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection has become a tunnel.
    pub fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Queues the encoded trailers of the current response.
    pub fn queue_trailers(&self, encoded: Bytes, cx: &Context<'_>) {
        *self.lock() = Trailers::Queued(encoded, cx.waker().clone());
    }

    /// Waits until all bytes before the trailers are written. The body must end as soon as this is ready.
    pub fn poll_trailers(&self, cx: &Context<'_>) -> Poll<()> {
        let mut trailers = self.lock();
        match std::mem::take(&mut *trailers) {
            Trailers::Flushed(encoded) => {
                *trailers = Trailers::Ending(encoded);
                Poll::Ready(())
            }
            Trailers::Queued(encoded, _) => {
                *trailers = Trailers::Queued(encoded, cx.waker().clone());
                Poll::Pending
            }
            other => {
                *trailers = other;
                Poll::Ready(())
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Trailers> {
        self.trailers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_flushed(&self) {
        let mut trailers = self.lock();
        if let Trailers::Queued(..) = *trailers
            && let Trailers::Queued(encoded, waker) = std::mem::take(&mut *trailers)
        {
            *trailers = Trailers::Flushed(encoded);
            drop(trailers);
            waker.wake();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.store(false, Ordering::Relaxed);
    }
}

/// The stream that hyper reads from and writes to.
#[derive(Debug)]
pub(crate) struct ClientIo {
    transport: Transport,
    protocol: Protocol,
    /// Bytes that were already read from the transport to detect the protocol.
    prefix: Bytes,
}

/// A GOAWAY frame, or `None` while a frame to the client is only partly written.
type Goaway = Option<[u8; GOAWAY_BYTES]>;

/// Observer of the bytes of a connection, by protocol.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// HTTP/1, with the shared state of the connection.
    Http1(Arc<ConnectionState>),
    /// HTTP/2, with the tracker of its frames and the shared state of the connection.
    Http2(Box<Frames>, Arc<Http2State>, Clock),
}

impl Protocol {
    fn note_read(&mut self, bytes: &[u8]) {
        match self {
            Self::Http1(state) => state.note_read(bytes),
            Self::Http2(frames, state, clock) => frames.read(bytes, state, || clock.now()),
        }
    }

    fn note_written(&mut self, bytes: &[u8]) {
        match self {
            Self::Http1(_) => {}
            Self::Http2(frames, ..) => frames.wrote(bytes),
        }
    }

    /// Returns the GOAWAY frame that ends a flooded connection, or `None` if the connection is to continue.
    fn goaway(&self) -> Option<Goaway> {
        match self {
            Self::Http2(frames, state, _) if state.is_flooded() => Some(frames.goaway()),
            _ => None,
        }
    }
}

/// Transport of a client connection, with TLS or without.
pub(crate) type Transport = Wire<TlsStream<Socket>>;

impl Transport {
    /// Returns the negotiated TLS parameters, or `None` for a plain connection.
    pub(crate) fn negotiated(&self) -> Option<Negotiated> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(Negotiated::of(stream.get_ref().1)),
        }
    }
}

impl ClientIo {
    /// Creates the stream of a transport from which `prefix` was already read.
    pub(crate) const fn new(transport: Transport, protocol: Protocol, prefix: Bytes) -> Self {
        Self {
            transport,
            protocol,
            prefix,
        }
    }

    /// Writes the queued trailers in place of the terminator at the beginning of `next`. Returns `None` if no trailers are
    /// queued.
    fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
        next: &[u8],
    ) -> Poll<Option<io::Result<usize>>> {
        let Protocol::Http1(state) = &self.protocol else {
            return Poll::Ready(None);
        };
        let mut trailers = state.lock();
        if let Trailers::Ending(encoded) = &*trailers {
            if !next.starts_with(TERMINATOR) {
                debug_assert!(false, "the end of a body is followed by its terminator");
                *trailers = Trailers::None;
                return Poll::Ready(None);
            }
            *trailers = Trailers::Writing(encoded.clone());
        }
        let Trailers::Writing(encoded) = &mut *trailers else {
            return Poll::Ready(None);
        };
        while !encoded.is_empty() {
            match ready!(Pin::new(&mut self.transport).poll_write(cx, encoded)) {
                Ok(n) => encoded.advance(n),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        *trailers = Trailers::None;
        Poll::Ready(Some(Ok(TERMINATOR.len())))
    }
}

impl ClientIo {
    /// Writes the GOAWAY and shuts down the transport. Pending until all earlier bytes are written.
    fn poll_goodbye(&mut self, cx: &mut Context<'_>, goaway: Goaway) -> Poll<()> {
        // Within a frame, hyper waits for the socket, and reads again once it has written the rest.
        let Some(goaway) = goaway else {
            return Poll::Pending;
        };
        let mut transport = Pin::new(&mut self.transport);
        // The connection ends even if the write fails.
        let _written = ready!(transport.as_mut().poll_write(cx, &goaway));
        let _ended = transport.as_mut().poll_shutdown(cx);
        Poll::Ready(())
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(goaway) = self.protocol.goaway() {
            ready!(self.poll_goodbye(cx, goaway));
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let prefixed = self.prefix.len().min(buf.remaining());
        if prefixed > 0 {
            let begin = self.prefix.split_to(prefixed);
            buf.put_slice(&begin);
        }
        // The prefix is returned together with further bytes, since hyper would double its buffer after a short read.
        match Pin::new(&mut self.transport).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {}
            // The prefix alone is a valid read; the next read returns the pending state or the error.
            _ if prefixed > 0 => {}
            not_read => return not_read,
        }
        if buf.filled().len() > before {
            self.protocol.note_read(&buf.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(done) = ready!(self.poll_trailers(cx, buf)) {
            return Poll::Ready(done);
        }
        let written = ready!(Pin::new(&mut self.transport).poll_write(cx, buf))?;
        self.protocol.note_written(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs
            .iter()
            .find(|buf| !buf.is_empty())
            .map_or(&[][..], |buf| buf);
        if let Some(done) = ready!(self.poll_trailers(cx, first)) {
            return Poll::Ready(done);
        }
        let written = ready!(Pin::new(&mut self.transport).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let taken = left.min(buf.len());
            self.protocol.note_written(&buf[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Flushes the transport, and releases queued trailers: hyper flushes when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.transport).poll_flush(cx))?;
        if let Protocol::Http1(state) = &self.protocol {
            state.on_flushed();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}
