//! A server process, as the daemon sees it.

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
use softgpu_wire::softgpu_dir;

use super::peer::PeerId;
use crate::SERVER;
use crate::settings::Settings;

/// Largest time for a server to stop before it is killed.
const STOP_MAX: Duration = Duration::from_secs(2);
/// Largest time for a server to answer before its requester gets an error.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// State of a server, as `get_server_status` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The server has not registered yet.
    Initializing,
    /// The server is ready and admits clients.
    Active,
    /// A fatal fault has affected its clients; it admits none until the last of these is gone.
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

/// Kind of a request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Process list for `ps`.
    ProcessList,
    /// Process list for `get_device_client_list`.
    DeviceClientList,
    /// Termination of a client.
    Terminate { client: u32 },
}

/// A request without an answer so far.
#[derive(Clone, Copy, Debug)]
struct PendingQuestion {
    question: Question,
    /// Front end that waits for the answer; `None` if it no longer does.
    requester: Option<PeerId>,
    until: Instant,
}

/// A client of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) pid: u32,
    /// Number of the client within its server.
    pub(super) id: u64,
}

/// A running server process.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) is_multiuser: bool,
    pub(super) state: State,
    /// Set by `shutdown_server`: it admits no more clients and stops after the last.
    pub(super) is_shut: bool,
    /// Number assigned by softgpu's server.
    pub(super) number: u64,
    pub(super) settings: Settings,
    pub(super) clients: BTreeMap<PeerId, Client>,
    /// Front ends that wait until it is ready.
    pub(super) starters: Vec<PeerId>,
    pub(super) socket: OwnedFd,
    child: Child,
    questions: VecDeque<PendingQuestion>,
    /// Clients affected by a fault.
    faulted: BTreeSet<PeerId>,
    next_client: u64,
    /// Deadline after which a stopping server is killed.
    killed_at: Option<Instant>,
}

impl Server {
    /// Starts a server process.
    ///
    /// # Errors
    /// Fails when the process cannot be started.
    pub(super) fn start(
        program: &Path,
        folder: Option<&Path>,
        uid: u32,
        is_multiuser: bool,
        settings: Settings,
    ) -> std::io::Result<Self> {
        let (socket, server_socket) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut command = Command::new(program);
        if let Some(folder) = folder {
            command.env(softgpu_dir::VARIABLE, folder);
        }
        let child = command
            .arg0(SERVER)
            .stdin(Stdio::from(server_socket))
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
            questions: VecDeque::new(),
            faulted: BTreeSet::new(),
            next_client: 0,
            killed_at: None,
        })
    }

    /// Returns whether the server serves this user.
    pub(super) fn serves(&self, uid: u32) -> bool {
        self.is_multiuser || self.uid == uid
    }

    /// Adds an admitted client.
    pub(super) fn admit(&mut self, peer: PeerId, pid: u32) {
        let id = self.next_client;
        self.next_client += 1;
        self.clients.insert(peer, Client { pid, id });
    }

    /// Removes a client; returns whether a fault is over with it.
    pub(super) fn leave(&mut self, peer: PeerId) -> bool {
        self.clients.remove(&peer);
        let is_last = self.faulted.remove(&peer) && self.faulted.is_empty();
        if is_last && self.state == State::Fault {
            self.state = State::Active;
        }
        is_last
    }

    /// Marks clients as affected by a fatal fault: those of the given processes, or all if none is given.
    pub(super) fn fault(&mut self, pids: &[u32]) {
        let is_affected = |client: &Client| pids.is_empty() || pids.contains(&client.pid);
        let affected = self
            .clients
            .iter()
            .filter(|(_, client)| is_affected(client));
        self.faulted.extend(affected.map(|(peer, _)| *peer));
        if !self.faulted.is_empty() {
            self.state = State::Fault;
        }
    }

    /// Returns the number of clients affected by a fault.
    pub(super) fn faulted(&self) -> usize {
        self.faulted.len()
    }

    /// Returns the distinct PIDs of its clients, in order of admission.
    pub(super) fn client_pids(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for client in self.clients.values() {
            if !pids.contains(&client.pid) {
                pids.push(client.pid);
            }
        }
        pids
    }

    /// Sends a request; returns whether it could be sent.
    pub(super) fn ask(&mut self, message: &Message, question: Question, requester: PeerId) -> bool {
        let sent = message.send(&self.socket, SendFlags::DONTWAIT);
        if sent.is_ok() {
            self.questions.push_back(PendingQuestion {
                question,
                requester: Some(requester),
                until: Instant::now() + ANSWER_MAX,
            });
        }
        sent.is_ok()
    }

    /// Removes the oldest request, which is now answered; returns its kind and its requester.
    pub(super) fn answered(&mut self) -> Option<(Question, Option<PeerId>)> {
        let asked = self.questions.pop_front()?;
        Some((asked.question, asked.requester))
    }

    /// Removes and returns all front ends that wait for the server.
    pub(super) fn waiting(&mut self) -> Vec<PeerId> {
        let requesters = self.questions.drain(..).filter_map(|asked| asked.requester);
        requesters.chain(self.starters.drain(..)).collect()
    }

    /// Returns the requesters whose deadline has passed, and stops waiting for them.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<PeerId> {
        let late = self.questions.iter_mut().filter(|asked| asked.until <= now);
        late.filter_map(|asked| asked.requester.take()).collect()
    }

    /// Returns the earliest deadline of a request or of a stop.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let waits = self
            .questions
            .iter()
            .filter(|asked| asked.requester.is_some());
        waits.map(|asked| asked.until).chain(self.killed_at).min()
    }

    /// Stops the server by closing the connection.
    pub(super) fn stop(&mut self) {
        if self.killed_at.is_none() {
            self.killed_at = Some(Instant::now() + STOP_MAX);
            let _shut = shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Returns whether the server is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.killed_at.is_some()
    }

    /// Kills the server if its deadline to stop has passed.
    pub(super) fn kill_if_late(&mut self, now: Instant) {
        if self.killed_at.is_some_and(|at| at <= now) {
            self.killed_at = Some(now + STOP_MAX);
            let _killed = self.child.kill();
        }
    }

    /// Reaps the server process, which has closed its connection.
    pub(super) fn reap(mut self) -> Option<ExitStatus> {
        // It ends or is dead; one that merely closed its socket is killed.
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        let _killed = self.child.kill();
        self.child.wait().ok()
    }
}
