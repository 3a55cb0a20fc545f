//! Tunnels after a 101: bytes in both directions until both sides have ended, one side fails, or a time limit expires.

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

/// A tunnel that is about to open.
#[derive(Debug)]
pub struct Tunnel<P> {
    /// The client's side, available once the 101 is written.
    pub client: OnUpgrade,
    /// The upstream's side of the tunnel.
    pub upstream: UpstreamWire,
    /// Bytes that the upstream sent right after its 101.
    pub early: Bytes,
    /// Resources of the request, which are held until the tunnel ends.
    pub in_flight: InFlight<P>,
    /// Time limits of the request, which apply to the tunnel.
    pub timeouts: Timeouts,
}

impl<P> Tunnel<P> {
    /// Copies bytes in both directions until the tunnel ends.
    pub async fn run(self) {
        let _in_flight = self.in_flight;
        // The connection task provides the client's side once the 101 is written.
        let Ok(client) = self.client.await else {
            return;
        };
        let mut client = TokioIo::new(client);
        let activity = Activity::new();
        let mut upstream = WatchedUpstream {
            early: self.early,
            inner: self.upstream,
            activity: Arc::clone(&activity),
        };
        let mut carried = pin!(tokio::io::copy_bidirectional(&mut client, &mut upstream));
        loop {
            let (heard, last) = activity.read();
            let limit = self.timeouts.tunnel(heard, last);
            tokio::select! {
                // An error on either side ends the tunnel.
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

/// Time of the last byte in either direction, and whether any byte came from the upstream.
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

/// The upstream's side, which notes the activity.
#[derive(Debug)]
struct WatchedUpstream {
    /// Bytes that arrived with the 101, which are read first.
    early: Bytes,
    inner: UpstreamWire,
    activity: Arc<Activity>,
}

impl AsyncRead for WatchedUpstream {
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

impl AsyncWrite for WatchedUpstream {
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
