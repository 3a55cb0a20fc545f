//! Event sets: the errors of GPUs that the server tells, kept until they are waited for.

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

/// An Xid: NVML's number of this kind of event.
pub(crate) const XID: u64 = 8;
/// All kinds that can be registered for. Errors of memory are told as Xids.
pub(crate) const KINDS: u64 = 1 | 2 | XID;

/// Where nobody listens, how often it is looked whether somebody does.
const LOOK: Duration = Duration::from_millis(50);
/// Events of a set that are kept, the latest ones.
const KEPT: usize = 1024;

/// Something went wrong with a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Xid {
    /// Which, counted from 0.
    pub(crate) gpu: usize,
    /// The vendor's number of what it was.
    pub(crate) number: u64,
}

/// An event set.
#[derive(Debug, Default)]
pub(crate) struct EventSet {
    /// Kinds of events by GPU.
    registered: BTreeMap<usize, u64>,
    socket: Option<Arc<OwnedFd>>,
    waiting: VecDeque<Xid>,
}

impl EventSet {
    /// From now on it gets these events of a GPU.
    pub(crate) fn register(&mut self, gpu: usize, kinds: u64) {
        *self.registered.entry(gpu).or_default() |= kinds;
    }

    /// Takes in what the server has told, and connects where it has not.
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
        if let Some((socket, told)) = server.watch(config) {
            told.iter().for_each(|message| self.take(message));
            self.socket = Some(Arc::new(socket));
        }
    }

    fn take(&mut self, message: &Message) {
        let [gpu, number, ..] = message.words;
        let gpu = usize::try_from(gpu).unwrap_or(usize::MAX);
        let kinds = self.registered.get(&gpu).copied().unwrap_or_default();
        if message.kind == Kind::Inject && kinds & XID != 0 {
            if self.waiting.len() == KEPT {
                self.waiting.pop_front();
            }
            self.waiting.push_back(Xid { gpu, number });
        }
    }
}

/// Waits until an event of the set comes: at once where one has come before. After an event that took a GPU away, this GPU is
/// lost for those who wait.
pub(crate) fn wait(set: u32, timeout: Duration) -> Answer<Xid> {
    let begin = Instant::now();
    loop {
        // The lock is not held while it is waited.
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

/// Until something is there to be received, or for this long; without a socket for [`LOOK`] at most.
fn sleep(socket: Option<&OwnedFd>, rest: Duration) {
    let mut sockets: Vec<_> = socket
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .into_iter()
        .collect();
    let most = if sockets.is_empty() { LOOK } else { rest };
    let nanos = u64::try_from(rest.min(most).as_nanos()).unwrap_or(u64::MAX);
    // Interrupted or not: whoever calls looks again.
    let _woken = poll(&mut sockets, Some(&clock::timespec(device::Span(nanos))));
}
