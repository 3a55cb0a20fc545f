//! The event loop of the service's thread: ready descriptors and commands become events of [`Agent`], and its actions are carried
//! out (`execute`). Nothing is decided here.

use std::collections::{HashMap, VecDeque};
use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use agent_core::record::Recorder;
use agent_core::{Action, Agent, AgentFigures, Event, Facts, MoveOrder, Pod, PodKey};
use policy::tokens::ProcessId;
use protocol::message::Malformed;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::connection::{Connection, Received};
use super::later::Later;
use super::queue::QueueConnection;
use super::timer::Timer;
use super::{now_ns, roster};
use crate::state::{Command, Inbox, OrderReply, ServiceSettings};

/// Maximum number of messages of one process, or connections of one pod, handled before other descriptors.
const TURN_MAX: usize = 16;

/// Tag of the command channel in epoll data.
const WAKE: u64 = 0;
/// Tag of a pod's listener in epoll data; the low 32 bits are the pod's key.
const LISTENER: u64 = 1 << 32;
/// Tag of a process's connection in epoll data; the low 32 bits are the process's number.
const CONNECTION: u64 = 2 << 32;
/// Tag of a process's pidfd in epoll data; the low 32 bits are the process's number.
const PIDFD: u64 = 3 << 32;

/// Tag of a pod's listener for queues in epoll data; the low 32 bits are the pod's key.
const QUEUE_LISTENER: u64 = 4 << 32;
/// Tag of the connection of a pod's queue in epoll data; the low 32 bits are the pod's key.
const QUEUE: u64 = 5 << 32;
/// Tag of the timer in epoll data.
const TIMER: u64 = 6 << 32;

/// Listening socket of a pod.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    pub(super) pod: Arc<Pod>,
    accepts: bool,
    /// Listening socket for the queue of its requests.
    queue: Option<OwnedFd>,
}

/// The service's thread: everything that belongs to the operating system.
pub(super) struct Driver {
    pub(super) agent: Agent,
    pub(super) settings: ServiceSettings,
    pub(super) inbox: Inbox,
    epoll: OwnedFd,
    timer: Timer,
    pub(super) listeners: HashMap<PodKey, Listener>,
    pub(super) connections: HashMap<ProcessId, Connection>,
    /// Connection which the agent may admit now.
    arriving: Option<Connection>,
    /// Connections of pods' queues.
    pub(super) queues: HashMap<PodKey, QueueConnection>,
    /// Queue which the agent may admit now.
    arriving_queue: Option<QueueConnection>,
    pub(super) replies: HashMap<u64, OrderReply>,
    replies_seen: u64,
    /// Events which follow from the execution of actions.
    pub(super) follow_ups: VecDeque<Event>,
    /// Events from other threads.
    pub(super) later: Later,
    pub(super) figures: AgentFigures,
    pub(super) recorder: Option<Recorder>,
    is_stopping: bool,
    /// Buffers without contents between events.
    observed: Vec<ProcessId>,
    facts: Facts,
    actions: Vec<Action>,
}

impl Driver {
    pub(super) fn new(settings: ServiceSettings, inbox: Inbox) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            inbox.wake(),
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN,
        )?;
        let timer = Timer::new()?;
        epoll::add(
            &epoll,
            timer.descriptor(),
            epoll::EventData::new_u64(TIMER),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let waker = inbox.waker();
        let tokens = settings.tokens.scheduler();
        let recorder = match &settings.record {
            Some(path) => Some(Recorder::new(
                append_to(path)?,
                crate::COMMIT,
                &tokens,
                settings.memory,
            )?),
            None => None,
        };
        Ok(Self {
            agent: Agent::new(tokens).with_memory(settings.memory),
            settings,
            inbox,
            epoll,
            timer,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            arriving: None,
            queues: HashMap::new(),
            arriving_queue: None,
            replies: HashMap::new(),
            replies_seen: 0,
            follow_ups: VecDeque::new(),
            later: Later::new(waker),
            figures: AgentFigures::default(),
            recorder,
            is_stopping: false,
            observed: Vec::new(),
            facts: Facts::default(),
            actions: Vec::new(),
        })
    }

    pub(super) fn run(mut self) {
        // Without the privilege, hand-overs take longer.
        let _nice = rustix::process::setpriority_process(None, -10);
        let mut ready = Vec::with_capacity(256);
        while !self.is_stopping {
            let wake = self.agent.next_wake();
            let is_due = wake.is_some_and(|at| at <= now_ns());
            if let Some(at) = wake.filter(|_| !is_due)
                && let Err(error) = self.timer.wake_by(at)
            {
                tracing::error!(%error, "cannot set the timer");
                return;
            }
            ready.clear();
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut ready),
                is_due.then_some(&Timespec::default()),
            );
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for events");
                    return;
                }
            }
            self.figures.wakeups += 1;
            for event in &ready {
                self.handle_ready(event.data.u64());
            }
            if self.agent.next_wake().is_some_and(|at| at <= now_ns()) {
                self.dispatch(Event::Wake);
            }
            if self.inbox.take_figures_request() {
                self.dispatch(Event::FiguresWanted);
            }
        }
        if let Some(mut recorder) = self.recorder.take()
            && let Err(error) = recorder.flush()
        {
            tracing::error!(%error, "cannot write the record");
        }
    }

    /// Passes an event to the agent, with the facts which it needs, and carries out the actions; likewise all events which
    /// follow from them.
    fn dispatch(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next {
            let now = now_ns();
            let mut observed = std::mem::take(&mut self.observed);
            self.agent.observes(now, &event, &mut observed);
            for process in observed.drain(..) {
                self.observe(now, process);
            }
            self.observed = observed;
            self.handle(now, &event);
            next = self.follow_ups.pop_front();
        }
    }

    fn observe(&mut self, now: u64, process: ProcessId) {
        let mut facts = std::mem::take(&mut self.facts);
        let connection = self.connections.get_mut(&process);
        if !connection.is_some_and(|connection| connection.read(&mut facts)) {
            self.facts = facts;
            return;
        }
        let event = Event::Facts { process, facts };
        self.handle(now, &event);
        if let Event::Facts { facts, .. } = event {
            self.facts = facts;
        }
    }

    fn handle(&mut self, now: u64, event: &Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.agent.handle(now, event, &mut actions);
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.append(now, event, &actions)
        {
            tracing::error!(%error, "cannot write the record: it ends here");
            self.recorder = None;
        }
        for action in actions.drain(..) {
            self.execute(action);
        }
        self.actions = actions;
    }

    /// Handles a ready descriptor by the tag in its epoll data.
    fn handle_ready(&mut self, data: u64) {
        let number = u32::try_from(data & u64::from(u32::MAX)).unwrap_or(0);
        match data >> 32 << 32 {
            LISTENER => self.accept(PodKey(number)),
            CONNECTION => self.receive(ProcessId(number)),
            PIDFD => self.dispatch(Event::Ended(ProcessId(number))),
            QUEUE_LISTENER => self.accept_queue(PodKey(number)),
            QUEUE => self.receive_queue(PodKey(number)),
            TIMER => self.timer.expire(),
            _ => {
                self.inbox.clear_wake();
                while let Some(event) = self.later.next() {
                    self.dispatch(event);
                }
                while let Some(command) = self.inbox.next() {
                    self.command(command);
                    if self.is_stopping {
                        return;
                    }
                }
            }
        }
    }

    /// Accepts connections of a pod, as long as the agent does.
    fn accept(&mut self, key: PodKey) {
        for _connection in 0..TURN_MAX {
            let Some(listener) = self.listeners.get(&key).filter(|own| own.accepts) else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let pod = &listener.pod;
            let socket = match rustix::net::accept_with(&listener.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(error) => {
                    tracing::warn!(pod = pod.display(), %error, "cannot accept a connection");
                    return self.dispatch(Event::AcceptFailed(key));
                }
            };
            let peer = match Connection::identify(socket, pod) {
                Ok((connection, peer)) => {
                    self.arriving = Some(connection);
                    Some(peer)
                }
                Err(error) => {
                    tracing::debug!(pod = pod.display(), %error, "the connecting process has ended");
                    None
                }
            };
            self.dispatch(Event::Connected { pod: key, peer });
            // Closed, unless the agent has admitted it.
            self.arriving = None;
        }
    }

    /// Keeps the arriving connection under this number.
    pub(super) fn admit(&mut self, process: ProcessId) {
        let Some(connection) = self.arriving.take() else {
            return;
        };
        let watched = [
            (CONNECTION, connection.socket()),
            (PIDFD, connection.pidfd()),
        ];
        for (tag, descriptor) in watched {
            let Some(descriptor) = descriptor else {
                continue;
            };
            let data = epoll::EventData::new_u64(tag | u64::from(process.0));
            if epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN).is_err() {
                self.follow_ups.push_back(Event::Disconnected(process));
            }
        }
        self.connections.insert(process, connection);
    }

    /// Accepts connections of a pod's queue.
    fn accept_queue(&mut self, key: PodKey) {
        for _connection in 0..TURN_MAX {
            let listener = self.listeners.get(&key);
            let Some((listener, queue)) = listener.and_then(|own| Some((own, own.queue.as_ref()?)))
            else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let pod = &listener.pod;
            let socket = match rustix::net::accept_with(queue, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(error) => {
                    tracing::warn!(pod = pod.display(), %error, "cannot accept the pod's queue");
                    return self.dispatch(Event::AcceptFailed(key));
                }
            };
            let is_of_pod = QueueConnection::belongs(&socket, pod);
            self.arriving_queue = Some(QueueConnection::new(socket));
            self.dispatch(Event::QueueConnected {
                pod: key,
                is_of_pod,
            });
            // Closed, unless the agent has admitted it.
            self.arriving_queue = None;
        }
    }

    /// Keeps the arriving connection of a pod's queue.
    pub(super) fn admit_queue(&mut self, key: PodKey) {
        let Some(connection) = self.arriving_queue.take() else {
            return;
        };
        let data = epoll::EventData::new_u64(QUEUE | u64::from(key.0));
        if epoll::add(
            &self.epoll,
            connection.socket(),
            data,
            epoll::EventFlags::IN,
        )
        .is_err()
        {
            return self.follow_ups.push_back(Event::QueueDisconnected(key));
        }
        self.queues.insert(key, connection);
    }

    /// Reads a message of a pod's queue. If there is another one, which is rare, its descriptor is ready again.
    fn receive_queue(&mut self, key: PodKey) {
        let Some(connection) = self.queues.get(&key) else {
            return;
        };
        let event = match connection.next() {
            Received::Message(message) => Event::QueueMessage { pod: key, message },
            Received::Nothing => return,
            Received::Malformed(malformed) => Event::QueueMalformed {
                pod: key,
                text: malformed.to_string(),
            },
            Received::End => {
                self.queues.remove(&key);
                Event::QueueDisconnected(key)
            }
        };
        self.dispatch(event);
    }

    /// Sets whether connections of a pod are accepted.
    pub(super) fn set_accepting(&mut self, key: PodKey, accepts: bool) {
        let Some(listener) = self.listeners.get_mut(&key) else {
            return;
        };
        listener.accepts = accepts;
        let data = epoll::EventData::new_u64(LISTENER | u64::from(key.0));
        let events = if accepts {
            epoll::EventFlags::IN
        } else {
            epoll::EventFlags::empty()
        };
        let queue_data = epoll::EventData::new_u64(QUEUE_LISTENER | u64::from(key.0));
        let queue = listener.queue.as_ref().map_or(Ok(()), |queue| {
            epoll::modify(&self.epoll, queue, queue_data, events)
        });
        let modified = epoll::modify(&self.epoll, &listener.socket, data, events).and(queue);
        if let Err(error) = modified {
            let pod = listener.pod.display();
            tracing::error!(pod, %error, "cannot listen for the pod's processes");
        }
    }

    /// Reads messages of a process, at most [`TURN_MAX`].
    fn receive(&mut self, process: ProcessId) {
        for _message in 0..TURN_MAX {
            let Some(connection) = self.connections.get(&process) else {
                return;
            };
            let event = match connection.next() {
                Received::Message(message) => Event::Message { process, message },
                Received::Nothing => return,
                Received::Malformed(malformed) => Event::Malformed {
                    process,
                    is_of_other_version: matches!(malformed, Malformed::Version(_)),
                    text: malformed.to_string(),
                },
                Received::End => return self.dispatch(Event::Disconnected(process)),
            };
            self.dispatch(event);
        }
    }

    /// Turns a command of the agent's other parts into an event.
    fn command(&mut self, command: Command) {
        let event = match command {
            Command::SlotAdded(slot) | Command::SlotBack(slot) => Event::SlotAdded(slot),
            Command::SlotLost { slot, reason } => Event::SlotLost { slot, reason },
            Command::MpsState { slot, is_up, text } => Event::MpsState { slot, is_up, text },
            Command::DeviceMemory { slot, processes } => Event::DeviceMemory { slot, processes },
            Command::PodAdded {
                pod,
                listener,
                queue,
            } => {
                let survivors = roster::survivors(&pod.folder);
                if let Err(error) = self.listen(&pod, listener, queue) {
                    let pod = pod.display();
                    tracing::error!(pod, %error, "cannot listen for the pod's processes");
                    return;
                }
                Event::PodAdded { pod, survivors }
            }
            Command::PodChanged(pod) => {
                if let Some(listener) = self.listeners.get_mut(&pod.key) {
                    listener.pod = Arc::clone(&pod);
                }
                Event::PodChanged(pod)
            }
            Command::PodRemoved(key) => {
                self.dispatch(Event::PodRemoved(key));
                self.listeners.remove(&key);
                self.queues.remove(&key);
                return;
            }
            Command::Move {
                pod,
                order,
                drain_ms,
                waits,
                answer,
            } => {
                self.replies_seen += 1;
                let number = self.replies_seen;
                self.replies.insert(number, answer);
                let order = MoveOrder {
                    number,
                    order,
                    drain_ms,
                    waits,
                };
                Event::Ordered { pod, order }
            }
            Command::Stop => {
                self.is_stopping = true;
                return;
            }
        };
        self.dispatch(event);
    }

    fn listen(
        &mut self,
        pod: &Arc<Pod>,
        socket: OwnedFd,
        queue: Option<OwnedFd>,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(LISTENER | u64::from(pod.key.0));
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)?;
        if let Some(queue) = &queue {
            let data = epoll::EventData::new_u64(QUEUE_LISTENER | u64::from(pod.key.0));
            epoll::add(&self.epoll, queue, data, epoll::EventFlags::IN)?;
        }
        let listener = Listener {
            socket,
            pod: Arc::clone(pod),
            accepts: true,
            queue,
        };
        // Dropping the socket of an earlier pod removes it from epoll.
        self.listeners.insert(pod.key, listener);
        Ok(())
    }
}

/// Opens the file of a record. The last line of an earlier agent may have been cut.
fn append_to(path: &Path) -> io::Result<Box<dyn io::Write + Send>> {
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).read(true).open(path)?;
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(-1)).is_ok() {
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(Box::new(io::BufWriter::new(file)))
}
