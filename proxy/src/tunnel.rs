//! What follows a 101: bytes both ways until both sides have ended or one breaks off, or a limit strikes.

use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::relay::InFlight;
use crate::timeouts::Timeouts;
use crate::upstream::UpstreamWire;

/// A tunnel about to open.
#[derive(Debug)]
pub struct Tunnel<P> {
    /// The client's side.
    pub client: OnUpgrade,
    /// The upstream's side.
    pub upstream: UpstreamWire,
    /// What the upstream sent with its 101.
    pub early: Bytes,
    /// What the request holds: it is kept to the end.
    pub in_flight: InFlight<P>,
    /// The limits.
    pub timeouts: Timeouts,
}

impl<P> Tunnel<P> {
    /// Carries bytes until the tunnel ends.
    pub async fn run(self) {
        let _in_flight = self.in_flight;
        // The connection task hands the client's side over once the 101 is written.
        let Ok(client) = self.client.await else {
            return;
        };
        let mut client = TokioIo::new(client);
        let activity = Activity::new();
        let mut upstream = Watched {
            early: self.early,
            inner: self.upstream,
            activity: Arc::clone(&activity),
        };
        let mut carried = pin!(tokio::io::copy_bidirectional(&mut client, &mut upstream));
        loop {
            let (heard, last) = activity.read();
            let limit = self.timeouts.tunnel(heard, last);
            tokio::select! {
                // A side that breaks off ends the tunnel as one that closes does.
                _ended = &mut carried => return,
                () = tokio::time::sleep_until(limit) => {
                    let (heard, last) = activity.read();
                    if Instant::now() >= self.timeouts.tunnel(heard, last) {
                        return;
                    }
                }
            }
        }
    }
}

/// When bytes last passed, and whether any came from the upstream.
#[derive(Debug)]
struct Activity(Mutex<(bool, Instant)>);

impl Activity {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((false, Instant::now()))))
    }

    fn note(&self, from_upstream: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = (state.0 || from_upstream, Instant::now());
    }

    fn read(&self) -> (bool, Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The upstream's side, with every byte noted.
#[derive(Debug)]
struct Watched {
    /// Came with the 101 and is read first.
    early: Bytes,
    inner: UpstreamWire,
    activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let n = self.early.len().min(buf.remaining());
            buf.put_slice(&self.early.split_to(n));
            self.activity.note(true);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.activity.note(true);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.activity.note(false);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
