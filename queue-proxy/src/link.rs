//! The connection to the agent over which leases pass: it is made again for as long as the process runs.
//!
//! While there is no agent, a lease that the pod holds stays, and without one requests wait.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use policy::pool::queue::Window;
use protocol::queue::FromQueue;
use proxy::clock::Clock;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, send};
use tokio::io::unix::AsyncFd;

use crate::admission::Admission;
use crate::metrics::WeirMetrics;

/// Shortest and longest pause before the connection is made again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What the link needs.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: PathBuf,
    pub(crate) admission: Arc<Admission>,
    pub(crate) metrics: Option<Arc<WeirMetrics>>,
    pub(crate) clock: Clock,
}

/// Counts of requests over the window of M2.13, from counters that only grow.
#[derive(Debug, Default)]
struct Outcomes {
    window: Window,
    requests: u64,
    in_time: u64,
}

impl Link {
    /// Keeps a connection to the agent, and passes messages. Never returns.
    pub(crate) async fn run(self) {
        let mut outcomes = Outcomes::default();
        let (mut again, mut is_reported, mut pause) = (false, false, PAUSES.0);
        loop {
            match connect(&self.socket) {
                Ok(connection) => {
                    let (socket, begun) = (self.socket.display(), self.clock.now());
                    tracing::info!(%socket, again, "connected to the agent");
                    let inbox = self.admission.inbox();
                    inbox.set(Some(Arc::clone(connection.get_ref())));
                    let ended = self.serve(&connection, again, &mut outcomes).await;
                    inbox.set(None);
                    tracing::warn!(%socket, %ended, "the connection to the agent has ended: a lease that is held stays, and without one requests wait");
                    (again, is_reported) = (true, true);
                    if self.clock.now().since(begun).0 > 1_000_000_000 {
                        pause = PAUSES.0;
                    }
                }
                Err(error) if !is_reported => {
                    let socket = self.socket.display();
                    tracing::warn!(%socket, %error, "no agent answers at this socket: requests wait for one; does gpu-sidecar run on this node?");
                    is_reported = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Passes messages until the connection ends. Returns the reason.
    async fn serve(
        &self,
        connection: &AsyncFd<Arc<OwnedFd>>,
        again: bool,
        outcomes: &mut Outcomes,
    ) -> io::Error {
        let Some(hello) = self.admission.greet(again) else {
            return io::ErrorKind::Unsupported.into();
        };
        if let Err(error) = transmit(connection, &hello).await {
            return error;
        }
        loop {
            while let Some(message) = self.admission.next_message(self.outcomes(outcomes)) {
                if let Err(error) = transmit(connection, &message).await {
                    return error;
                }
            }
            tokio::select! {
                readable = connection.readable() => {
                    let read = readable.map(|mut ready| ready.try_io(|_| self.admission.read_messages()));
                    if let Err(error) | Ok(Ok(Err(error))) = read {
                        return self.admission.inbox().take_end().unwrap_or(error);
                    }
                }
                () = self.admission.changed() => {
                    if let Some(error) = self.admission.inbox().take_end() {
                        return error;
                    }
                }
            }
        }
    }

    /// Returns the counts over the window of M2.13.
    fn outcomes(&self, outcomes: &mut Outcomes) -> (u64, u64) {
        let Some(metrics) = &self.metrics else {
            return (0, 0);
        };
        let (requests, in_time) = metrics.outcomes();
        let now = self.clock.now();
        let new_in_time = in_time.saturating_sub(outcomes.in_time);
        let new_missed = requests
            .saturating_sub(outcomes.requests)
            .saturating_sub(new_in_time);
        (outcomes.requests, outcomes.in_time) = (requests, in_time);
        for _request in 0..new_in_time {
            outcomes.window.record(now, true);
        }
        for _request in 0..new_missed {
            outcomes.window.record(now, false);
        }
        outcomes.window.refresh(now);
        (outcomes.window.requests(), outcomes.window.in_time())
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe, for descriptors which are not owned; this one is"
)]
fn connect(path: &Path) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    AsyncFd::new(Arc::new(socket))
}

async fn transmit(connection: &AsyncFd<Arc<OwnedFd>>, message: &FromQueue) -> io::Result<()> {
    let mut writer = message.write();
    let bytes = writer.finish();
    loop {
        let mut ready = connection.writable().await?;
        let sent = ready.try_io(|socket| Ok(send(socket.get_ref(), bytes, SendFlags::NOSIGNAL)?));
        if let Ok(sent) = sent {
            return sent.map(|_bytes| ());
        }
    }
}
