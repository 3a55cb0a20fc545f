//! The MPS daemon: a single thread that polls all connections.
//!
//! Clients are admitted strictly in order of arrival: one that waits for a server of its user holds up those behind it,
//! so that none starves while others come and go.

mod child;
mod commands;
mod peer;

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with};
use rustix::process::{Resource, getrlimit, setrlimit};
use softgpu_wire::message::{Kind, Message, MessageError, ProcessLine};
use softgpu_wire::softgpu_dir;

use crate::arguments::{Mode, Options};
use crate::devices::Devices;
use crate::launch::{self, READY};
use crate::log::{self, Log};
use crate::pipe::{self, PipeDirectory, PipeError};
use crate::server::CONNECTION_FAILED;
use crate::settings::{Percentage, Settings, parse_limit, parse_priority};
use crate::{report_error, timespec};
use child::{Server, State};
use peer::{Peer, PeerId, Role};

/// Largest number of clients at once, including waiting ones.
const CLIENTS_MAX: usize = 1024;
/// Largest number of front ends at once.
const FRONTS_MAX: usize = 64;
/// Largest number of connections that have not sent a request; the oldest is dropped for a further one.
const NEW_MAX: usize = 64;
/// Largest time for a connection to send its first request.
const NEW_SPAN: Duration = Duration::from_secs(5);
/// File descriptors reserved for directories, logs and servers.
const OTHER_FILES: usize = 64;
/// Pause in accepting connections when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest number of lines of an answer in the log.
const LOGGED_LINES: usize = 16;

/// `CUDA_ERROR_MPS_SERVER_NOT_READY`, sent to clients while a fault lasts or the daemon shuts down.
const SERVER_NOT_READY: u32 = 807;
/// `CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED`, sent to clients beyond the limit.
const MAX_CONNECTIONS_REACHED: u32 = 809;

/// A failure of the daemon.
#[derive(Debug, thiserror::Error)]
enum DaemonError {
    #[error("An instance of this daemon is already running")]
    Running,
    #[error("{0}")]
    Pipe(#[from] PipeError),
    #[error("cannot determine the path of this program: {0}")]
    Program(std::io::Error),
    #[error("cannot report that it listens: {0}")]
    Ready(std::io::Error),
    #[error("cannot wait for connections: {0}")]
    Wait(Errno),
}

/// A peer that waits for a server.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    /// A client to be admitted.
    Client(PeerId),
    /// A front end that starts a server.
    Starter {
        peer: PeerId,
        uid: u32,
        is_multiuser: bool,
    },
}

/// A shutdown of the daemon in progress.
#[derive(Debug)]
struct Quit {
    /// Deadline after which servers are stopped despite their clients.
    until: Option<Instant>,
    /// Front ends that wait for the shutdown.
    requesters: Vec<PeerId>,
}

/// Origin of an event.
#[derive(Clone, Copy, Debug)]
enum Source {
    Listener,
    Server(u32),
    Peer(PeerId),
}

/// State of the daemon.
#[derive(Debug)]
struct Daemon {
    pipe: PipeDirectory,
    lock: OwnedFd,
    listener: OwnedFd,
    accepts_at: Option<Instant>,
    log: Log,
    devices: Devices,
    folder: Option<PathBuf>,
    program: PathBuf,
    uid: u32,
    is_multiuser: bool,
    clients_max: usize,
    defaults: Settings,
    peers: BTreeMap<PeerId, Peer>,
    next_peer: u64,
    /// Stopping servers, followed by the current one.
    servers: Vec<Server>,
    waiters: VecDeque<Waiter>,
    quitting: Option<Quit>,
}

/// Runs the daemon until it is shut down.
pub(crate) fn main(options: &Options) -> ExitCode {
    let _named = rustix::thread::set_name(c"nvidia-cuda-mps");
    match Daemon::new(options).and_then(Daemon::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_error(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Raises the limit of open files, and returns the largest number of clients it allows.
fn raise_limits() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let mut raised = limit;
    raised.current = raised.maximum;
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => limit.current,
    };
    let files = files.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    });
    files
        .saturating_sub(FRONTS_MAX + NEW_MAX + OTHER_FILES)
        .clamp(1, CLIENTS_MAX)
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the defaults set by environment variables, and messages about ignored values.
fn defaults(devices: &Devices) -> (Settings, Vec<String>) {
    let mut settings = Settings::default();
    let mut wrong = Vec::new();
    let mut ignore = |name: &str, value: &str| wrong.push(format!("{name}={value}: ignored"));
    let name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    if let Some(value) = variable(name) {
        settings.percentage = Percentage::parse(&value);
        if settings.percentage.is_none() {
            ignore(name, &value);
        }
    }
    let name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    for one in variable(name).unwrap_or_default().split(',') {
        let limit = one.split_once('=').and_then(|(device, limit)| {
            Some((devices.find(device.trim())?, parse_limit(limit.trim())?))
        });
        match limit {
            Some((unit, bytes)) => settings.set_limit(unit, bytes),
            None if one.is_empty() => {}
            None => ignore(name, one),
        }
    }
    let name = "CUDA_MPS_CLIENT_PRIORITY";
    if let Some(value) = variable(name) {
        match parse_priority(&value) {
            Some(priority) => settings.priority = priority,
            None => ignore(name, &value),
        }
    }
    (settings, wrong)
}

impl Daemon {
    fn new(options: &Options) -> Result<Self, DaemonError> {
        let is_detached = options.mode == Mode::Detached;
        if is_detached {
            // Fails for a process group leader, which no terminal's signals reach either.
            let _leader = rustix::process::setsid();
        }
        let program = std::env::current_exe().map_err(DaemonError::Program)?;
        let pipe = PipeDirectory::create(&pipe::path())?;
        let lock = pipe.lock()?.ok_or(DaemonError::Running)?;
        let pid = std::process::id();
        let log_path = log::path();
        let mut log = Log::open(&log_path, pid, !is_detached);
        if !log.is_written() {
            report_error(&format!(
                "Warning: Failed writing log files to directory [{}]. No logs will be available.",
                log_path.display()
            ));
        }
        let folder = softgpu_dir::locate(program.parent())
            .map(|folder| std::path::absolute(&folder).unwrap_or(folder));
        let visible = variable("CUDA_VISIBLE_DEVICES");
        let devices = match &folder {
            Some(folder) => Devices::of(folder, visible.as_deref()),
            None => Ok(Devices::default()),
        };
        let devices = devices.unwrap_or_else(|error| {
            log.control(&format!("Cannot read the devices: {error}"));
            Devices::default()
        });
        let (defaults, wrong) = defaults(&devices);
        for wrong in wrong {
            log.control(&wrong);
        }
        log.control(&format!(
            "Starting control daemon using socket {}",
            pipe.socket_path().display()
        ));
        log.control(&format!(
            "To connect CUDA applications to this daemon, set env {}={}",
            pipe::VARIABLE,
            pipe.path().display()
        ));
        let clients_max = raise_limits();
        let listener = pipe.listen()?;
        pipe.write_pid(pid)?;
        if is_detached {
            let mut output = std::io::stdout();
            output
                .write_all(READY.as_bytes())
                .and_then(|()| output.flush())
                .and_then(|()| launch::release_output().map_err(Into::into))
                .map_err(DaemonError::Ready)?;
        }
        Ok(Self {
            pipe,
            lock,
            listener,
            accepts_at: None,
            log,
            devices,
            folder,
            program,
            uid: rustix::process::geteuid().as_raw(),
            is_multiuser: options.is_multiuser,
            clients_max,
            defaults,
            peers: BTreeMap::new(),
            next_peer: 0,
            servers: Vec::new(),
            waiters: VecDeque::new(),
            quitting: None,
        })
    }

    fn run(mut self) -> Result<(), DaemonError> {
        loop {
            self.advance();
            if self.quitting.is_some() && self.servers.is_empty() {
                self.end();
                return Ok(());
            }
            for (source, flags) in self.wait()? {
                match source {
                    Source::Listener => self.accept(),
                    Source::Server(pid) => self.receive_from_server(pid),
                    Source::Peer(id) => self.receive_from_peer(id, flags),
                }
            }
            self.expire();
        }
    }

    /// Releases the directory before the answer to `quit`, so that a next daemon can start at once.
    fn end(self) {
        let Self {
            pipe,
            lock,
            listener,
            mut log,
            mut peers,
            quitting,
            ..
        } = self;
        log.control("Exit");
        drop(listener);
        pipe.clear();
        drop(lock);
        for requester in quitting.map(|quit| quit.requesters).unwrap_or_default() {
            if let Some(peer) = peers.get_mut(&requester) {
                peer.answer("", true);
            }
        }
    }

    /// Blocks until a connection has an event or a deadline has passed.
    fn wait(&self) -> Result<Vec<(Source, PollFlags)>, DaemonError> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        if self.accepts_at.is_none() {
            sources.push(Source::Listener);
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        for server in &self.servers {
            sources.push(Source::Server(server.pid));
            fds.push(PollFd::new(&server.socket, PollFlags::IN));
        }
        for (id, peer) in &self.peers {
            let mut flags = PollFlags::RDHUP;
            if peer.may_be_read() {
                flags |= PollFlags::IN;
            }
            if peer.has_more() {
                flags |= PollFlags::OUT;
            }
            sources.push(Source::Peer(*id));
            fds.push(PollFd::new(&peer.socket, flags));
        }
        let timeout = self
            .deadline()
            .map(|at| timespec(at.saturating_duration_since(Instant::now())));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(DaemonError::Wait(error)),
        }
        let flags = fds.iter().map(PollFd::revents);
        Ok(sources
            .into_iter()
            .zip(flags)
            .filter(|(_, flags)| !flags.is_empty())
            .collect())
    }

    fn deadline(&self) -> Option<Instant> {
        let new = self.peers.values().filter_map(|peer| match peer.role {
            Role::New { until } => Some(until),
            _ => None,
        });
        let servers = self.servers.iter().filter_map(Server::deadline);
        let quit = self.quitting.as_ref().and_then(|quit| quit.until);
        new.chain(servers).chain(quit).chain(self.accepts_at).min()
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.accepts_at = self.accepts_at.filter(|at| *at > now);
        let late = |peer: &Peer| matches!(peer.role, Role::New { until } if until <= now);
        let late: Vec<_> = self.peers.iter().filter(|(_, peer)| late(peer)).collect();
        for id in late.into_iter().map(|(id, _)| *id).collect::<Vec<_>>() {
            self.log
                .control("Unable to read new connection type information");
            self.remove(id);
        }
        let mut overdue = Vec::new();
        for server in &mut self.servers {
            server.kill_if_late(now);
            for requester in server.overdue(now) {
                overdue.push((
                    requester,
                    format!("Server {} does not answer\n", server.pid),
                ));
            }
        }
        for (requester, text) in overdue {
            self.answer(requester, &text);
        }
        if let Some(quit) = &mut self.quitting
            && quit.until.is_some_and(|until| until <= now)
        {
            quit.until = None;
            for pid in self
                .servers
                .iter()
                .map(|server| server.pid)
                .collect::<Vec<_>>()
            {
                self.stop(pid);
            }
        }
    }

    fn count(&self, is_counted: impl Fn(Role) -> bool) -> usize {
        let counted = self.peers.values().filter(|peer| is_counted(peer.role));
        counted.count()
    }

    /// Accepts one pending connection.
    fn accept(&mut self) {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                self.accepts_at = Some(Instant::now() + ACCEPT_PAUSE);
                return;
            }
            // Closed before it was accepted.
            Err(_) => return,
        };
        let Ok(peer) = Peer::new(socket, Instant::now() + NEW_SPAN) else {
            return;
        };
        if self.count(|role| matches!(role, Role::New { .. })) >= NEW_MAX {
            let is_new = |peer: &Peer| matches!(peer.role, Role::New { .. });
            let oldest = self.peers.iter().find(|(_, peer)| is_new(peer));
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.remove(oldest);
            }
        }
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        self.peers.insert(id, peer);
    }

    fn receive_from_peer(&mut self, id: PeerId, flags: PollFlags) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if flags.contains(PollFlags::OUT) {
            peer.flush();
        }
        let has_gone = flags.intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR);
        if !peer.may_be_read() {
            if has_gone {
                self.remove(id);
            }
            return;
        }
        if !flags.contains(PollFlags::IN) && !has_gone {
            return;
        }
        match Message::receive(&peer.socket, RecvFlags::DONTWAIT) {
            Ok(message) => self.take(id, &message),
            Err(MessageError::System(Errno::AGAIN)) => {}
            Err(MessageError::Closed) => self.remove(id),
            Err(_) => self.refuse_form(id),
        }
    }

    fn refuse_form(&mut self, id: PeerId) {
        self.log
            .control("Unable to read new connection type information");
        self.remove(id);
    }

    /// Handles a message of a peer.
    fn take(&mut self, id: PeerId, message: &Message) {
        let Some(role) = self.peers.get(&id).map(|peer| peer.role) else {
            return;
        };
        match (role, message.kind) {
            (Role::New { .. }, Kind::MpsEnter) => self.enter(id),
            (Role::New { .. }, Kind::MpsCommand) => {
                self.log.control("NEW UI");
                let is_full = self.count(|role| matches!(role, Role::Front { .. })) >= FRONTS_MAX;
                self.set_role(id, Role::Front { is_waiting: false });
                if is_full {
                    self.answer(id, "Too many front ends are connected\n");
                    self.remove(id);
                } else {
                    self.execute(id, &message.bytes);
                }
            }
            (Role::Front { is_waiting: false }, Kind::MpsCommand) => {
                self.execute(id, &message.bytes);
            }
            _ => self.refuse_form(id),
        }
    }

    fn set_role(&mut self, id: PeerId, role: Role) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.role = role;
        }
    }

    /// Queues a process that requests admission.
    fn enter(&mut self, id: PeerId) {
        let Some((pid, uid)) = self.peers.get(&id).map(|peer| (peer.pid, peer.uid)) else {
            return;
        };
        let clients = self.count(|role| matches!(role, Role::Pending | Role::Client { .. }));
        let new = format!("NEW CLIENT {pid} from user {uid}");
        if clients >= self.clients_max {
            self.log.control(&format!("{new}: Too many clients"));
            self.refuse(id, MAX_CONNECTIONS_REACHED);
            return;
        }
        if self.quitting.is_some() {
            self.log.control(&format!("{new}: Daemon is shutting down"));
            self.refuse(id, SERVER_NOT_READY);
            return;
        }
        let is_ready = self.waiters.is_empty()
            && self
                .current()
                .is_some_and(|server| server.state != State::Initializing && server.serves(uid));
        self.log.control(&if is_ready {
            format!("{new}: Server already exists")
        } else {
            format!("{new}: Server is not ready, push client to pending list")
        });
        self.set_role(id, Role::Pending);
        self.waiters.push_back(Waiter::Client(id));
    }

    /// Sends a client the reason of its refusal, and removes it.
    fn refuse(&mut self, id: PeerId, error: u32) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.send(Message::refusal(Kind::MpsEnter, error));
        }
        self.remove(id);
    }

    /// Admits a client to a server.
    fn admit(&mut self, id: PeerId, pid: u32) {
        let units = self.devices.units();
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let Some(server) = self.servers.iter_mut().find(|server| server.pid == pid) else {
            return;
        };
        let settings = &server.settings;
        let percentage = settings.percentage.map_or(0, Percentage::hundredths);
        let words = [server.number, percentage, settings.priority.into()];
        let limits = (0..units.max(settings.limits.len()))
            .flat_map(|unit| settings.limit(unit).to_le_bytes());
        peer.role = Role::Client { server: pid };
        peer.send(Message::new(Kind::MpsEnter, &words).with_bytes(limits.collect()));
        server.admit(id, peer.pid);
        let text = format!("New client {} connected", peer.pid);
        self.log.server(pid, &text);
    }

    /// Serves waiting peers in order, and stops servers that are due.
    fn advance(&mut self) {
        if self.quitting.is_some() {
            while let Some(waiter) = self.waiters.pop_front() {
                self.fail(waiter, SERVER_NOT_READY, "The daemon is shutting down\n");
            }
        }
        let is_quitting = self.quitting.is_some();
        for server in &mut self.servers {
            if (server.is_shut || is_quitting) && server.clients.is_empty() {
                server.stop();
            }
        }
        while let Some(waiter) = self.waiters.front().copied() {
            let (uid, is_multiuser) = match waiter {
                Waiter::Client(id) => match self.peers.get(&id) {
                    Some(peer) => (peer.uid, self.is_multiuser),
                    None => {
                        self.waiters.pop_front();
                        continue;
                    }
                },
                Waiter::Starter {
                    uid, is_multiuser, ..
                } => (uid, is_multiuser),
            };
            if !self.serve(waiter, uid, is_multiuser) {
                break;
            }
            self.waiters.pop_front();
        }
    }

    /// Serves the first waiting peer; returns `false` if it must keep waiting.
    fn serve(&mut self, waiter: Waiter, uid: u32, is_multiuser: bool) -> bool {
        let has_any = !self.servers.is_empty();
        let Some(server) = self.current() else {
            if has_any {
                return false;
            }
            return match self.start(uid, is_multiuser) {
                Ok(()) => self.serve(waiter, uid, is_multiuser),
                Err(error) => {
                    let text = format!("Cannot start a server: {error}");
                    self.log.control(&text);
                    self.fail(waiter, CONNECTION_FAILED, &format!("{text}\n"));
                    true
                }
            };
        };
        if !server.serves(uid) {
            let is_empty = server.clients.is_empty() && server.state != State::Initializing;
            if is_empty {
                server.stop();
                return false;
            }
            let text = format!("Server {} of user {} has clients\n", server.pid, server.uid);
            if let Waiter::Starter { peer, .. } = waiter {
                if server.state == State::Initializing {
                    return false;
                }
                self.answer(peer, &text);
                return true;
            }
            return false;
        }
        let (pid, state, is_shut) = (server.pid, server.state, server.is_shut);
        match waiter {
            Waiter::Starter { peer, .. } => {
                if state == State::Initializing {
                    server.starters.push(peer);
                } else {
                    self.answer(peer, "");
                }
                true
            }
            Waiter::Client(id) => match state {
                State::Active if !is_shut => {
                    self.admit(id, pid);
                    true
                }
                State::Fault => {
                    self.log.control("Server is in fault: client is refused");
                    self.refuse(id, SERVER_NOT_READY);
                    true
                }
                State::Initializing | State::Active => false,
            },
        }
    }

    /// Sends a waiting peer the error for which it will not be served.
    fn fail(&mut self, waiter: Waiter, error: u32, text: &str) {
        match waiter {
            Waiter::Client(id) => self.refuse(id, error),
            Waiter::Starter { peer, .. } => self.answer(peer, text),
        }
    }

    fn start(&mut self, uid: u32, is_multiuser: bool) -> std::io::Result<()> {
        let server = Server::start(
            &self.program,
            self.folder.as_deref(),
            uid,
            is_multiuser,
            self.defaults.clone(),
        )?;
        self.log.control(&format!(
            "Starting new server {} for user {uid}",
            server.pid
        ));
        self.log.server(server.pid, "Startup");
        self.servers.push(server);
        Ok(())
    }

    /// Returns the server that admits clients, or will once it is ready.
    fn current(&mut self) -> Option<&mut Server> {
        self.servers.iter_mut().find(|server| !server.is_stopping())
    }

    fn server(&mut self, pid: u32) -> Option<&mut Server> {
        let mut running = self.servers.iter_mut();
        running.find(|server| server.pid == pid && !server.is_stopping())
    }

    /// Stops a server and disconnects its clients.
    fn stop(&mut self, pid: u32) {
        let Some(server) = self.servers.iter_mut().find(|server| server.pid == pid) else {
            return;
        };
        server.stop();
        for client in server.clients.keys().copied().collect::<Vec<_>>() {
            self.remove(client);
        }
    }

    /// Handles a message of a server.
    fn receive_from_server(&mut self, pid: u32) {
        let Some(server) = self.servers.iter_mut().find(|server| server.pid == pid) else {
            return;
        };
        let message = match Message::receive(&server.socket, RecvFlags::DONTWAIT) {
            Ok(message) => message,
            Err(MessageError::System(Errno::AGAIN)) => return,
            Err(_) => {
                self.server_is_gone(pid);
                return;
            }
        };
        match message.kind {
            Kind::MpsServer if message.error == 0 => {
                server.number = message.words[0];
                server.state = State::Active;
                let percentage = server.settings.percentage();
                let starters = std::mem::take(&mut server.starters);
                self.log.control(&format!("NEW SERVER {pid}: Ready"));
                self.log.server(
                    pid,
                    &format!("Active Threads Percentage set to {percentage}"),
                );
                for starter in starters {
                    self.answer(starter, "");
                }
            }
            Kind::MpsServer => {
                let why = String::from_utf8_lossy(&message.bytes).into_owned();
                let starters = std::mem::take(&mut server.starters);
                let (uid, is_multiuser) = (server.uid, server.is_multiuser);
                server.stop();
                let text = format!("Server {pid} failed to start: {why}");
                self.log.control(&text);
                self.fail_clients(uid, is_multiuser);
                self.log
                    .server(pid, &format!("MPS server failed to start: {why}"));
                for starter in starters {
                    self.answer(starter, &format!("{text}\n"));
                }
            }
            Kind::Fault => {
                let affected = ProcessLine::decode_all(&message.bytes);
                let affected: Vec<_> = affected.iter().map(|line| line.pid).collect();
                server.fault(&affected);
                let text = format!(
                    "Fatal fault: error {}; no new clients until {} affected ones are gone",
                    message.words[1],
                    server.faulted()
                );
                self.log.server(pid, &text);
            }
            Kind::MpsClients | Kind::MpsTerminate => {
                let Some((question, Some(requester))) = server.answered() else {
                    return;
                };
                if let Some(server) = self.servers.iter().find(|server| server.pid == pid) {
                    let text = self.format_answer(server, question, &message);
                    self.answer(requester, &text);
                }
            }
            _ => {}
        }
    }

    /// Handles the end of a server, expected or not: the connections of its clients end with it.
    fn server_is_gone(&mut self, pid: u32) {
        let Some(at) = self.servers.iter().position(|server| server.pid == pid) else {
            return;
        };
        let mut server = self.servers.remove(at);
        let (state, uid) = (server.state, server.uid);
        let (is_multiuser, is_stopping) = (server.is_multiuser, server.is_stopping());
        let waiting = server.waiting();
        for client in std::mem::take(&mut server.clients).into_keys() {
            self.remove(client);
        }
        let status = ended(server.reap());
        self.log
            .control(&format!("Server {pid} exited with {status}"));
        self.log.server(pid, "Exit");
        for requester in waiting {
            self.answer(requester, &format!("Server {pid} exited with {status}\n"));
        }
        if state == State::Initializing && !is_stopping {
            self.fail_clients(uid, is_multiuser);
        }
    }

    /// Refuses the waiting clients of a user, or of all users, because no server can be started.
    fn fail_clients(&mut self, uid: u32, is_multiuser: bool) {
        for waiter in std::mem::take(&mut self.waiters) {
            let peer = match waiter {
                Waiter::Client(id) => self.peers.get(&id),
                Waiter::Starter { .. } => None,
            };
            if peer.is_some_and(|peer| is_multiuser || peer.uid == uid) {
                self.fail(waiter, CONNECTION_FAILED, "");
            } else {
                self.waiters.push_back(waiter);
            }
        }
    }

    /// Removes a connection, closed by either side.
    fn remove(&mut self, id: PeerId) {
        let Some(peer) = self.peers.remove(&id) else {
            return;
        };
        match peer.role {
            Role::New { .. } => {}
            Role::Pending => self
                .waiters
                .retain(|waiter| !matches!(waiter, Waiter::Client(waiting) if *waiting == id)),
            Role::Client { server: pid } => {
                self.log
                    .server(pid, &format!("Client {} disconnected", peer.pid));
                let server = self.servers.iter_mut().find(|server| server.pid == pid);
                if server.is_some_and(|server| server.leave(id)) {
                    self.log
                        .server(pid, "Fault is over: all affected clients are gone");
                }
            }
            Role::Front { .. } => self.log.control("UI closed"),
        }
    }

    /// Sends a front end its answer.
    fn answer(&mut self, id: PeerId, text: &str) {
        for line in text.lines().take(LOGGED_LINES) {
            self.log.control(line);
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.role = Role::Front { is_waiting: false };
            peer.answer(text, false);
        }
    }

    /// Marks a front end as waiting for its answer.
    fn defer_answer(&mut self, id: PeerId) {
        self.set_role(id, Role::Front { is_waiting: true });
    }

    /// Returns whether a peer may change settings: root and the daemon's user may.
    fn may_change(&self, id: PeerId) -> bool {
        let peer = self.peers.get(&id);
        peer.is_some_and(|peer| peer.uid == 0 || peer.uid == self.uid)
    }
}

/// Formats the exit status of a process for the log.
fn ended(status: Option<ExitStatus>) -> String {
    match status {
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no status".to_owned(),
        },
        None => "no status".to_owned(),
    }
}
