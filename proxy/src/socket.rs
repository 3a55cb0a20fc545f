//! A socket in halves: one owner reads and writes, and whoever holds the writing half by reference may look at
//! the socket meanwhile.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::buffered::FIRST_BYTES_MAX;

/// So many bytes are read in one turn of a task: they may be thousands of small things to look at, interim
/// responses without end among them.
const BURST_BYTES_MAX: usize = 128 * 1024;

/// How many bytes one read gives at most, of which one piece of a body is made; may be set at any time.
#[derive(Debug)]
pub struct ReadSize(AtomicUsize);

impl Default for ReadSize {
    fn default() -> Self {
        Self(AtomicUsize::new(FIRST_BYTES_MAX))
    }
}

impl ReadSize {
    /// Sets the bound for reads from now on. It should be less than the power of two above it: hyper doubles its
    /// buffer after a read that filled it.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bound, in bytes.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many bytes may still be read before something is complete. No bound, unless one is set.
#[derive(Debug)]
pub struct Budget(AtomicUsize);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Budget {
    /// So much, and no more.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Whatever comes.
    pub fn lift(&self) {
        self.set(usize::MAX);
    }

    /// Returns how many bytes may still be read.
    pub fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn spend(&self, bytes: usize) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left == usize::MAX {
            return true;
        }
        self.set(left.saturating_sub(bytes));
        bytes <= left
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Socket {
    read: Take<OwnedReadHalf>,
    write: Arc<OwnedWriteHalf>,
    /// Bytes read since something else had a turn.
    burst: usize,
    budget: Arc<Budget>,
    read_size: Arc<ReadSize>,
}

impl Socket {
    /// A connection's socket, and its writing half by reference.
    pub fn of(stream: TcpStream) -> (Self, Arc<OwnedWriteHalf>) {
        let (read, write) = stream.into_split();
        let write = Arc::new(write);
        let socket = Self {
            read: read.take(0),
            write: Arc::clone(&write),
            burst: 0,
            budget: Arc::default(),
            read_size: Arc::default(),
        };
        (socket, write)
    }

    /// The bound on what may be read.
    pub fn budget(&self) -> Arc<Budget> {
        Arc::clone(&self.budget)
    }

    /// Returns the bound on one read.
    pub fn read_size(&self) -> Arc<ReadSize> {
        Arc::clone(&self.read_size)
    }

    fn stream(&self) -> &TcpStream {
        (*self.write).as_ref()
    }

    /// Writes through a shared reference, waiting until the socket takes something.
    fn poll_write_with(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let stream = self.stream();
        loop {
            match write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(stream.poll_write_ready(cx))?;
                }
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.burst >= BURST_BYTES_MAX {
            self.burst = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let size = self.read_size.get();
        self.read.set_limit(size as u64);
        let polled = Pin::new(&mut self.read).poll_read(cx, buf);
        if !self.budget.spend(buf.filled().len() - before) {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        self.burst = if polled.is_ready() {
            self.burst + buf.filled().len() - before
        } else {
            0
        };
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A single piece, as a head without a body: the kernel does less for `send` than for `writev`.
        let mut pieces = bufs.iter().filter(|buf| !buf.is_empty());
        match (pieces.next(), pieces.next()) {
            (Some(only), None) => self.poll_write_with(cx, |stream| stream.try_write(only)),
            _ => self.poll_write_with(cx, |stream| stream.try_write_vectored(bufs)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The kernel needs none.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the writing direction; a socket that is closed already has no more to end.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(
            match SockRef::from(self.stream()).shutdown(std::net::Shutdown::Write) {
                Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
                _ => Ok(()),
            },
        )
    }
}
