//! The client's side of a connection, as hyper and the connection task share it.
//!
//! hyper owns reading and writing. Beside it the connection task must see the end of input at any time,
//! also while nobody reads (see [`crate::connection`]), so both hold the socket's writing half (see
//! [`crate::socket`]).
//!
//! hyper sends trailers on HTTP/1 only if the request said `TE: trailers`, and only announced ones; Knative
//! sends them always. So the response body hands its trailers to [`ConnectionState`], waits until all before
//! them has been written, and ends; the terminator `0\r\n\r\n` that hyper then writes is the next thing to
//! pass here, and is replaced by one with the trailers.

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

/// What the parts of one HTTP/1 connection know of each other.
#[derive(Debug)]
pub struct ConnectionState {
    /// A request is being served: from its head until its response has been handed to hyper whole.
    serving: AtomicBool,
    /// What [`Framing`] says: a head has begun and is not complete.
    within_head: AtomicBool,
    /// A request's body was not read to its end.
    body_unread: AtomicBool,
    /// A chunked body was framed in a way that other parsers read differently.
    malformed: AtomicBool,
    /// The connection has become a tunnel.
    upgraded: AtomicBool,
    framing: Mutex<Framing>,
    trailers: Mutex<Trailers>,
    /// The bound on one read.
    read_size: Arc<ReadSize>,
}

#[derive(Debug, Default)]
enum Trailers {
    #[default]
    None,
    /// Waiting until all before them is written.
    Queued(Bytes, Waker),
    /// All before them is written.
    Flushed(Bytes),
    /// The body has ended: the next bytes from hyper are the terminator.
    Ending(Bytes),
    /// This is being written in the terminator's place.
    Writing(Bytes),
}

/// A request is being served as long as this lives.
#[derive(Debug)]
pub struct Serving(Arc<ConnectionState>);

impl ConnectionState {
    /// A new connection: its first request head is awaited.
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

    /// A request head is complete, and its body is framed so.
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

    /// Bytes have come.
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

    pub fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Relaxed)
    }

    /// The client is under way with a head, and with nothing else: one that follows a request being served has time
    /// until that is answered.
    pub fn is_reading_head(&self) -> bool {
        self.within_head.load(Ordering::Relaxed) && !self.is_serving()
    }

    /// Returns whether a chunked body was malformed, so that nothing behind it may be read as a request.
    pub fn is_malformed(&self) -> bool {
        self.malformed.load(Ordering::Relaxed)
    }

    pub fn note_body_unread(&self) {
        self.body_unread.store(true, Ordering::Relaxed);
    }

    pub fn has_body_unread(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed)
    }

    /// Its bytes are a tunnel's from here on.
    pub fn note_upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Hands over the encoded trailers of the response under way.
    pub fn queue_trailers(&self, encoded: Bytes, cx: &Context<'_>) {
        *self.lock() = Trailers::Queued(encoded, cx.waker().clone());
    }

    /// Ready when everything before the trailers is written: then the body must end at once.
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

/// What hyper reads from and writes to.
#[derive(Debug)]
pub(crate) struct ClientIo {
    transport: Transport,
    protocol: Protocol,
    /// Read from the transport already, to see which protocol it speaks.
    prefix: Bytes,
}

/// A GOAWAY, if there is a place for it.
type Goaway = Option<[u8; GOAWAY_BYTES]>;

/// What is noted of the bytes that pass.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// See [`ConnectionState`].
    Http1(Arc<ConnectionState>),
    /// See [`Frames`].
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

    /// Returns what ends a connection whose client sends frames that ask for nothing without end.
    fn goaway(&self) -> Option<Goaway> {
        match self {
            Self::Http2(frames, state, _) if state.is_flooded() => Some(frames.goaway()),
            _ => None,
        }
    }
}

/// What carries a client's bytes.
pub(crate) type Transport = Wire<TlsStream<Socket>>;

impl Transport {
    /// Returns what TLS has agreed on, if there is any.
    pub(crate) fn negotiated(&self) -> Option<Negotiated> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(Negotiated::of(stream.get_ref().1)),
        }
    }
}

impl ClientIo {
    /// A transport of which `prefix` was read already.
    pub(crate) const fn new(transport: Transport, protocol: Protocol, prefix: Bytes) -> Self {
        Self {
            transport,
            protocol,
            prefix,
        }
    }

    /// Writes the trailers in place of the terminator that `next` begins with. `None`: nothing to replace.
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
    /// Says why the connection ends. Pending while the client does not take what stands before that.
    fn poll_goodbye(&mut self, cx: &mut Context<'_>, goaway: Goaway) -> Poll<()> {
        // In the midst of a frame hyper waits for the socket, and reads again when it has written the rest.
        let Some(goaway) = goaway else {
            return Poll::Pending;
        };
        let mut transport = Pin::new(&mut self.transport);
        // Whether it was written or not, the connection ends.
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
        // Together with what follows: hyper would double its buffer after a read of a few bytes.
        match Pin::new(&mut self.transport).poll_read(cx, buf) {
            Poll::Ready(Ok(())) => {}
            // The first bytes stand by themselves; who reads again hears what became of the rest.
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

    /// hyper flushes when it has nothing left to write.
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
