//! The event loop in virtual time, and the way between processes and agent.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use agent_core::{Action, Event as AgentEvent, Order, Peer, PodKey};
use policy::tokens::ProcessId;
use preload_state::link;
use protocol::message::{FromAgent, FromProcess};
use testing::Random;

use crate::checks::{Checks, Failure};
use crate::gpu::{Ended, Gpu};
use crate::node::{Connection, Delivery, Node};
use crate::plan::{Fault, Plan};
use crate::process::{Pace, Process};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Number of connections which wait to be accepted.
const BACKLOG_MAX: usize = 128;

/// A thread of a process, as an index into [`Process::turns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thread {
    Program,
    Watch,
    Link,
}

/// What happens.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A thread goes on, unless it waits for something else by now.
    Go {
        process: usize,
        thread: Thread,
        turn: u64,
    },
    /// Something which the thread of the link waits for, unless it waits for something else by now.
    Link {
        process: usize,
        turn: u64,
        event: LinkEvent,
    },
    /// A process begins to initialise the driver.
    Begin(usize),
    /// The acts of a lying process.
    Lie(usize),
    /// A message arrives.
    Deliver {
        connection: usize,
        delivery: Delivery,
    },
    /// A connection is accepted.
    Accept { pod: usize, generation: u64 },
    /// The agent learns something from the operating system, or from its other parts.
    Agent { generation: u64, event: AgentEvent },
    /// Another part of this agent has found something.
    Found(u64, Found),
    /// The agent's timer.
    Wake { generation: u64 },
    /// A kernel ends.
    Gpu { slot: usize },
    /// A fault occurs.
    Fault,
    /// A fault ends.
    Repair(Repair),
}

/// Event of the link, as far as it is known when it is scheduled.
#[derive(Debug, Clone)]
pub(crate) enum LinkEvent {
    Connect(link::ConnectOutcome),
    NoReply,
    Nothing,
    Elapsed,
    Ended,
    Initialised,
    Run,
}

/// What another part of the agent has found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    Slot(usize),
    Mps(usize),
    Pod(usize),
}

/// End of a fault.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Repair {
    Continue(usize),
    ContinueAgent,
    StartAgent,
    Replace {
        pod: usize,
    },
    AddPod(usize),
    SlotBack(usize),
    MpsUp(usize),
    /// Nothing is broken from now on.
    All,
    /// What was done since then is measured from now on.
    Measure,
    End,
}

struct Scheduled {
    at: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A node with its processes in virtual time.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    pub(crate) random: Random,
    pub(crate) node: Node,
    pub(crate) processes: Vec<Process>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) checks: Checks,
    pub(crate) events: u64,
    pub(crate) is_healing: bool,
    pub(crate) is_over: bool,
    pub(crate) pods_seen: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    gpu_wakes_at: Vec<u64>,
    /// Events of stopped processes.
    deferred: Vec<(usize, Event)>,
    ended: Vec<Ended>,
    trace: Option<VecDeque<String>>,
    shown: usize,
}

/// What a run has simulated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Summary {
    pub(crate) events: u64,
    pub(crate) ns: u64,
    pub(crate) grants: u64,
    pub(crate) launches: u64,
}

/// Runs a plan.
///
/// # Errors
/// Returns the first violation of an invariant.
pub(crate) fn run(plan: &Plan) -> Result<Summary, Failure> {
    let mut world = World::new(plan.clone());
    world.run()
}

/// Runs a plan again, and returns its last events, at most `shown`, each with what follows from it.
pub(crate) fn trace(plan: &Plan, shown: usize) -> Vec<String> {
    let mut world = World::new(plan.clone());
    (world.trace, world.shown) = (Some(VecDeque::new()), shown);
    let _known = world.run();
    world.trace.unwrap_or_default().into()
}

impl World {
    fn new(plan: Plan) -> Self {
        let mut world = Self {
            now: SECOND,
            random: Random(plan.seed),
            node: Node::new(plan.slots),
            processes: Vec::new(),
            gpus: (0..plan.slots).map(|_| Gpu::new()).collect(),
            checks: Checks::default(),
            events: 0,
            is_healing: false,
            is_over: false,
            pods_seen: 0,
            queue: BinaryHeap::new(),
            scheduled: 0,
            gpu_wakes_at: vec![u64::MAX; plan.slots],
            deferred: Vec::new(),
            ended: Vec::new(),
            trace: None,
            shown: 0,
            plan,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for pod in 0..self.plan.pods {
            let slot = self.random.index(self.plan.slots);
            let sm = [12, 24, 30, 50, 60, 100][self.random.index(6)];
            let limit = [10, 30, 50, 100, 100][self.random.index(5)];
            let memory = [0, 1 << 30][self.random.index(2)];
            self.add_node_pod(pod, slot, sm, limit, memory);
        }
        self.start_agent();
        for pod in 0..self.plan.pods {
            let is_liar = pod > 0 && self.plan.has(Fault::Liar) && self.random.below(2) == 0;
            for _process in 0..self.plan.processes {
                let process = self.spawn(pod);
                self.processes[process].is_liar = is_liar;
                let delay = self.random.below(400 * MS);
                self.begin(process, delay);
            }
        }
        if !self.plan.faults.is_empty() {
            self.after_mean(self.plan.fault_ms * MS, Event::Fault);
        }
        let span = self.plan.span_ms * MS;
        self.after(span, Event::Repair(Repair::All));
        self.after(span + 3_500 * MS, Event::Repair(Repair::Measure));
        self.after(span + 6_000 * MS, Event::Repair(Repair::End));
    }

    fn run(&mut self) -> Result<Summary, Failure> {
        let begin = self.now;
        while !self.is_over {
            let Some(Reverse(next)) = self.queue.pop() else {
                break;
            };
            self.now = self.now.max(next.at);
            self.events += 1;
            if let Some(trace) = &mut self.trace {
                while trace.len() >= self.shown {
                    trace.pop_front();
                }
                let ms = (self.now - begin) / MS;
                let ns = (self.now - begin) % MS;
                trace.push_back(format!("{ms:>5}.{ns:06} ms  {:?}", next.event));
            }
            self.handle(next.event)?;
            self.checks.events(self.events)?;
        }
        Ok(Summary {
            events: self.events,
            ns: self.now - begin,
            grants: self.checks.grants,
            launches: self.processes.iter().map(|process| process.launched).sum(),
        })
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push_back(format!("{:>20}{}", "", text()));
        }
    }

    // Time

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled {
            at,
            number: self.scheduled,
            event,
        }));
    }

    pub(crate) fn after(&mut self, ns: u64, event: Event) {
        self.at(self.now.saturating_add(ns), event);
    }

    /// Schedules an event after an exponentially distributed time.
    pub(crate) fn after_mean(&mut self, mean_ns: u64, event: Event) {
        let ns = self.exponential(mean_ns);
        self.after(ns, event);
    }

    pub(crate) fn exponential(&mut self, mean_ns: u64) -> u64 {
        let unit = self.random.unit().max(1e-9);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a duration of seconds at most"
        )]
        let ns = (-unit.ln() * mean_ns as f64) as u64;
        ns
    }

    /// Returns the time that a message or a wake-up takes.
    pub(crate) fn delay(&mut self) -> u64 {
        if self.plan.has(Fault::Late) && !self.is_healing && self.random.below(50) == 0 {
            return self.random.below(50 * MS);
        }
        US + self.random.below(30 * US)
    }

    // Events

    fn handle(&mut self, event: Event) -> Result<(), Failure> {
        let process = match &event {
            Event::Go { process, .. } | Event::Link { process, .. } => Some(*process),
            Event::Begin(process) | Event::Lie(process) => Some(*process),
            Event::Deliver {
                connection,
                delivery: Delivery::ToProcess(..) | Delivery::ToProcessEnd,
            } => Some(self.node.connections[*connection].process),
            _ => None,
        };
        if let Some(process) = process {
            if !self.processes[process].is_alive {
                return Ok(());
            }
            if self.processes[process].is_stopped {
                self.deferred.push((process, event));
                return Ok(());
            }
        }
        match event {
            Event::Go {
                process,
                thread,
                turn,
            } => {
                if self.processes[process].turns[thread as usize] != turn {
                    return Ok(());
                }
                match thread {
                    Thread::Program => self.program(process),
                    Thread::Watch => self.watch(process),
                    Thread::Link => Ok(()),
                }
            }
            Event::Link {
                process,
                turn,
                event,
            } => {
                if self.processes[process].turns[Thread::Link as usize] == turn {
                    self.link_event(process, event)?;
                }
                Ok(())
            }
            Event::Begin(process) => {
                let event = link::Event::Begin { has_socket: true };
                self.link(process, event)
            }
            Event::Lie(process) => self.lie(process),
            Event::Deliver {
                connection,
                delivery,
            } => self.deliver(connection, delivery),
            Event::Accept { pod, generation } => self.accept(pod, generation),
            Event::Agent { generation, event } => self.agent_learns(generation, event),
            Event::Found(generation, found) => self.found(generation, found),
            Event::Wake { generation } => self.agent_wakes(generation),
            Event::Gpu { slot } => {
                // Another one has been scheduled before it.
                if self.gpu_wakes_at[slot] != self.now {
                    return Ok(());
                }
                self.gpu_wakes_at[slot] = u64::MAX;
                self.advance_gpu(slot)
            }
            Event::Fault => self.fault(),
            Event::Repair(repair) => self.repair(repair),
        }
    }

    /// Schedules the next step of a thread, which ends its present wait.
    pub(crate) fn go(&mut self, process: usize, thread: Thread, ns: u64) {
        let own = &mut self.processes[process];
        own.turns[thread as usize] += 1;
        let turn = own.turns[thread as usize];
        self.after(
            ns,
            Event::Go {
                process,
                thread,
                turn,
            },
        );
    }

    pub(crate) fn continue_process(&mut self, process: usize) {
        self.processes[process].is_stopped = false;
        let deferred = std::mem::take(&mut self.deferred);
        for (own, event) in deferred {
            if own == process {
                self.after(US, event);
            } else {
                self.deferred.push((own, event));
            }
        }
    }

    // Processes

    /// Creates a process of a pod.
    pub(crate) fn spawn(&mut self, pod: usize) -> usize {
        let number = self.processes.len();
        let pid = 100 + u32::try_from(number).unwrap();
        let random = &mut self.random;
        let pace = Pace {
            kernel_ns: [200 * US, 500 * US, 2 * MS, 8 * MS, 20 * MS][random.index(5)],
            burst: 1 + random.below_u32(12),
            pause_ns: [0, 500 * US, 5 * MS, 50 * MS][random.index(4)],
        };
        let slot = self.node.pods[pod].pod.slot.0 as usize;
        let process = Process::new(pod, slot, pid, self.now, pace);
        self.processes.push(process);
        number
    }

    pub(crate) fn begin(&mut self, process: usize, ns: u64) {
        let event = if self.processes[process].is_liar {
            Event::Lie(process)
        } else {
            Event::Begin(process)
        };
        self.after(ns, event);
    }

    /// Ends a process; another one starts in its pod.
    pub(crate) fn end_process(&mut self, process: usize) -> Result<(), Failure> {
        if !self.processes[process].is_alive {
            return Ok(());
        }
        self.close(process);
        let own = &mut self.processes[process];
        own.is_alive = false;
        own.is_stopped = false;
        let (pod, slot) = (own.pod, own.slot);
        self.deferred.retain(|(other, _)| *other != process);
        let mut ended = std::mem::take(&mut self.ended);
        let number = u32::try_from(process).unwrap();
        self.gpus[slot].dismiss(self.now, number, &mut ended);
        self.kernels_ended(slot, ended)?;
        // The kernel closes files before it ends the process.
        let numbers: Vec<ProcessId> = self
            .node
            .by_number
            .iter()
            .filter(|(_, connection)| self.node.connections[**connection].process == process)
            .map(|(number, _)| *number)
            .collect();
        let generation = self.node.generation;
        for number in numbers {
            let delay = self.random.below(3 * MS);
            let event = AgentEvent::Ended(number);
            self.after(delay, Event::Agent { generation, event });
        }
        let delay = 10 * MS + self.random.below(300 * MS);
        self.after(delay, Event::Repair(Repair::Replace { pod }));
        Ok(())
    }

    // Devices

    pub(crate) fn launch(&mut self, process: usize, ns: u64) -> Result<(), Failure> {
        let own = &mut self.processes[process];
        own.tag += 1;
        let (slot, tag) = (own.slot, own.tag);
        let number = u32::try_from(process).unwrap();
        let mut ended = std::mem::take(&mut self.ended);
        self.gpus[slot].launch(self.now, number, tag, ns, &mut ended);
        self.kernels_ended(slot, ended)
    }

    pub(crate) fn advance_gpu(&mut self, slot: usize) -> Result<(), Failure> {
        let mut ended = std::mem::take(&mut self.ended);
        self.gpus[slot].advance(self.now, &mut ended);
        self.kernels_ended(slot, ended)
    }

    fn kernels_ended(&mut self, slot: usize, mut ended: Vec<Ended>) -> Result<(), Failure> {
        for kernel in ended.drain(..) {
            self.kernel_ended(kernel)?;
        }
        self.ended = ended;
        if let Some(at) = self.gpus[slot].next()
            && at < self.gpu_wakes_at[slot]
        {
            self.gpu_wakes_at[slot] = at;
            self.at(at.max(self.now), Event::Gpu { slot });
        }
        Ok(())
    }

    // Connections

    /// Returns the outcome of an attempt of a process to connect.
    pub(crate) fn connect(&mut self, process: usize) -> link::ConnectOutcome {
        let pod = self.processes[process].pod;
        self.close(process);
        if self.node.agent.is_none() || !self.node.pods[pod].listens {
            return link::ConnectOutcome::NoAgent;
        }
        if self.node.pods[pod].backlog.len() >= BACKLOG_MAX {
            return link::ConnectOutcome::Busy;
        }
        let number = self.node.connections.len();
        self.node.connections.push(Connection {
            process,
            is_open: [true; 2],
            number: None,
            generation: self.node.generation,
            last: [0; 2],
            early: VecDeque::new(),
        });
        self.node.pods[pod].backlog.push_back(number);
        self.processes[process].connection = Some(number);
        let (generation, delay) = (self.node.generation, self.delay());
        self.after(delay, Event::Accept { pod, generation });
        link::ConnectOutcome::Connected
    }

    /// Sends a message of a process. Returns `false` when the connection has ended.
    pub(crate) fn send(&mut self, process: usize, message: &FromProcess) -> bool {
        let Some(connection) = self.processes[process].connection else {
            return false;
        };
        if !self.node.connections[connection].is_open[1] {
            // The library shuts the connection down, and its thread notices the end.
            return false;
        }
        self.note(|| format!("process {process} sends {message:?}"));
        self.convey(connection, 0, Delivery::ToAgent(message.clone()));
        // A repeated greeting is refused, as it has to be.
        if self.plan.has(Fault::Doubled) && !self.is_healing && self.random.below(20) == 0 {
            self.convey(connection, 0, Delivery::ToAgent(message.clone()));
        }
        true
    }

    /// Lets something travel over a connection, after what was sent before in the same direction.
    pub(crate) fn convey(&mut self, connection: usize, direction: usize, delivery: Delivery) {
        let delay = self.delay();
        let last = &mut self.node.connections[connection].last[direction];
        let at = (self.now + delay).max(*last + 1);
        *last = at;
        self.at(
            at,
            Event::Deliver {
                connection,
                delivery,
            },
        );
    }

    /// Closes the process's end of its connection.
    pub(crate) fn close(&mut self, process: usize) {
        if let Some(connection) = self.processes[process].connection.take() {
            self.processes[process].inbox.clear();
            self.node.connections[connection].is_open[0] = false;
            self.convey(connection, 0, Delivery::ToAgentEnd);
        }
    }

    /// Closes the agent's end of a connection.
    fn close_agents_end(&mut self, connection: usize) {
        let own = &mut self.node.connections[connection];
        if std::mem::take(&mut own.is_open[1]) {
            self.convey(connection, 1, Delivery::ToProcessEnd);
        }
    }

    fn deliver(&mut self, connection: usize, delivery: Delivery) -> Result<(), Failure> {
        let own = &mut self.node.connections[connection];
        match delivery {
            Delivery::ToProcess(message, pages) => {
                let process = own.process;
                if self.processes[process].connection == Some(connection) {
                    self.processes[process].inbox.push_back((message, pages));
                    self.receive(process)?;
                }
                Ok(())
            }
            Delivery::ToProcessEnd => {
                let process = own.process;
                if self.processes[process].connection == Some(connection) {
                    self.connection_ended(process)?;
                }
                Ok(())
            }
            Delivery::ToAgent(_) | Delivery::Garbage | Delivery::ToAgentEnd => {
                let is_current = own.generation == self.node.generation;
                if !own.is_open[1] || !is_current || self.node.agent.is_none() {
                    return Ok(());
                }
                let Some(process) = own.number else {
                    own.early.push_back(delivery);
                    return Ok(());
                };
                if matches!(delivery, Delivery::ToAgent(FromProcess::Present)) {
                    let process = own.process;
                    let revoked = self.revoked_unresponsive(self.processes[process].pod);
                    self.processes[process].answer_probe(revoked);
                }
                let event = match delivery {
                    Delivery::ToAgent(message) => AgentEvent::Message { process, message },
                    Delivery::Garbage => AgentEvent::Malformed {
                        process,
                        is_of_other_version: false,
                        text: "garbage".to_owned(),
                    },
                    _ => AgentEvent::Disconnected(process),
                };
                self.agent_learns(self.node.generation, event)
            }
        }
    }

    fn accept(&mut self, pod: usize, generation: u64) -> Result<(), Failure> {
        if generation != self.node.generation || self.node.agent.is_none() {
            return Ok(());
        }
        if self.node.hangs {
            return Ok(());
        }
        let own = &mut self.node.pods[pod];
        if !own.accepts || !own.is_there {
            return Ok(());
        }
        let Some(connection) = own.backlog.pop_front() else {
            return Ok(());
        };
        let process = &self.processes[self.node.connections[connection].process];
        let peer = process.is_alive.then_some(Peer {
            pid: process.pid,
            start: Some(process.start),
            is_watched: true,
            is_of_pod: true,
        });
        self.node.arriving = Some(connection);
        let pod = PodKey(u32::try_from(pod).unwrap());
        self.agent_learns(generation, AgentEvent::Connected { pod, peer })?;
        if self.node.arriving.take().is_some() {
            self.close_agents_end(connection);
        }
        Ok(())
    }

    // Agent

    pub(crate) fn agent_learns(
        &mut self,
        generation: u64,
        event: AgentEvent,
    ) -> Result<(), Failure> {
        if generation != self.node.generation || self.node.agent.is_none() {
            return Ok(());
        }
        if self.node.hangs {
            self.node.unread.push_back(event);
            return Ok(());
        }
        let mut follow_ups = VecDeque::from([event]);
        while let Some(event) = follow_ups.pop_front() {
            let now = self.agents_time();
            match &event {
                AgentEvent::SlotLost { slot, .. } => {
                    self.node.is_known_lost[slot.0 as usize] = true;
                }
                AgentEvent::SlotAdded(slot) => {
                    self.node.is_known_lost[slot.key.0 as usize] = false;
                }
                AgentEvent::PodAdded { pod, .. } => {
                    let own = &mut self.node.pods[pod.key.0 as usize];
                    own.served = (pod.serial, self.now);
                }
                _ => {}
            }
            let Some(agent) = &mut self.node.agent else {
                return Ok(());
            };
            let mut actions = Vec::new();
            agent.handle(now, &event, &mut actions);
            for action in actions {
                self.carry_out(action, &mut follow_ups)?;
            }
            self.check_agent()?;
        }
        self.schedule_wake();
        Ok(())
    }

    /// Lets a hung agent go on, which finds everything that has happened meanwhile.
    pub(crate) fn continue_agent(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.node.hangs) {
            return Ok(());
        }
        let generation = self.node.generation;
        for event in std::mem::take(&mut self.node.unread) {
            self.agent_learns(generation, event)?;
        }
        for pod in 0..self.node.pods.len() {
            for _waiting in 0..self.node.pods[pod].backlog.len() {
                self.after(US, Event::Accept { pod, generation });
            }
        }
        self.node.wakes_at = u64::MAX;
        self.schedule_wake();
        Ok(())
    }

    fn agents_time(&self) -> u64 {
        match self.node.clock {
            Some((shown, until)) if self.now < until => shown,
            _ => self.now,
        }
    }

    fn schedule_wake(&mut self) {
        let Some(agent) = &self.node.agent else {
            return;
        };
        let Some(at) = agent.agent().next_wake() else {
            return;
        };
        // The thread sleeps for the time until then by its own clock.
        let at = self.now + at.saturating_sub(self.agents_time());
        let at = at.max(self.now + 1);
        if at < self.node.wakes_at || self.node.wakes_at <= self.now {
            self.node.wakes_at = at;
            let generation = self.node.generation;
            // Timers are late by a little.
            let late = self.random.below(20 * US);
            self.at(at + late, Event::Wake { generation });
        }
    }

    fn agent_wakes(&mut self, generation: u64) -> Result<(), Failure> {
        if generation != self.node.generation || self.node.agent.is_none() {
            return Ok(());
        }
        if self.node.hangs {
            return Ok(());
        }
        let now = self.agents_time();
        let Some(agent) = &self.node.agent else {
            return Ok(());
        };
        if agent.agent().next_wake().is_some_and(|at| at <= now) {
            self.agent_learns(generation, AgentEvent::Wake)?;
            self.check_wakes(now)?;
        } else {
            self.schedule_wake();
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        action: Action,
        follow_ups: &mut VecDeque<AgentEvent>,
    ) -> Result<(), Failure> {
        match action {
            Action::Admit(number) => {
                let Some(connection) = self.node.arriving.take() else {
                    return Err(Failure::new("pairs", "a connection is admitted twice"));
                };
                self.node.connections[connection].number = Some(number);
                let before = self.node.by_number.insert(number, connection);
                if before.is_some() {
                    return Err(Failure::new("pairs", "a number is used twice"));
                }
                let early = std::mem::take(&mut self.node.connections[connection].early);
                for delivery in early {
                    self.convey(connection, 0, delivery);
                }
            }
            Action::Accept { pod, accepts } => {
                let pod = pod.0 as usize;
                self.node.pods[pod].accepts = accepts;
                if accepts {
                    let generation = self.node.generation;
                    for _waiting in 0..self.node.pods[pod].backlog.len() {
                        self.after(US, Event::Accept { pod, generation });
                    }
                }
            }
            Action::Send { process, message } => {
                let is_probe = message == FromAgent::Probe;
                if is_probe && let Some(connection) = self.node.connection(process) {
                    let process = self.node.connections[connection].process;
                    let revoked = self.revoked_unresponsive(self.processes[process].pod);
                    let own = &mut self.processes[process];
                    own.revoked_at_probe.get_or_insert(revoked);
                }
                let is_unsent = self.plan.has(Fault::Unsent)
                    && !self.is_healing
                    && matches!(message, FromAgent::Probe | FromAgent::Relinquish)
                    && self.random.below(3) == 0;
                if is_unsent || !self.convey_to_process(process, message, false) {
                    follow_ups.push_back(AgentEvent::NotSent { process, is_probe });
                }
            }
            Action::CreatePages { process, pages } => {
                self.checks.adopt_claim(process, pages.memory_claim);
                if let Some(connection) = self.node.connection(process) {
                    self.checks.greet(self.node.connections[connection].process);
                }
                if !self.convey_to_process(process, FromAgent::Pages, true) {
                    follow_ups.push_back(AgentEvent::PagesFailed {
                        process,
                        text: "the connection has ended".to_owned(),
                    });
                }
            }
            Action::Order { process, order } => self.ordered(process, order)?,
            Action::Disconnect(number) => {
                if let Some(connection) = self.node.connection(number) {
                    self.close_agents_end(connection);
                }
            }
            Action::Forget(number) => {
                let Some(connection) = self.node.by_number.remove(&number) else {
                    return Err(Failure::new("pairs", "an unknown process is forgotten"));
                };
                self.close_agents_end(connection);
            }
            Action::Kill(number) => {
                if let Some(connection) = self.node.connection(number) {
                    let process = self.node.connections[connection].process;
                    self.check_kill(process)?;
                    self.end_process(process)?;
                }
            }
            Action::Examine(number) => {
                if let Some(connection) = self.node.connection(number) {
                    let process = self.node.connections[connection].process;
                    if self.processes[process].is_stopped {
                        follow_ups.push_back(AgentEvent::Stopped(number));
                    }
                }
            }
            Action::ExamineSurvivor { pod, record } => {
                let is_alive = self.processes.iter().any(|process| {
                    process.is_alive && process.pid == record.pid && process.start == record.start
                });
                if !is_alive {
                    follow_ups.push_back(AgentEvent::SurvivorEnded { pod, record });
                }
            }
            Action::Roster { pod, records } => {
                self.node.pods[pod.0 as usize].roster = records;
            }
            Action::Publish => self.check_figures()?,
            Action::Log {
                level: agent_core::Level::Error,
                text,
                ..
            } => return Err(Failure::new("log", &text)),
            Action::Log { .. } | Action::Record { .. } | Action::Decline { .. } => {}
        }
        Ok(())
    }

    fn convey_to_process(
        &mut self,
        number: ProcessId,
        message: FromAgent,
        carries_pages: bool,
    ) -> bool {
        let Some(connection) = self.node.connection(number) else {
            return false;
        };
        let own = &self.node.connections[connection];
        if !own.is_open[0] || !own.is_open[1] {
            return false;
        }
        let agent = self.node.agent.as_ref();
        let pages = agent.and_then(|agent| agent.pages(number)).cloned();
        let pages = pages.filter(|_| carries_pages);
        self.convey(connection, 1, Delivery::ToProcess(message, pages));
        true
    }

    /// Wakes the threads which wait for a word that was written.
    fn ordered(&mut self, number: ProcessId, order: Order) -> Result<(), Failure> {
        let Some(connection) = self.node.connection(number) else {
            return Err(Failure::new("pairs", "an order to an unknown process"));
        };
        let process = self.node.connections[connection].process;
        self.note(|| format!("process {process} is ordered {order:?}"));
        self.check_order(process, number, order)?;
        let thread = match order {
            Order::Open { .. } | Order::Claim { .. } => Thread::Program,
            Order::Shut { .. }
            | Order::Contended {
                contended: true, ..
            } => Thread::Watch,
            _ => return Ok(()),
        };
        let is_in_use = self.node.agent.as_ref().is_some_and(|agent| {
            let pages = agent.pages(number);
            pages.is_some_and(|pages| std::sync::Arc::ptr_eq(pages, self.processes[process].page()))
        });
        if is_in_use {
            self.wake(process, thread);
        }
        Ok(())
    }
}
