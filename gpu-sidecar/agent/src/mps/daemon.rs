//! A thread per slot which starts, watches and restarts its daemon.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use super::control::{pid_of, pids, query, timespec};
use super::{can_run, find_program};
use crate::config::Config;
use crate::events::{EventKind, Events};
use crate::node::{MpsState, Node};
use crate::state::{Command as ServiceCommand, ServiceHandle, Slot, SlotKey};
use crate::stop::Stop;

/// Interval of the health checks of a daemon.
const HEALTH_SPAN: Duration = Duration::from_secs(2);
/// Delay before the first restart of a daemon; it doubles with each restart, up to [`RESTART_SPAN_MAX`].
const RESTART_SPAN: Duration = Duration::from_millis(100);
/// Longest delay before a restart.
const RESTART_SPAN_MAX: Duration = Duration::from_secs(10);
/// Uptime of a daemon after which the restart delay is reset to [`RESTART_SPAN`].
const STEADY_SPAN: Duration = Duration::from_secs(60);
/// Time within which a started daemon has to answer.
const START_MAX: Duration = Duration::from_secs(10);
/// Interval of the checks whether a started daemon answers.
const START_POLL_SPAN: Duration = Duration::from_millis(20);
/// Longest wait for a daemon to end after `quit` or SIGKILL.
const QUIT_MAX: Duration = Duration::from_secs(3);
/// Number of consecutive failed health checks after which a daemon is killed.
const SILENT_MAX: u32 = 3;
/// Capacity of a thread's order queue.
const ORDERS_MAX: usize = 16;
/// Number of bytes read from the end of a daemon's output.
const OUTPUT_MAX: u64 = 4_096;
/// Size at which the file with a daemon's output is truncated, in bytes.
const OUTPUT_FILE_MAX: u64 = 1 << 20;

/// An order to a slot's thread.
#[derive(Debug)]
enum Order {
    /// The slot is lost: no daemon is started on it.
    Pause,
    /// The slot is back: a daemon left from before is stopped.
    Resume(Arc<Slot>),
    /// A fault on the GPU: check at once which clients have failed.
    Check,
    /// The agent stops; the daemon stops with it, or keeps running.
    End { with_daemon: bool },
}

/// A slot's thread and the sender of its orders.
type ThreadHandle = (SyncSender<Order>, JoinHandle<()>);

/// The program that starts the daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Supervisor {
    /// This program: it starts daemons, and kills unresponsive ones.
    Own,
    /// A separate `gpu-sidecar mps`: daemons are only watched.
    Other,
}

/// The daemons of all slots.
pub(crate) struct Daemons {
    config: Config,
    supervisor: Supervisor,
    node: Arc<Node>,
    events: Arc<Events>,
    /// Token service to notify; `None` in a program without one.
    service: Option<ServiceHandle>,
    threads: Mutex<BTreeMap<SlotKey, ThreadHandle>>,
}

impl Daemons {
    pub(crate) fn new(
        config: Config,
        supervisor: Supervisor,
        node: Arc<Node>,
        events: Arc<Events>,
        service: Option<ServiceHandle>,
    ) -> Self {
        Self {
            config,
            supervisor,
            node,
            events,
            service,
            threads: Mutex::default(),
        }
    }

    /// Starts the thread of a slot shared by MPS.
    pub(crate) fn add(&self, slot: &Arc<Slot>) {
        let (sender, receiver) = sync_channel(ORDERS_MAX);
        let thread = Thread {
            program: self.config.node.mps_control.clone(),
            supervisor: self.supervisor,
            is_multiuser: self.config.node.mps_multiuser,
            node: Arc::clone(&self.node),
            events: Arc::clone(&self.events),
            service: self.service.clone(),
            slot: Arc::clone(slot),
            orders: receiver,
            abandoned: None,
        };
        let builder = std::thread::Builder::new().name(format!("mps-{}", slot.name));
        match builder.spawn(move || thread.run()) {
            Ok(handle) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.insert(slot.key, (sender, handle));
            }
            Err(error) => {
                let reason = format!("cannot start a thread for the daemon: {error}");
                self.events
                    .record(EventKind::MpsUnable, &slot.name, "", &*reason);
                self.node.set_mps(slot.key, MpsState::Unable { reason });
            }
        }
    }

    /// Sends an order to a slot's thread.
    fn order(&self, key: SlotKey, order: Order) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((sender, _)) = threads.get(&key) {
            if matches!(order, Order::Check) {
                // A thread with a full queue checks anyway.
                let _full = sender.try_send(order);
            } else {
                // Other orders must not be lost; the thread takes them within seconds.
                let _ended = sender.send(order);
            }
        }
    }

    /// Stops restarting the daemon of a lost slot.
    pub(crate) fn pause(&self, key: SlotKey) {
        self.order(key, Order::Pause);
    }

    /// Restarts the daemon of a slot that is back.
    pub(crate) fn resume(&self, slot: &Arc<Slot>) {
        self.order(slot.key, Order::Resume(Arc::clone(slot)));
    }

    /// Checks at once which clients of a slot's daemon have failed.
    pub(crate) fn check(&self, key: SlotKey) {
        self.order(key, Order::Check);
    }

    /// Returns whether the thread of a slot has ended without an order: its daemon is no longer restarted.
    pub(crate) fn has_ended(&self) -> bool {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.values().any(|(_, thread)| thread.is_finished())
    }

    /// Ends all threads; the daemons keep running unless `with_daemons` is set.
    pub(crate) fn end(&self, with_daemons: bool) {
        let threads = {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *threads)
        };
        for (sender, _) in threads.values() {
            let order = Order::End {
                with_daemon: with_daemons,
            };
            let _ended = sender.send(order);
        }
        for (_, handle) in threads.into_values() {
            let _panicked = handle.join();
        }
    }
}

/// State of a slot's thread.
struct Thread {
    program: PathBuf,
    supervisor: Supervisor,
    is_multiuser: bool,
    node: Arc<Node>,
    events: Arc<Events>,
    service: Option<ServiceHandle>,
    slot: Arc<Slot>,
    orders: Receiver<Order>,
    /// A daemon left running when the slot was lost.
    abandoned: Option<Child>,
}

/// A running daemon with its process and its servers.
#[derive(Debug)]
struct Running {
    /// Child process; `None` for an adopted daemon.
    child: Option<Child>,
    /// Process ID and pidfd, where the ID is known.
    process: Option<(u32, OwnedFd)>,
    /// Time of the start or the adoption.
    since: Instant,
    /// Number of consecutive failed health checks.
    silent: u32,
    /// Servers of the daemon, by process ID.
    servers: BTreeMap<u32, Server>,
}

/// A server of the daemon, as of the last health check.
#[derive(Debug, Default)]
struct Server {
    is_at_fault: bool,
    clients: Vec<u32>,
}

/// Reason to stop watching a daemon.
#[derive(Debug)]
enum WatchEnd {
    /// The daemon has ended or was killed, for this reason.
    Ended(String),
    /// The slot was lost.
    Paused,
    /// The thread was ordered to end, with the daemon or without it.
    Shutdown { with_daemon: bool },
}

impl Thread {
    fn pipe(&self) -> PathBuf {
        self.slot.mps_pipe.clone().unwrap_or_default()
    }

    /// Returns the path of a file next to the pipe directory.
    fn sibling(&self, name: &str) -> PathBuf {
        self.pipe().with_file_name(name)
    }

    /// Sets the state of MPS on the slot; where it is new, records an event and notifies the service.
    fn set_state(&self, state: MpsState) {
        let slot = &self.slot;
        let (kind, is_up, text) = match &state {
            MpsState::Up { adopted, pid, .. } => {
                let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                let text = match (*adopted, self.supervisor) {
                    (true, Supervisor::Own) => {
                        format!("the daemon of an earlier agent was adopted (pid {pid})")
                    }
                    (true, Supervisor::Other) => {
                        format!("the daemon of `gpu-sidecar mps` answers (pid {pid})")
                    }
                    (false, _) => format!("the daemon answers (pid {pid})"),
                };
                (Some(EventKind::MpsUp), true, text)
            }
            MpsState::Down { reason } => (Some(EventKind::MpsDown), false, reason.clone()),
            MpsState::Unable { reason } => (Some(EventKind::MpsUnable), false, reason.clone()),
            MpsState::Starting => (None, false, "the daemon is being started".to_owned()),
            MpsState::None => return,
        };
        if !self.node.set_mps(slot.key, state) {
            return;
        }
        if let Some(kind) = kind {
            self.events.record(kind, &slot.name, "", &*text);
        }
        let command = ServiceCommand::MpsState {
            slot: slot.key,
            is_up,
            text,
        };
        if let Some(service) = &self.service {
            let _ended = service.send(command);
        }
    }

    /// Runs the daemon until an order ends the thread.
    fn run(mut self) {
        let mut span = RESTART_SPAN;
        let mut is_first = true;
        loop {
            let program = can_run(&self.slot).and_then(|()| find_program(&self.program));
            let end = match program {
                Ok(program) => match self.start_or_adopt(&program, is_first) {
                    Ok(running) => {
                        is_first = false;
                        self.watch(&program, running, &mut span)
                    }
                    Err(end) => end,
                },
                Err(reason) => {
                    // The program may be installed later, with the driver.
                    self.set_state(MpsState::Unable { reason });
                    span = self.restart_span_max();
                    match self.wait(span) {
                        Some(end) => end,
                        None => continue,
                    }
                }
            };
            match end {
                WatchEnd::Shutdown { .. } => return,
                WatchEnd::Paused => {
                    let reason = "the slot is lost".to_owned();
                    self.set_state(MpsState::Down { reason });
                    if !self.await_resume() {
                        return;
                    }
                    span = RESTART_SPAN;
                }
                WatchEnd::Ended(reason) => {
                    self.set_state(MpsState::Down { reason });
                    match self.wait(span) {
                        Some(WatchEnd::Shutdown { .. }) => return,
                        Some(_) if !self.await_resume() => return,
                        Some(_) | None => {}
                    }
                    span = (span * 2).min(self.restart_span_max());
                }
            }
        }
    }

    /// Returns the longest delay between two attempts to start or find a daemon.
    fn restart_span_max(&self) -> Duration {
        match self.supervisor {
            Supervisor::Own => RESTART_SPAN_MAX,
            // The program that starts the daemon backs off itself.
            Supervisor::Other => HEALTH_SPAN,
        }
    }

    /// Waits for `span`; returns the reason when an order ends the watch.
    fn wait(&self, span: Duration) -> Option<WatchEnd> {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.orders.recv_timeout(left) {
                Ok(Order::Pause) => return Some(WatchEnd::Paused),
                Ok(Order::End { with_daemon }) => return Some(WatchEnd::Shutdown { with_daemon }),
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(WatchEnd::Shutdown { with_daemon: false });
                }
                Ok(Order::Resume(_) | Order::Check) => {}
                Err(RecvTimeoutError::Timeout) => return None,
            }
        }
    }

    /// Blocks until the slot is back, and stops a daemon left from before. Returns `false` when the thread has to end.
    fn await_resume(&mut self) -> bool {
        loop {
            match self.orders.recv() {
                Ok(Order::Resume(slot)) => {
                    self.slot = slot;
                    self.node.set_mps(self.slot.key, MpsState::Starting);
                    if let Ok(program) = find_program(&self.program) {
                        self.quit(&program);
                    }
                    return true;
                }
                Ok(Order::End { with_daemon }) => {
                    if with_daemon && let Ok(program) = find_program(&self.program) {
                        self.quit(&program);
                    }
                    return false;
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Stops the daemon of the pipe directory: sends `quit`, then kills it after [`QUIT_MAX`]. Does nothing under another
    /// supervisor.
    fn quit(&mut self, program: &Path) {
        if self.supervisor == Supervisor::Other {
            return;
        }
        let pid = self.written_pid();
        let _silent = query(program, &self.pipe(), "quit -t 1");
        if let Some(pid) = pid.and_then(pid_of)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && !has_ended(&process, QUIT_MAX)
        {
            let _gone = kill_process(pid, Signal::KILL);
            let _waited = has_ended(&process, QUIT_MAX);
        }
        if let Some(mut child) = self.abandoned.take() {
            let _gone = child.kill();
            let _status = child.wait();
        }
    }

    /// Returns the process ID from the daemon's file, if that process exists and is an MPS daemon.
    fn written_pid(&self) -> Option<u32> {
        let file = self.pipe().join("nvidia-cuda-mps-control.pid");
        let text = crate::config::read_bounded(&file, 64).ok()?;
        let pid = text.trim().parse().ok()?;
        // The ID may have been reused.
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        comm.starts_with("nvidia-cuda-mps").then_some(pid)
    }

    /// Adopts a daemon that answers in the pipe directory, or starts one and waits until it answers.
    fn start_or_adopt(&self, program: &Path, is_first: bool) -> Result<Running, WatchEnd> {
        let pipe = self.pipe();
        // Also a daemon that another program has started meanwhile: a pipe directory has at most one.
        if self.answers(program).is_ok() {
            let pid = self.written_pid();
            let process = pid.and_then(|pid| {
                let process = pidfd_open(pid_of(pid)?, PidfdFlags::empty()).ok()?;
                Some((pid, process))
            });
            let running = Running {
                child: None,
                process,
                since: Instant::now(),
                silent: 0,
                servers: BTreeMap::new(),
            };
            if self.supervisor == Supervisor::Other && !is_first {
                self.count_restart();
            }
            self.set_state(self.up(&running));
            return Ok(running);
        }
        if self.supervisor == Supervisor::Other {
            return Err(WatchEnd::Ended(format!(
                "no daemon answers in {}: `gpu-sidecar mps` starts it",
                pipe.display()
            )));
        }
        self.set_state(MpsState::Starting);
        if !is_first {
            self.count_restart();
        }
        let ended = |what: &str, error: std::io::Error| WatchEnd::Ended(format!("{what}: {error}"));
        let log = self.sibling("log");
        for folder in [&pipe, &log] {
            // Clients of all users access the pipe directory.
            let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
            made.map_err(|error| ended(&folder.display().to_string(), error))?;
        }
        let output_path = self.sibling("daemon.log");
        let output = File::options()
            .create(true)
            .append(true)
            .open(&output_path)
            .map_err(|error| ended(&output_path.display().to_string(), error))?;
        let _kept = output.set_len(0);
        let mut command = Command::new(program);
        command.arg("-f");
        if self.is_multiuser {
            command.arg("-multiuser-server");
        }
        let child = command
            .env("CUDA_VISIBLE_DEVICES", &self.slot.uuid)
            .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &log)
            .env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
            .env_remove("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
            .current_dir("/")
            // A signal to the agent's process group must not reach the daemon.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .map_err(|error| ended(&program.display().to_string(), error))?;
        let pid = child.id();
        let process = pid_of(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let mut running = Running {
            child: Some(child),
            process: process.map(|process| (pid, process)),
            since: Instant::now(),
            silent: 0,
            servers: BTreeMap::new(),
        };
        let until = Instant::now() + START_MAX;
        loop {
            if let Some(status) = running.ended() {
                let output = last_output_line(&output_path);
                return Err(WatchEnd::Ended(format!("the daemon {status}: {output}")));
            }
            let answer = self.answers(program);
            if answer.is_ok() {
                self.set_state(self.up(&running));
                return Ok(running);
            }
            if Instant::now() >= until {
                running.kill();
                let why = answer.err().unwrap_or_default();
                return Err(WatchEnd::Ended(format!(
                    "the daemon did not answer within {} s: {why}",
                    START_MAX.as_secs()
                )));
            }
            if let Some(end) = self.wait(START_POLL_SPAN) {
                // No client is connected yet.
                if !matches!(end, WatchEnd::Shutdown { with_daemon: false }) {
                    running.kill();
                }
                return Err(end);
            }
        }
    }

    /// Counts a restart of the daemon.
    fn count_restart(&self) {
        if let Some(own) = self.node.lock().slot_mut(self.slot.key) {
            own.mps_restarts += 1;
        }
    }

    /// Checks whether a daemon answers in the pipe directory; returns the reason when none does.
    fn answers(&self, program: &Path) -> Result<(), String> {
        let pipe = self.pipe();
        if !pipe.exists() {
            return Err("the pipe directory does not exist".to_owned());
        }
        let answer = query(program, &pipe, "get_default_active_thread_percentage")?;
        match answer.trim().parse::<f64>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("unexpected answer {:?}", answer.trim())),
        }
    }

    /// Returns the state of a running daemon with its clients.
    fn up(&self, running: &Running) -> MpsState {
        let mut clients: Vec<_> = running
            .servers
            .values()
            .flat_map(|server| server.clients.iter().copied())
            .collect();
        clients.sort_unstable();
        MpsState::Up {
            pid: running.process.as_ref().map(|process| process.0),
            clients,
            adopted: running.child.is_none(),
        }
    }

    /// Watches a daemon until it has ended or an order ends the watch; returns the reason.
    fn watch(&mut self, program: &Path, mut running: Running, span: &mut Duration) -> WatchEnd {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                if let Err(end) = self.check_health(program, &mut running) {
                    return end;
                }
                next = Instant::now() + HEALTH_SPAN;
            }
            if running.since.elapsed() >= STEADY_SPAN {
                *span = RESTART_SPAN;
            }
            let left = next.saturating_duration_since(Instant::now());
            // The end of the process is noticed at once, an order within this time.
            if running.has_ended_within(left.min(START_POLL_SPAN * 5)) {
                let status = running.ended().unwrap_or_else(|| "has ended".to_owned());
                self.report_failed_clients(&running.servers, &format!("the daemon {status}"));
                return WatchEnd::Ended(format!("the daemon {status}"));
            }
            while let Ok(order) = self.orders.try_recv() {
                match order {
                    Order::Pause => {
                        self.abandoned = running.child;
                        return WatchEnd::Paused;
                    }
                    Order::Check => next = Instant::now(),
                    Order::Resume(_) => {}
                    Order::End { with_daemon } => {
                        if with_daemon {
                            self.quit(program);
                            running.kill();
                        }
                        return WatchEnd::Shutdown { with_daemon };
                    }
                }
            }
        }
    }

    /// Checks the daemon's health, and updates its servers and clients. Returns an error when the daemon counts as ended.
    fn check_health(&self, program: &Path, running: &mut Running) -> Result<(), WatchEnd> {
        if let Err(why) = self.answers(program) {
            running.silent += 1;
            if running.silent >= SILENT_MAX && self.supervisor == Supervisor::Other {
                return Err(WatchEnd::Ended(format!(
                    "the daemon did not answer {SILENT_MAX} times in a row: {why}"
                )));
            }
            if running.silent >= SILENT_MAX {
                running.kill();
                self.report_failed_clients(&running.servers, "the daemon was killed");
                return Err(WatchEnd::Ended(format!(
                    "the daemon did not answer {SILENT_MAX} times in a row and was killed: {why}"
                )));
            }
            return Ok(());
        }
        running.silent = 0;
        let pipe = self.pipe();
        let Ok(answer) = query(program, &pipe, "get_server_list") else {
            return Ok(());
        };
        let mut servers = BTreeMap::new();
        for pid in pids(&answer) {
            let lines = format!("get_server_status {pid}\nget_client_list {pid}");
            let Ok(answer) = query(program, &pipe, &lines) else {
                return Ok(());
            };
            let server = Server {
                is_at_fault: answer
                    .lines()
                    .next()
                    .is_some_and(|line| line.trim() == "FAULT"),
                clients: pids(&answer),
            };
            servers.insert(pid, server);
        }
        // Clients connected before a server's fault have failed with it; later ones are not admitted.
        for (pid, before) in &running.servers {
            let is_new = |now: &Server| now.is_at_fault && !before.is_at_fault;
            let one = || {
                BTreeMap::from([(
                    *pid,
                    Server {
                        is_at_fault: true,
                        clients: before.clients.clone(),
                    },
                )])
            };
            match servers.get(pid) {
                None if !before.clients.is_empty() => {
                    self.report_failed_clients(&one(), &format!("MPS server {pid} has ended"));
                }
                Some(now) if is_new(now) => {
                    let mut failed = one();
                    let clients = failed.entry(*pid).or_default();
                    let others = now
                        .clients
                        .iter()
                        .filter(|pid| !before.clients.contains(pid));
                    clients.clients.extend(others);
                    let why = self.last_fault();
                    self.report_failed_clients(
                        &failed,
                        &format!("a client's fault on MPS server {pid}{why}"),
                    );
                }
                _ => {}
            }
        }
        for (pid, now) in &servers {
            if now.is_at_fault && !running.servers.contains_key(pid) {
                let why = self.last_fault();
                let one = BTreeMap::from([(
                    *pid,
                    Server {
                        is_at_fault: true,
                        clients: now.clients.clone(),
                    },
                )]);
                self.report_failed_clients(
                    &one,
                    &format!("a client's fault on MPS server {pid}{why}"),
                );
            }
        }
        running.servers = servers;
        self.node.set_mps(self.slot.key, self.up(running));
        self.truncate_output();
        Ok(())
    }

    /// Records an event with the clients of failed servers.
    fn report_failed_clients(&self, servers: &BTreeMap<u32, Server>, what: &str) {
        let mut clients: Vec<_> = servers
            .values()
            .flat_map(|server| server.clients.iter().map(u32::to_string))
            .collect();
        if clients.is_empty() {
            return;
        }
        clients.sort_unstable();
        let text = format!(
            "{what}: all its clients have failed: pid {}",
            clients.join(", ")
        );
        self.events
            .record(EventKind::MpsClientsFailed, &self.slot.name, "", text);
    }

    /// Returns the last fault in the server's log in parentheses; empty when there is none.
    fn last_fault(&self) -> String {
        let text = tail(&self.sibling("log").join("server.log"), 2 * OUTPUT_MAX);
        let is_fault = |line: &&str| {
            let line = line.to_lowercase();
            line.contains("fatal") || line.contains("fault") || line.contains("exception")
        };
        let line = text.lines().rev().find(is_fault);
        line.map(|line| format!(" ({})", line.trim()))
            .unwrap_or_default()
    }

    /// Truncates the file with the daemon's output above [`OUTPUT_FILE_MAX`].
    fn truncate_output(&self) {
        let path = self.sibling("daemon.log");
        let Ok(file) = File::options().append(true).open(path) else {
            return;
        };
        if file
            .metadata()
            .is_ok_and(|about| about.len() > OUTPUT_FILE_MAX)
        {
            let _kept = file.set_len(0);
        }
    }
}

impl Running {
    /// Returns how the daemon has ended; `None` while it runs, or when its process is unknown.
    fn ended(&mut self) -> Option<String> {
        match &mut self.child {
            Some(child) => match child.try_wait() {
                Ok(Some(status)) => Some(format!("has ended with {status}")),
                Ok(None) => None,
                Err(error) => Some(format!("cannot be waited for: {error}")),
            },
            None => {
                let process = self.process.as_ref()?;
                has_ended(&process.1, Duration::ZERO).then(|| "has ended".to_owned())
            }
        }
    }

    /// Waits for up to `span` for the daemon to end, and returns whether it has.
    fn has_ended_within(&self, span: Duration) -> bool {
        match &self.process {
            Some((_, process)) => has_ended(process, span),
            None => {
                Stop::default().wait(span);
                false
            }
        }
    }

    fn kill(&mut self) {
        match &mut self.child {
            Some(child) => {
                let _gone = child.kill();
                let _status = child.wait();
            }
            None => {
                if let Some(pid) = self.process.as_ref().and_then(|process| pid_of(process.0)) {
                    let _gone = kill_process(pid, Signal::KILL);
                }
            }
        }
    }
}

/// Returns whether a process ends within `span`.
fn has_ended(process: &OwnedFd, span: Duration) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timespec(span))), Ok(count) if count > 0)
}

/// Returns the last `max` bytes of a file as text; empty when it is unreadable.
fn tail(path: &Path, max: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
        let mut bytes = Vec::new();
        file.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Returns the last non-empty line of a daemon's output.
fn last_output_line(path: &Path) -> String {
    let text = tail(path, OUTPUT_MAX);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("no output").trim().to_owned()
}
