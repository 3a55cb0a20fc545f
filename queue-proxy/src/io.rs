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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::frames::{Frames, Http2State};
use crate::socket::Socket;

const TERMINATOR: &[u8] = b"0\r\n\r\n";
const HEAD_END: &[u8; 4] = b"\r\n\r\n";
const UNKNOWN: u64 = u64::MAX;

/// What the parts of one HTTP/1 connection know of each other.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// A request is being served: from its head until its response has been handed to hyper whole.
    serving: AtomicBool,
    /// Bytes of the next request head have come, or the connection is new.
    reading_head: AtomicBool,
    /// A request's body was not read to its end.
    body_unread: AtomicBool,
    /// The connection has become a tunnel.
    upgraded: AtomicBool,
    /// Bytes that came behind the head of the request being served, or [`UNKNOWN`].
    tail: AtomicU64,
    /// The last four bytes that came.
    last: AtomicU32,
    trailers: Mutex<Trailers>,
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
pub(crate) struct Serving {
    connection: Arc<ConnectionState>,
    length: Option<u64>,
}

impl ConnectionState {
    /// A new connection: its first request head is awaited.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            reading_head: AtomicBool::new(true),
            ..Self::default()
        })
    }

    /// A request head is complete; `length` is that of its body, if it is stated.
    pub(crate) fn begin(self: &Arc<Self>, length: Option<u64>) -> Serving {
        self.serving.store(true, Ordering::Relaxed);
        self.reading_head.store(false, Ordering::Relaxed);
        self.body_unread.store(false, Ordering::Relaxed);
        Serving {
            connection: Arc::clone(self),
            length,
        }
    }

    /// The response has been handed to hyper whole. What the client has sent beyond its request is the
    /// beginning of the next head, whose time runs from here.
    fn end(&self, length: Option<u64>) {
        let tail = self.tail.swap(UNKNOWN, Ordering::Relaxed);
        let is_behind = match length {
            // A head, and the last piece of a chunked body, end with an empty line.
            _ if self.ends_blank() => false,
            Some(length) if tail != UNKNOWN => tail > length,
            _ => true,
        };
        if is_behind {
            self.reading_head.store(true, Ordering::Relaxed);
        }
        self.serving.store(false, Ordering::Relaxed);
    }

    /// Bytes have come.
    fn note_read(&self, bytes: &[u8]) {
        if self.is_upgraded() {
            return;
        }
        let before = self.last.load(Ordering::Relaxed);
        let last = bytes.iter().rev().take(4).rev();
        let last = last.fold(before, |last, byte| last << 8 | u32::from(*byte));
        self.last.store(last, Ordering::Relaxed);
        if self.is_serving() || self.has_body_unread() {
            let tail = self.tail.load(Ordering::Relaxed);
            if tail != UNKNOWN {
                self.tail
                    .store(tail + bytes.len() as u64, Ordering::Relaxed);
            }
            return;
        }
        self.reading_head.store(true, Ordering::Relaxed);
        // What stands behind the head belongs to the body.
        let tail = if self.ends_blank() {
            Some(0)
        } else {
            behind_head(before, bytes)
        };
        self.tail.store(tail.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// The last bytes that came are an empty line.
    fn ends_blank(&self) -> bool {
        self.last.load(Ordering::Relaxed) == u32::from_be_bytes(*HEAD_END)
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Relaxed)
    }

    pub(crate) fn is_reading_head(&self) -> bool {
        self.reading_head.load(Ordering::Relaxed)
    }

    pub(crate) fn note_body_unread(&self) {
        self.body_unread.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_body_unread(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed)
    }

    /// Its bytes are a tunnel's from here on.
    pub(crate) fn note_upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Hands over the encoded trailers of the response under way.
    pub(crate) fn queue_trailers(&self, encoded: Bytes, cx: &Context<'_>) {
        *self.lock() = Trailers::Queued(encoded, cx.waker().clone());
    }

    /// Ready when everything before the trailers is written: then the body must end at once.
    pub(crate) fn poll_trailers(&self, cx: &Context<'_>) -> Poll<()> {
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

/// How many of `bytes` stand behind the first empty line, which may have begun in the four bytes before them.
fn behind_head(before: u32, bytes: &[u8]) -> Option<u64> {
    let carried = HEAD_END.len() - 1;
    let mut joint = [0; 2 * (HEAD_END.len() - 1)];
    joint[..carried].copy_from_slice(&before.to_be_bytes()[1..]);
    let first = bytes.len().min(carried);
    joint[carried..carried + first].copy_from_slice(&bytes[..first]);
    let find = |bytes: &[u8]| {
        let mut windows = bytes.windows(HEAD_END.len());
        windows.position(|window| window == HEAD_END)
    };
    let end = match find(&joint[..carried + first]) {
        Some(at) => at + HEAD_END.len() - carried,
        None => find(bytes)? + HEAD_END.len(),
    };
    Some((bytes.len() - end) as u64)
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.connection.end(self.length);
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

/// What is noted of the bytes that pass.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// See [`ConnectionState`].
    Http1(Arc<ConnectionState>),
    /// See [`Frames`].
    Http2(Frames, Arc<Http2State>),
}

impl Protocol {
    fn note_read(&mut self, bytes: &[u8]) {
        match self {
            Self::Http1(state) => state.note_read(bytes),
            Self::Http2(frames, state) => frames.read(bytes, state),
        }
    }
}

/// What carries a client's bytes.
#[derive(Debug)]
pub(crate) enum Transport {
    /// The socket itself.
    Plain(Socket),
    /// TLS over it.
    Tls(Box<TlsStream<Socket>>),
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

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
        Pin::new(&mut self.transport).poll_write(cx, buf)
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
        Pin::new(&mut self.transport).poll_write_vectored(cx, bufs)
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

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request comes in these pieces and is answered; whether the next head counts as begun.
    fn begun_after(pieces: &[&[u8]], length: Option<u64>) -> bool {
        let state = ConnectionState::new();
        for piece in pieces {
            state.note_read(piece);
        }
        assert!(state.is_reading_head());
        drop(state.begin(length));
        state.is_reading_head()
    }

    #[test]
    fn a_whole_request_in_any_two_pieces_leaves_nothing_behind() {
        let get = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n";
        let post = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc";
        for at in 1..get.len() {
            assert!(!begun_after(&[&get[..at], &get[at..]], Some(0)), "{at}");
        }
        for at in 1..post.len() - 3 {
            assert!(!begun_after(&[&post[..at], &post[at..]], Some(3)), "{at}");
        }
        let bytes: Vec<&[u8]> = get.chunks(1).collect();
        assert!(!begun_after(&bytes, Some(0)));
    }

    #[test]
    fn bytes_behind_a_request_begin_the_next_head() {
        let more = b"GET / HTTP/1.1\r\nHost: t\r\n\r\nGE";
        for at in 1..more.len() - 2 {
            assert!(begun_after(&[&more[..at], &more[at..]], Some(0)), "{at}");
        }
    }

    #[test]
    fn a_body_that_comes_later_belongs_to_its_request() {
        let state = ConnectionState::new();
        state.note_read(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r");
        state.note_read(b"\na");
        let serving = state.begin(Some(3));
        state.note_read(b"bc");
        drop(serving);
        assert!(!state.is_reading_head());
    }
}
