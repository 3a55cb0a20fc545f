//! A thread for each slot that starts its daemon, watches it, and starts it again.

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

use super::control::{ask, pid_of, pids, timespec};
use super::{can_run, find_program};
use crate::config::Config;
use crate::events::{EventKind, Events};
use crate::node::{MpsState, Node};
use crate::state::{Command as ServiceCommand, ServiceHandle, Slot, SlotKey};
use crate::stop::Stop;

/// How often a daemon is asked whether it is well.
const HEALTH_SPAN: Duration = Duration::from_secs(2);
/// One that has ended is started again after this time, and then after twice as long each time, up to …
const RESTART_SPAN: Duration = Duration::from_millis(100);
/// … this.
const RESTART_SPAN_MAX: Duration = Duration::from_secs(10);
/// One that has run for this long is started again at once.
const STEADY_SPAN: Duration = Duration::from_secs(60);
/// A daemon that was started answers within this time.
const START_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether it does.
const LOOK_SPAN: Duration = Duration::from_millis(20);
/// A daemon that is told to quit, or killed, is waited for this long.
const QUIT_MAX: Duration = Duration::from_secs(3);
/// Times in a row that a daemon may fail to answer before it is ended.
const SILENT_MAX: u32 = 3;
/// Orders that wait, at most.
const ORDERS_MAX: usize = 16;
/// What of a daemon's words is kept, in bytes.
const SAID_MAX: u64 = 4_096;
/// The file of a daemon's words is emptied when it has grown to this size.
const SAID_FILE_MAX: u64 = 1 << 20;

/// What a slot's thread is told.
#[derive(Debug)]
enum Order {
    /// The slot is lost: no daemon is started.
    Pause,
    /// It is back: whatever daemon is left of before is ended.
    Resume(Arc<Slot>),
    /// A fault on the GPU: look at once who was hit.
    Look,
    /// The agent ends; the daemon ends with it, or goes on.
    End { with_daemon: bool },
}

/// A slot's thread, and how it is told.
type OfSlot = (SyncSender<Order>, JoinHandle<()>);

/// The program whose children the daemons are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Supervisor {
    /// This one: it starts daemons, and ends those that are silent.
    Own,
    /// `gpu-sidecar mps`: daemons are only watched.
    Other,
}

/// All daemons.
pub(crate) struct Daemons {
    config: Config,
    supervisor: Supervisor,
    node: Arc<Node>,
    events: Arc<Events>,
    /// `None`: this program has no token service.
    service: Option<ServiceHandle>,
    threads: Mutex<BTreeMap<SlotKey, OfSlot>>,
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

    /// A slot that is to be shared by MPS.
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
            left: None,
        };
        let builder = std::thread::Builder::new().name(format!("mps-{}", slot.name));
        match builder.spawn(move || thread.run()) {
            Ok(handle) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.insert(slot.key, (sender, handle));
            }
            Err(error) => {
                let reason = format!("no thread for it: {error}");
                self.events
                    .tell(EventKind::MpsUnable, &slot.name, "", &*reason);
                self.node.set_mps(slot.key, MpsState::Unable { reason });
            }
        }
    }

    fn order(&self, key: SlotKey, order: Order) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((sender, _)) = threads.get(&key) {
            if matches!(order, Order::Look) {
                // A thread that has so many orders looks anyway.
                let _full = sender.try_send(order);
            } else {
                // The others must not be lost; the thread takes them within seconds.
                let _ended = sender.send(order);
            }
        }
    }

    pub(crate) fn pause(&self, key: SlotKey) {
        self.order(key, Order::Pause);
    }

    pub(crate) fn resume(&self, slot: &Arc<Slot>) {
        self.order(slot.key, Order::Resume(Arc::clone(slot)));
    }

    pub(crate) fn look(&self, key: SlotKey) {
        self.order(key, Order::Look);
    }

    /// Whether the thread of a slot has ended without an order: nothing starts its daemon again.
    pub(crate) fn has_ended(&self) -> bool {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.values().any(|(_, thread)| thread.is_finished())
    }

    /// Ends the threads; the daemons go on unless they are to end too.
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

struct Thread {
    program: PathBuf,
    supervisor: Supervisor,
    is_multiuser: bool,
    node: Arc<Node>,
    events: Arc<Events>,
    service: Option<ServiceHandle>,
    slot: Arc<Slot>,
    orders: Receiver<Order>,
    /// A daemon that was left alone when the slot was lost.
    left: Option<Child>,
}

/// A daemon that runs.
#[derive(Debug)]
struct Running {
    /// `None`: that of a former agent.
    child: Option<Child>,
    /// The process, where its number is known.
    process: Option<(u32, OwnedFd)>,
    since: Instant,
    silent: u32,
    servers: BTreeMap<u32, Server>,
}

/// A server of the daemon, as last seen.
#[derive(Debug, Default)]
struct Server {
    is_at_fault: bool,
    clients: Vec<u32>,
}

/// Why a daemon is no longer watched.
#[derive(Debug)]
enum Over {
    /// It has ended, or was ended.
    Ended(String),
    /// The slot is lost.
    Paused,
    /// The thread is to end, and the daemon with it or not.
    Done { with_daemon: bool },
}

impl Thread {
    fn pipe(&self) -> PathBuf {
        self.slot.mps_pipe.clone().unwrap_or_default()
    }

    /// Beside the pipe directory.
    fn beside(&self, name: &str) -> PathBuf {
        self.pipe().with_file_name(name)
    }

    fn say(&self, state: MpsState) {
        let slot = &self.slot;
        let (kind, is_up, text) = match &state {
            MpsState::Up { adopted, pid, .. } => {
                let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                let text = match (*adopted, self.supervisor) {
                    (true, Supervisor::Own) => {
                        format!("the daemon of a former agent goes on (pid {pid})")
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
            self.events.tell(kind, &slot.name, "", &*text);
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

    fn run(mut self) {
        let mut span = RESTART_SPAN;
        let mut is_first = true;
        loop {
            let program = can_run(&self.slot).and_then(|()| find_program(&self.program));
            let over = match program {
                Ok(program) => match self.begin(&program, is_first) {
                    Ok(running) => {
                        is_first = false;
                        self.watch(&program, running, &mut span)
                    }
                    Err(over) => over,
                },
                Err(reason) => {
                    // The program may come later, with the driver.
                    self.say(MpsState::Unable { reason });
                    span = self.restart_span_max();
                    match self.wait(span) {
                        Some(over) => over,
                        None => continue,
                    }
                }
            };
            match over {
                Over::Done { .. } => return,
                Over::Paused => {
                    let reason = "the slot is lost".to_owned();
                    self.say(MpsState::Down { reason });
                    if !self.await_resume() {
                        return;
                    }
                    span = RESTART_SPAN;
                }
                Over::Ended(reason) => {
                    self.say(MpsState::Down { reason });
                    match self.wait(span) {
                        Some(Over::Done { .. }) => return,
                        Some(_) if !self.await_resume() => return,
                        Some(_) | None => {}
                    }
                    span = (span * 2).min(self.restart_span_max());
                }
            }
        }
    }

    /// Returns the longest time between two looks for a daemon.
    fn restart_span_max(&self) -> Duration {
        match self.supervisor {
            Supervisor::Own => RESTART_SPAN_MAX,
            // The program that starts it has waited already.
            Supervisor::Other => HEALTH_SPAN,
        }
    }

    /// Waits for so long; an order that ends the wait for good.
    fn wait(&self, span: Duration) -> Option<Over> {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.orders.recv_timeout(left) {
                Ok(Order::Pause) => return Some(Over::Paused),
                Ok(Order::End { with_daemon }) => return Some(Over::Done { with_daemon }),
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Over::Done { with_daemon: false });
                }
                Ok(Order::Resume(_) | Order::Look) => {}
                Err(RecvTimeoutError::Timeout) => return None,
            }
        }
    }

    /// Waits until the slot is back; `false`: the thread is to end. What is left of the daemon of before is ended.
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

    /// Tells whatever daemon listens in the pipe directory to end, and sees to it.
    fn quit(&mut self, program: &Path) {
        if self.supervisor == Supervisor::Other {
            return;
        }
        let pid = self.written_pid();
        let _silent = ask(program, &self.pipe(), "quit -t 1");
        if let Some(pid) = pid.and_then(pid_of)
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && !has_ended(&process, QUIT_MAX)
        {
            let _gone = kill_process(pid, Signal::KILL);
            let _waited = has_ended(&process, QUIT_MAX);
        }
        if let Some(mut child) = self.left.take() {
            let _gone = child.kill();
            let _status = child.wait();
        }
    }

    /// The daemon's number as it has written it, if there is such a process and it is one.
    fn written_pid(&self) -> Option<u32> {
        let file = self.pipe().join("nvidia-cuda-mps-control.pid");
        let text = crate::config::read_bounded(&file, 64).ok()?;
        let pid = text.trim().parse().ok()?;
        // A number may long be another's.
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        comm.starts_with("nvidia-cuda-mps").then_some(pid)
    }

    /// Goes on with the daemon of a former agent, or starts one.
    fn begin(&self, program: &Path, is_first: bool) -> Result<Running, Over> {
        let pipe = self.pipe();
        // Also one that somebody else has started there meanwhile: two cannot be.
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
            self.say(self.up(&running));
            return Ok(running);
        }
        if self.supervisor == Supervisor::Other {
            return Err(Over::Ended(format!(
                "no daemon answers in {}: `gpu-sidecar mps` starts it",
                pipe.display()
            )));
        }
        self.say(MpsState::Starting);
        if !is_first {
            self.count_restart();
        }
        let ended = |what: &str, error: std::io::Error| Over::Ended(format!("{what}: {error}"));
        let log = self.beside("log");
        for folder in [&pipe, &log] {
            // Clients of all users look into the pipe directory.
            let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
            made.map_err(|error| ended(&folder.display().to_string(), error))?;
        }
        let said = self.beside("daemon.log");
        let output = File::options()
            .create(true)
            .append(true)
            .open(&said)
            .map_err(|error| ended(&said.display().to_string(), error))?;
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
            // A signal to the agent's group is none of the daemon's.
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
                let said = last_said(&said);
                return Err(Over::Ended(format!("the daemon {status}: {said}")));
            }
            let answer = self.answers(program);
            if answer.is_ok() {
                self.say(self.up(&running));
                return Ok(running);
            }
            if Instant::now() >= until {
                running.kill();
                let why = answer.err().unwrap_or_default();
                return Err(Over::Ended(format!(
                    "the daemon did not answer within {} s: {why}",
                    START_MAX.as_secs()
                )));
            }
            if let Some(over) = self.wait(LOOK_SPAN) {
                // Nobody is connected yet.
                if !matches!(over, Over::Done { with_daemon: false }) {
                    running.kill();
                }
                return Err(over);
            }
        }
    }

    fn count_restart(&self) {
        if let Some(own) = self.node.lock().slot_mut(self.slot.key) {
            own.mps_restarts += 1;
        }
    }

    fn answers(&self, program: &Path) -> Result<(), String> {
        let pipe = self.pipe();
        if !pipe.exists() {
            return Err("there is no pipe directory".to_owned());
        }
        let answer = ask(program, &pipe, "get_default_active_thread_percentage")?;
        match answer.trim().parse::<f64>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("it answers {:?}", answer.trim())),
        }
    }

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

    /// Watches a daemon until it has ended, or an order comes.
    fn watch(&mut self, program: &Path, mut running: Running, span: &mut Duration) -> Over {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                if let Err(over) = self.examine(program, &mut running) {
                    return over;
                }
                next = Instant::now() + HEALTH_SPAN;
            }
            if running.since.elapsed() >= STEADY_SPAN {
                *span = RESTART_SPAN;
            }
            let left = next.saturating_duration_since(Instant::now());
            // The end of the process is seen at once, an order within this time.
            if running.has_ended_within(left.min(LOOK_SPAN * 5)) {
                let status = running.ended().unwrap_or_else(|| "has ended".to_owned());
                self.hit(&running.servers, &format!("the daemon {status}"));
                return Over::Ended(format!("the daemon {status}"));
            }
            while let Ok(order) = self.orders.try_recv() {
                match order {
                    Order::Pause => {
                        self.left = running.child;
                        return Over::Paused;
                    }
                    Order::Look => next = Instant::now(),
                    Order::Resume(_) => {}
                    Order::End { with_daemon } => {
                        if with_daemon {
                            self.quit(program);
                            running.kill();
                        }
                        return Over::Done { with_daemon };
                    }
                }
            }
        }
    }

    /// Asks whether it is well, and who is connected.
    fn examine(&self, program: &Path, running: &mut Running) -> Result<(), Over> {
        if let Err(why) = self.answers(program) {
            running.silent += 1;
            if running.silent >= SILENT_MAX && self.supervisor == Supervisor::Other {
                return Err(Over::Ended(format!(
                    "the daemon did not answer {SILENT_MAX} times in a row: {why}"
                )));
            }
            if running.silent >= SILENT_MAX {
                running.kill();
                self.hit(&running.servers, "the daemon was ended");
                return Err(Over::Ended(format!(
                    "the daemon did not answer {SILENT_MAX} times in a row and was ended: {why}"
                )));
            }
            return Ok(());
        }
        running.silent = 0;
        let pipe = self.pipe();
        let Ok(answer) = ask(program, &pipe, "get_server_list") else {
            return Ok(());
        };
        let mut servers = BTreeMap::new();
        for pid in pids(&answer) {
            let lines = format!("get_server_status {pid}\nget_client_list {pid}");
            let Ok(answer) = ask(program, &pipe, &lines) else {
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
        // Who was connected before a server went wrong was hit by it; who comes later is not let in.
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
                    self.hit(&one(), &format!("MPS server {pid} has ended"));
                }
                Some(now) if is_new(now) => {
                    let mut hit = one();
                    let clients = hit.entry(*pid).or_default();
                    let others = now
                        .clients
                        .iter()
                        .filter(|pid| !before.clients.contains(pid));
                    clients.clients.extend(others);
                    let why = self.fault();
                    self.hit(&hit, &format!("a client's fault on MPS server {pid}{why}"));
                }
                _ => {}
            }
        }
        for (pid, now) in &servers {
            if now.is_at_fault && !running.servers.contains_key(pid) {
                let why = self.fault();
                let one = BTreeMap::from([(
                    *pid,
                    Server {
                        is_at_fault: true,
                        clients: now.clients.clone(),
                    },
                )]);
                self.hit(&one, &format!("a client's fault on MPS server {pid}{why}"));
            }
        }
        running.servers = servers;
        self.node.set_mps(self.slot.key, self.up(running));
        self.bound_said();
        Ok(())
    }

    /// Tells whose contexts have failed.
    fn hit(&self, servers: &BTreeMap<u32, Server>, what: &str) {
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
            .tell(EventKind::MpsClientsFailed, &self.slot.name, "", text);
    }

    /// What the server's log says of the last fault, if it says anything.
    fn fault(&self) -> String {
        let said = tail(&self.beside("log").join("server.log"), 2 * SAID_MAX);
        let is_fault = |line: &&str| {
            let line = line.to_lowercase();
            line.contains("fatal") || line.contains("fault") || line.contains("exception")
        };
        let line = said.lines().rev().find(is_fault);
        line.map(|line| format!(" ({})", line.trim()))
            .unwrap_or_default()
    }

    fn bound_said(&self) {
        let path = self.beside("daemon.log");
        let Ok(file) = File::options().append(true).open(path) else {
            return;
        };
        if file
            .metadata()
            .is_ok_and(|about| about.len() > SAID_FILE_MAX)
        {
            let _kept = file.set_len(0);
        }
    }
}

impl Running {
    /// How it has ended; `None`: it runs, or nothing is known of its process.
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

/// Whether a process ends within so long.
fn has_ended(process: &OwnedFd, span: Duration) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&timespec(span))), Ok(count) if count > 0)
}

/// The last bytes of a file, as text.
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

/// The last line that a daemon has said.
fn last_said(path: &Path) -> String {
    let said = tail(path, SAID_MAX);
    let line = said.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("it said nothing").trim().to_owned()
}
