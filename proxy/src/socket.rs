//! A socket split into halves: one owner reads and writes, and other holders of the write half can observe the socket
//! meanwhile.

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

/// Largest number of bytes read in one poll of a task, since they may be thousands of small messages to process, such as
/// endless interim responses.
const BURST_BYTES_MAX: usize = 128 * 1024;

/// Bound on the bytes of one read, of which one piece of a body is made. It may be changed at any time.
#[derive(Debug)]
pub struct ReadSize(AtomicUsize);

impl Default for ReadSize {
    fn default() -> Self {
        Self(AtomicUsize::new(FIRST_BYTES_MAX))
    }
}

impl ReadSize {
    /// Sets the bound for later reads, in bytes. It should be a little below a power of two, since hyper's buffer has such
    /// a size and doubles after a read that filled it.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bound, in bytes.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Remaining bytes that may be read before a message must be complete. Initially unlimited.
#[derive(Debug)]
pub struct Budget(AtomicUsize);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Budget {
    /// Sets the number of bytes that may be read from now on.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Removes the limit on the bytes that may be read.
    pub fn lift(&self) {
        self.set(usize::MAX);
    }

    /// Returns the number of bytes that may still be read; [`usize::MAX`] without a limit.
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

/// The owner's side of a socket, for reading and writing.
#[derive(Debug)]
pub struct Socket {
    read: Take<OwnedReadHalf>,
    write: Arc<OwnedWriteHalf>,
    /// Bytes read since the task last yielded.
    burst: usize,
    budget: Arc<Budget>,
    read_size: Arc<ReadSize>,
}

impl Socket {
    /// Splits a connection. Returns the owner's side, and the write half for observers.
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

    /// Returns the budget of bytes that may be read, for adjusting it.
    pub fn budget(&self) -> Arc<Budget> {
        Arc::clone(&self.budget)
    }

    /// Returns the bound on one read, for adjusting it.
    pub fn read_size(&self) -> Arc<ReadSize> {
        Arc::clone(&self.read_size)
    }

    fn stream(&self) -> &TcpStream {
        (*self.write).as_ref()
    }

    /// Writes through a shared reference. Pending until the socket accepts some bytes.
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
        // For a single buffer, such as a head without a body, `send` is cheaper than `writev`.
        let mut pieces = bufs.iter().filter(|buf| !buf.is_empty());
        match (pieces.next(), pieces.next()) {
            (Some(only), None) => self.poll_write_with(cx, |stream| stream.try_write(only)),
            _ => self.poll_write_with(cx, |stream| stream.try_write_vectored(bufs)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing, since a TCP socket has no user-space buffer.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Shuts down the write direction. Succeeds if the socket is already closed.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(
            match SockRef::from(self.stream()).shutdown(std::net::Shutdown::Write) {
                Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
                _ => Ok(()),
            },
        )
    }
}
