//! A server, from the daemon's side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair,
};
use softgpu_wire::message::Message;
use softgpu_wire::place;

use super::peer::PeerId;
use crate::SERVER;
use crate::settings::Settings;

/// A server that is to end has to within this time, else it is killed.
const STOP_MAX: Duration = Duration::from_secs(2);
/// It has to answer within this time, else who asks is told that it does not.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has no number yet.
    Initializing,
    /// It takes clients.
    Active,
    /// Its clients have met a fatal fault; until the last of them is gone it takes none.
    Fault,
}

impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Initializing => "INITIALIZING",
            Self::Active => "ACTIVE",
            Self::Fault => "FAULT",
        })
    }
}

/// What was asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// The answer is for `ps`.
    ProcessList,
    /// The answer is for `get_device_client_list`.
    DeviceClientList,
    /// That a client ends.
    Terminate { client: u32 },
}

/// A question that it has not answered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    question: Question,
    /// None: who asked waits no more.
    asker: Option<PeerId>,
    until: Instant,
}

/// A client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) pid: u32,
    /// Its number among the server's.
    pub(super) id: u64,
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) is_multiuser: bool,
    pub(super) state: State,
    /// It takes no more clients and ends after the last.
    pub(super) is_shut: bool,
    /// As softgpu's server knows it.
    pub(super) number: u64,
    pub(super) settings: Settings,
    pub(super) clients: BTreeMap<PeerId, Client>,
    /// Front ends that wait until it is there.
    pub(super) starters: Vec<PeerId>,
    pub(super) socket: OwnedFd,
    child: Child,
    asked: VecDeque<Asked>,
    /// Clients that the fault has met.
    faulted: BTreeSet<PeerId>,
    next_client: u64,
    /// It is to end until then.
    killed_at: Option<Instant>,
}

impl Server {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        program: &Path,
        folder: Option<&Path>,
        uid: u32,
        is_multiuser: bool,
        settings: Settings,
    ) -> std::io::Result<Self> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut command = Command::new(program);
        if let Some(folder) = folder {
            command.env(place::VARIABLE, folder);
        }
        let child = command
            .arg0(SERVER)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            pid: child.id(),
            uid,
            is_multiuser,
            state: State::Initializing,
            is_shut: false,
            number: 0,
            settings,
            clients: BTreeMap::new(),
            starters: Vec::new(),
            socket,
            child,
            asked: VecDeque::new(),
            faulted: BTreeSet::new(),
            next_client: 0,
            killed_at: None,
        })
    }

    /// Whether it is for this user.
    pub(super) fn serves(&self, uid: u32) -> bool {
        self.is_multiuser || self.uid == uid
    }

    /// A client is let in.
    pub(super) fn admit(&mut self, peer: PeerId, pid: u32) {
        let id = self.next_client;
        self.next_client += 1;
        self.clients.insert(peer, Client { pid, id });
    }

    /// A client is gone; whether the fault is over by that.
    pub(super) fn leave(&mut self, peer: PeerId) -> bool {
        self.clients.remove(&peer);
        let is_last = self.faulted.remove(&peer) && self.faulted.is_empty();
        if is_last && self.state == State::Fault {
            self.state = State::Active;
        }
        is_last
    }

    /// Clients have met a fatal fault: those of these processes, or all where none is named.
    pub(super) fn fault(&mut self, pids: &[u32]) {
        let is_met = |client: &Client| pids.is_empty() || pids.contains(&client.pid);
        let met = self.clients.iter().filter(|(_, client)| is_met(client));
        self.faulted.extend(met.map(|(peer, _)| *peer));
        if !self.faulted.is_empty() {
            self.state = State::Fault;
        }
    }

    /// How many clients have met a fault.
    pub(super) fn faulted(&self) -> usize {
        self.faulted.len()
    }

    /// The PIDs of its clients, each once, in the order in which they came.
    pub(super) fn client_pids(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for client in self.clients.values() {
            if !pids.contains(&client.pid) {
                pids.push(client.pid);
            }
        }
        pids
    }

    /// Asks it something; whether it could be asked.
    pub(super) fn ask(&mut self, message: &Message, question: Question, asker: PeerId) -> bool {
        let sent = message.send(&self.socket, SendFlags::DONTWAIT);
        if sent.is_ok() {
            self.asked.push_back(Asked {
                question,
                asker: Some(asker),
                until: Instant::now() + ANSWER_MAX,
            });
        }
        sent.is_ok()
    }

    /// What was asked first, which has its answer now, and by whom.
    pub(super) fn answered(&mut self) -> Option<(Question, Option<PeerId>)> {
        let asked = self.asked.pop_front()?;
        Some((asked.question, asked.asker))
    }

    /// Who waits for it, and for nothing more: it is gone.
    pub(super) fn waiting(&mut self) -> Vec<PeerId> {
        let askers = self.asked.drain(..).filter_map(|asked| asked.asker);
        askers.chain(self.starters.drain(..)).collect()
    }

    /// Who has waited too long.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<PeerId> {
        let late = self.asked.iter_mut().filter(|asked| asked.until <= now);
        late.filter_map(|asked| asked.asker.take()).collect()
    }

    /// When somebody will have waited too long, or it is to be killed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let waits = self.asked.iter().filter(|asked| asked.asker.is_some());
        waits.map(|asked| asked.until).chain(self.killed_at).min()
    }

    /// Has it end.
    pub(super) fn stop(&mut self) {
        if self.killed_at.is_none() {
            self.killed_at = Some(Instant::now() + STOP_MAX);
            let _shut = shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Whether it is to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.killed_at.is_some()
    }

    /// Kills it if it should have ended.
    pub(super) fn kill_if_late(&mut self, now: Instant) {
        if self.killed_at.is_some_and(|at| at <= now) {
            self.killed_at = Some(now + STOP_MAX);
            let _killed = self.child.kill();
        }
    }

    /// Waits for its end, which has begun.
    pub(super) fn reap(mut self) -> Option<ExitStatus> {
        // Its socket is closed, so it ends or is dead; one that only closed the socket is not left alone.
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        let _killed = self.child.kill();
        self.child.wait().ok()
    }
}
