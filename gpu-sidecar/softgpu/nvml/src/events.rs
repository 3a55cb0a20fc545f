//! Event sets: errors of GPUs as the server reports them, queued until a program waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;
use softgpu_wire::clock;
use softgpu_wire::config::Config;
use softgpu_wire::message::{Kind, Message, MessageError};

use crate::answer::{Answer, Return};
use crate::server::Server;
use crate::session;

/// `nvmlEventTypeXidCriticalError`, the kind of event of an Xid.
pub(crate) const XID: u64 = 8;
/// All kinds of events that can be registered. Memory errors are reported as Xids.
pub(crate) const KINDS: u64 = 1 | 2 | XID;

/// Interval at which a missing server is looked for.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Largest number of queued events of a set; the oldest are dropped.
const EVENTS_MAX: usize = 1024;

/// An error of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Xid {
    /// Index of the GPU, counted from 0.
    pub(crate) gpu: usize,
    /// Xid number of the vendor.
    pub(crate) number: u64,
}

/// An event set of the program.
#[derive(Debug, Default)]
pub(crate) struct EventSet {
    /// Registered kinds of events by GPU.
    registered: BTreeMap<usize, u64>,
    socket: Option<Arc<OwnedFd>>,
    waiting: VecDeque<Xid>,
}

impl EventSet {
    /// Adds a GPU's events of these kinds.
    pub(crate) fn register(&mut self, gpu: usize, kinds: u64) {
        *self.registered.entry(gpu).or_default() |= kinds;
    }

    /// Queues the events received from the server, and connects to it if necessary.
    pub(crate) fn collect(&mut self, server: &Server, config: &Config) {
        if let Some(socket) = self.socket.take() {
            loop {
                match Message::receive(&*socket, RecvFlags::DONTWAIT) {
                    Ok(message) => self.take(&message),
                    Err(MessageError::System(rustix::io::Errno::AGAIN)) => {
                        self.socket = Some(socket);
                        return;
                    }
                    Err(_) => break,
                }
            }
        }
        if let Some((socket, received)) = server.watch(config) {
            received.iter().for_each(|message| self.take(message));
            self.socket = Some(Arc::new(socket));
        }
    }

    fn take(&mut self, message: &Message) {
        let [gpu, number, ..] = message.words;
        let gpu = usize::try_from(gpu).unwrap_or(usize::MAX);
        let kinds = self.registered.get(&gpu).copied().unwrap_or_default();
        if message.kind == Kind::Inject && kinds & XID != 0 {
            if self.waiting.len() == EVENTS_MAX {
                self.waiting.pop_front();
            }
            self.waiting.push_back(Xid { gpu, number });
        }
    }
}

/// Blocks until an event of the set occurs; returns at once if one is queued. After an event by which a GPU is lost,
/// further waits for that GPU fail.
pub(crate) fn wait(set: u32, timeout: Duration) -> Answer<Xid> {
    let begin = Instant::now();
    loop {
        // The session's lock is not held while waiting.
        let socket = session::with(|session| {
            let own = session.collect(set)?;
            if let Some(xid) = own.waiting.pop_front() {
                return Ok(Err(xid));
            }
            let gpus: Vec<_> = own.registered.keys().copied().collect();
            let socket = own.socket.clone();
            gpus.into_iter().try_for_each(|gpu| session.check(gpu))?;
            Ok(Ok(socket))
        })?;
        let socket = match socket {
            Ok(socket) => socket,
            Err(xid) => return Ok(xid),
        };
        let rest = timeout.saturating_sub(begin.elapsed());
        if rest.is_zero() {
            return Err(Return::TIMEOUT);
        }
        sleep(socket.as_deref(), rest);
    }
}

/// Blocks until the socket is readable or the time has passed, without a socket for at most [`CONNECT_INTERVAL`].
fn sleep(socket: Option<&OwnedFd>, rest: Duration) {
    let mut sockets: Vec<_> = socket
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .into_iter()
        .collect();
    let most = if sockets.is_empty() {
        CONNECT_INTERVAL
    } else {
        rest
    };
    let nanos = u64::try_from(rest.min(most).as_nanos()).unwrap_or(u64::MAX);
    // The caller checks again, even after an interruption.
    let _woken = poll(&mut sockets, Some(&clock::timespec(device::Span(nanos))));
}
