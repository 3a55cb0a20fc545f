//! The event loop in virtual time, processes and devices.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use agent_core::Event as AgentEvent;
use policy::tokens::ProcessId;
use preload_state::link;
use testing::Random;

use crate::checks::{Checks, Failure};
use crate::gpu::{Ended, Gpu};
use crate::moves::Memory;
use crate::node::{Delivery, Node};
use crate::plan::{Fault, Plan};
use crate::process::{Pace, Process};
use crate::queues::{Queue, QueueEvent};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// A thread of a process, as an index into [`Process::turns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thread {
    Program,
    Watch,
    Link,
    Mover,
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
    /// An operator orders a move of a model.
    Order,
    /// The agent's timer.
    Wake { generation: u64 },
    /// A kernel ends.
    Gpu { slot: usize },
    /// Something happens to a pod's queue.
    Queue { pod: usize, event: QueueEvent },
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
    /// Queues of all pods; empty without leases.
    pub(crate) queues: Vec<Queue>,
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
    /// Number of moves of models that operators have ordered and that were carried out.
    pub(crate) moves: u64,
    /// Number of requests that processes have computed under leases.
    pub(crate) requests: u64,
    /// Number of requests that another instance has taken.
    pub(crate) forwarded: u64,
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
            node: Node::new(&plan),
            processes: Vec::new(),
            queues: Vec::new(),
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
        world.node.memory = world.plan.memory();
        world.populate();
        world
    }

    fn populate(&mut self) {
        for pod in 0..self.plan.pods {
            let slot = self.random.index(self.plan.slots);
            let sm = [12, 24, 30, 50, 60, 100][self.random.index(6)];
            let limit = [10, 30, 50, 100, 100][self.random.index(5)];
            let memory = [0, 1 << 30][self.random.index(2)];
            if self.plan.requests_ms > 0 {
                let slot = if self.plan.siblings {
                    pod % self.plan.slots
                } else {
                    slot
                };
                // Those of exclusive slots have what the slot has.
                let (sm, memory) = match self.plan.shared {
                    true => (sm, 4 << 30),
                    false => (100, 0),
                };
                self.add_node_pod(pod, slot, sm, 100, memory);
            } else {
                self.add_node_pod(pod, slot, sm, limit, memory);
            }
        }
        self.start_agent();
        for pod in 0..self.plan.pods {
            let is_liar = pod > 0 && self.plan.has(Fault::Liar) && self.random.below(2) == 0;
            for _process in 0..self.plan.processes {
                let process = self.spawn(pod);
                self.processes[process].is_liar = is_liar;
                let mut delay = self.random.below(400 * MS);
                if self.plan.requests_ms > 0 {
                    // Once the slot has leases, most of the time: without, memory is granted to whom it comes first.
                    delay += 400 * MS;
                }
                self.begin(process, delay);
            }
        }
        if self.plan.requests_ms > 0 {
            self.begin_queues();
        }
        if !self.plan.faults.is_empty() {
            self.after_mean(self.plan.fault_ms * MS, Event::Fault);
        }
        if self.plan.orders_ms > 0 {
            self.after_mean(self.plan.orders_ms * MS, Event::Order);
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
            moves: self.checks.orders.carried_out(),
            requests: self.checks.requests_served,
            forwarded: self.checks.forwarded,
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
                    Thread::Mover => self.mover(process),
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
            Event::Order => self.order(),
            Event::Wake { generation } => self.agent_wakes(generation),
            Event::Gpu { slot } => {
                // Another one has been scheduled before it.
                if self.gpu_wakes_at[slot] != self.now {
                    return Ok(());
                }
                self.gpu_wakes_at[slot] = u64::MAX;
                self.advance_gpu(slot)
            }
            Event::Queue { pod, event } => self.queue_event(pod, event),
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
        let mut process = Process::new(pod, slot, pid, self.now, pace);
        if self.plan.requests_ms > 0 {
            process.memory = Memory::to_load(1 + self.random.below(300 << 20));
        } else if self.plan.orders_ms > 0 {
            process.memory = Memory::new(self.random.below(600 << 20));
        }
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
        // Its request is answered 502.
        self.request_ends(process)?;
        let own = &mut self.processes[process];
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
}
