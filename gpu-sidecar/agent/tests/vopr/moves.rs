//! Models which move between device and host: orders of operators, the mover thread of each process around the library's state, and what must
//! hold of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_core::local::SharedPages;
use agent_core::{AgentFigures, Event as AgentEvent, MoveOrder, OrderAnswer, PodKey, PodOrder};
use preload_state::gate::{HUNG_AFTER, IN_FLIGHT_POLL, RECHECK_INTERVAL};
use preload_state::memory_gate::MemoryGate;
use preload_state::mover::{Mover, MoverStep, Situation};
use preload_state::nanoseconds;
use preload_state::silence::Silence;
use protocol::message::{FromProcess, MoveRefusal, MoveReport, Transfer};
use protocol::page::Residency;

use crate::checks::{Failure, ensure, was_ungated};
use crate::process::{Process, Program};
use crate::world::{Event, MS, SECOND, Thread, US, World};

/// Time for which an order may wait for its answer once nothing is broken any more, in nanoseconds: two drains and two moves.
const ANSWER_NS: u64 = 3 * SECOND;
/// Pause after a restore without an agent that has failed, in nanoseconds.
const RETRY_NS: u64 = SECOND;

/// What the mover thread does.
#[derive(Debug, Clone, Copy)]
enum MoverState {
    /// It waits for its word.
    Idle,
    /// It waits until nothing is in flight, for the order of this number.
    Draining { seq: u32, until: u64 },
    /// It copies; the move ends so.
    Moving {
        seq: u32,
        to_host: bool,
        refusal: Option<MoveRefusal>,
    },
    /// It pauses.
    Paused,
}

/// Device memory of a process, and its host memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) gate: MemoryGate,
    /// Total size of the windows, in bytes, and of those that may be registered.
    pub(crate) windows: u64,
    pub(crate) pinned: u64,
    /// Part of the windows that is registered with the driver, in bytes.
    pub(crate) registered: u64,
    bytes: u64,
    /// Size of the model that is still to be loaded, in bytes.
    to_load: u64,
    is_away: bool,
    /// Number of launches at which the host had every byte.
    sealed_at: Option<u64>,
    mover: Mover,
    state: MoverState,
    /// Page of the order that is carried out.
    page: Option<Arc<SharedPages>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Memory {
    pub(crate) const fn new(bytes: u64) -> Self {
        Self {
            gate: MemoryGate::new(),
            windows: 0,
            pinned: 0,
            registered: 0,
            bytes,
            to_load: 0,
            is_away: false,
            sealed_at: None,
            mover: Mover::new(),
            state: MoverState::Idle,
            page: None,
        }
    }

    /// Creates the memory of a process that has not loaded its model.
    pub(crate) fn to_load(bytes: u64) -> Self {
        let mut memory = Self::new(0);
        memory.to_load = bytes;
        memory
    }

    /// Returns the size of the model that is still to be loaded, in bytes.
    pub(crate) const fn left_to_load(&self) -> u64 {
        self.to_load
    }

    /// Notes that the model is there.
    pub(crate) const fn loaded(&mut self) {
        self.bytes = self.to_load;
        self.to_load = 0;
    }

    pub(crate) const fn is_away(&self) -> bool {
        self.is_away
    }

    /// Returns what it takes on the device, in bytes.
    pub(crate) const fn on_device(&self) -> u64 {
        let is_there =
            !self.is_away || matches!(self.state, MoverState::Moving { to_host: false, .. });
        if is_there { self.bytes } else { 0 }
    }

    /// Returns where the memory is between moves.
    const fn place(&self) -> Residency {
        if self.is_away {
            Residency::Host
        } else {
            Residency::Resident
        }
    }

    pub(crate) const fn is_idle(&self) -> bool {
        matches!(self.state, MoverState::Idle)
    }

    pub(crate) const fn add_window(&mut self, bytes: u64, is_pinned: bool) {
        self.windows += bytes;
        if is_pinned {
            self.pinned += bytes;
        }
    }
}

/// Orders of operators that are not answered.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    last: u64,
    /// Time and pod of each, by its number.
    open: BTreeMap<u64, (u64, usize)>,
    carried_out: u64,
}

impl Orders {
    /// Forgets the orders of an agent that has ended, which answers none of them.
    pub(crate) fn forget_agent(&mut self) {
        self.open.clear();
    }

    pub(crate) const fn carried_out(&self) -> u64 {
        self.carried_out
    }
}

impl Process {
    fn publish_residency(&self, residency: Residency) {
        let word = &self.facts().residency;
        word.store(residency as u32, Ordering::Release);
    }

    /// Registers as much host memory as it may, and states by which limit; what is beyond it is released one step before.
    fn register(&mut self, orders: &protocol::page::Orders) {
        let limit = orders.pinned_max.load(Ordering::Acquire);
        let Some(most) = limit.checked_sub(1) else {
            self.memory.registered = self.memory.pinned;
            return;
        };
        // Staging memory counts beside windows.
        let most = most.min(self.memory.windows.saturating_mul(2));
        if self.memory.registered > most {
            self.memory.registered = most;
            return;
        }
        self.memory.pinned = most;
        self.facts().pinned_max.store(limit, Ordering::Release);
        self.memory.registered = most;
    }
}

impl World {
    // The operator

    /// Orders a move of some pod's model; once nothing is broken any more, all models return.
    pub(crate) fn order(&mut self) -> Result<(), Failure> {
        if self.is_healing {
            self.after(100 * MS, Event::Order);
            for pod in 0..self.node.pods.len() {
                self.order_of(pod, PodOrder::Restore)?;
            }
            return Ok(());
        }
        self.after_mean(self.plan.orders_ms * MS, Event::Order);
        let pod = self.random.index(self.node.pods.len());
        let order = [PodOrder::Evict, PodOrder::Evict, PodOrder::Restore][self.random.index(3)];
        self.order_of(pod, order)
    }

    fn order_of(&mut self, pod: usize, order: PodOrder) -> Result<(), Failure> {
        if self.node.agent.is_none() {
            return Ok(());
        }
        let orders = &mut self.checks.orders;
        orders.last += 1;
        let number = orders.last;
        orders.open.insert(number, (self.now, pod));
        let order = MoveOrder {
            number,
            order,
            drain_ms: [0, 20, 1_000][self.random.index(3)],
            waits: self.random.below(3) > 0,
        };
        let generation = self.node.generation;
        let pod = PodKey(u32::try_from(pod).unwrap());
        self.agent_learns(generation, AgentEvent::Ordered { pod, order })
    }

    /// Each order is answered once, and a model is where the answer states it.
    pub(crate) fn answered(&mut self, number: u64, answer: OrderAnswer) -> Result<(), Failure> {
        self.note(|| format!("order {number} is answered {answer:?}"));
        let known = self.checks.orders.open.remove(&number);
        let Some((_, pod)) = known else {
            return Err(Failure::new("orders", "an order is answered twice"));
        };
        let (OrderAnswer::Done { residency, .. }, Some(agent)) = (answer, &self.node.agent) else {
            return Ok(());
        };
        self.checks.orders.carried_out += 1;
        let is_host = residency == Residency::Host;
        for (number, connection) in &self.node.by_number {
            let process = self.node.connections[*connection].process;
            let own = &self.processes[process];
            let Some(pages) = agent.pages(*number) else {
                continue;
            };
            let seq = pages.orders.order_seq.load(Ordering::Relaxed);
            let has_obeyed = seq != 0
                && own.agent_pages().is_some_and(|own| Arc::ptr_eq(own, pages))
                && pages.facts.done_seq.load(Ordering::Relaxed) == seq;
            // A process which is to return while it is connecting again is ordered to do so once it is connected; it may not know yet that the
            // agent has closed its connection.
            let is_open = self.node.connections[*connection].is_open[1];
            let is_reachable = is_host || own.is_served() && is_open;
            let is_honest = own.is_alive && !own.is_liar && !was_ungated(own, self.now);
            let counts = own.pod == pod && is_reachable && is_honest;
            let is_there = own.memory.is_away == is_host;
            ensure(!counts || !has_obeyed || is_there, "orders", || {
                format!(
                    "the model of pod {pod} is stated to be {}, and that of process {process} is away: {}",
                    residency.name(),
                    own.memory.is_away
                )
            })?;
        }
        Ok(())
    }

    // The program

    /// Lets the program wait until the memory is there.
    pub(crate) fn wait_for_memory(
        &mut self,
        process: usize,
        mut silence: Silence,
    ) -> Result<(), Failure> {
        let own = &self.processes[process];
        if own.memory.gate.shut_at().is_none() {
            self.processes[process].program = Program::Launching;
            let delay = US + self.random.below(20 * US);
            self.go(process, Thread::Program, delay);
            return Ok(());
        }
        let (page, is_served) = (Arc::clone(own.page()), own.is_served());
        let interval = RECHECK_INTERVAL;
        if silence.has_lasted(&page.orders, is_served, interval, interval, HUNG_AFTER) {
            self.give_agent_up(process)?;
        }
        if self.processes[process].is_served() {
            let _lost = self.send(process, &FromProcess::MemoryWanted);
        }
        self.processes[process].program = Program::Away(silence);
        self.go(process, Thread::Program, nanoseconds(interval));
        Ok(())
    }

    // The mover

    /// Lets the mover thread go on.
    pub(crate) fn mover(&mut self, process: usize) -> Result<(), Failure> {
        match self.processes[process].memory.state {
            MoverState::Idle | MoverState::Paused => {
                self.processes[process].memory.state = MoverState::Idle;
                self.begin_move(process);
                Ok(())
            }
            MoverState::Draining { seq, until } => self.drain(process, seq, until),
            MoverState::Moving {
                seq,
                to_host,
                refusal,
            } => {
                self.end_move(process, seq, to_host, refusal);
                Ok(())
            }
        }
    }

    fn begin_move(&mut self, process: usize) {
        let now = self.now;
        let own = &mut self.processes[process];
        let page = Arc::clone(own.page());
        let is_away = own.memory.is_away;
        own.publish_residency(own.memory.place());
        let is_sealed = !is_away && own.memory.sealed_at == Some(own.launched);
        let sealed = &own.facts().sealed;
        sealed.store(u32::from(is_sealed), Ordering::Relaxed);
        let situation = Situation {
            has_agent: own.agent_pages().is_some(),
            is_away,
            needed: if own.is_served() { own.memory.bytes } else { 0 },
            windows: own.memory.windows,
            calls: u32::try_from(own.launched).unwrap(),
            is_sealed,
            now,
        };
        let step = own.memory.mover.step(&page.orders, situation);
        if let MoverStep::Sleep { .. } = step {
            own.register(&page.orders);
        }
        own.memory.page = Some(page);
        // Moves take up to 200 ms; refusals are those which a process finds by itself.
        let longest = [2 * MS, self.longest_move()][self.random.index(2)];
        let span = self.random.below(longest);
        let refuses = !self.is_healing && self.random.below(20) == 0;
        let own = &mut self.processes[process];
        // A pod of which one process does not leave and another does not return is torn, and takes memory of which leases know nothing.
        let restores = self.plan.requests_ms == 0;
        match step {
            MoverStep::Evict { seq, .. } if refuses => {
                self.answer(process, seq, Some(MoveRefusal::Capturing));
                self.go(process, Thread::Mover, US);
            }
            MoverStep::Evict { seq, drain_ms } => {
                own.publish_residency(Residency::Closing);
                own.memory.gate.shut();
                let until = now + u64::from(drain_ms) * MS;
                own.memory.state = MoverState::Draining { seq, until };
                self.go(process, Thread::Mover, 10 * US);
            }
            MoverStep::Restore { seq } => {
                own.publish_residency(Residency::Restoring);
                let refusal = (refuses && restores).then_some(MoveRefusal::NoMemory);
                own.memory.state = MoverState::Moving {
                    seq,
                    to_host: false,
                    refusal,
                };
                let slot = own.slot;
                if let Err(failure) = self.check_slot_memory(slot) {
                    self.checks.failed.get_or_insert(failure);
                }
                self.go(process, Thread::Mover, span);
            }
            MoverStep::Confirm { seq } => {
                self.answer(process, seq, None);
                self.go(process, Thread::Mover, US);
            }
            MoverStep::Request { bytes } => {
                let _lost = self.send(process, &FromProcess::WindowsWanted { bytes });
                self.go(process, Thread::Mover, US);
            }
            MoverStep::Seal => {
                own.memory.sealed_at = Some(own.launched);
                self.go(process, Thread::Mover, span);
            }
            MoverStep::SealAndConfirm { seq } => {
                if own.orders().gate.is_open() && !own.is_marked && own.flights.is_empty() {
                    own.memory.sealed_at = Some(own.launched);
                    own.facts().sealed.store(1, Ordering::Relaxed);
                }
                self.answer(process, seq, None);
                self.go(process, Thread::Mover, span);
            }
            MoverStep::Sleep { at_most } => {
                self.go(process, Thread::Mover, nanoseconds(at_most).max(US));
            }
        }
    }

    /// Returns the longest time of a move, in nanoseconds: short enough for requests which wait for several of them.
    const fn longest_move(&self) -> u64 {
        if self.plan.requests_ms > 0 {
            20 * MS
        } else {
            200 * MS
        }
    }

    fn drain(&mut self, process: usize, seq: u32, until: u64) -> Result<(), Failure> {
        let number = u32::try_from(process).unwrap();
        let now = self.now;
        let own = &mut self.processes[process];
        own.reap();
        let is_busy = self.gpus[own.slot].is_busy(number) || !own.flights.is_empty();
        if own.is_marked || is_busy {
            if now < until {
                self.go(process, Thread::Mover, nanoseconds(IN_FLIGHT_POLL));
            } else {
                self.refuse(process, seq, MoveRefusal::Draining);
            }
            return Ok(());
        }
        if own.memory.windows < own.memory.bytes {
            own.memory.mover.lacks_windows();
            self.refuse(process, seq, MoveRefusal::NoMemory);
            return Ok(());
        }
        own.publish_residency(Residency::Evicting);
        // Its memory can be neither copied nor returned, very rarely.
        let is_lost = self.plan.requests_ms == 0 && !self.is_healing && self.random.below(50) == 0;
        let longest = self.longest_move();
        let span = self.random.below(longest);
        let own = &mut self.processes[process];
        let refusal = is_lost.then_some(MoveRefusal::StickyError);
        own.memory.state = MoverState::Moving {
            seq,
            to_host: true,
            refusal,
        };
        self.go(process, Thread::Mover, span);
        Ok(())
    }

    /// Refuses an eviction that has shut the gate.
    fn refuse(&mut self, process: usize, seq: u32, refusal: MoveRefusal) {
        self.processes[process].publish_residency(Residency::Resident);
        self.open_memory(process);
        self.answer(process, seq, Some(refusal));
        self.processes[process].memory.state = MoverState::Idle;
        self.go(process, Thread::Mover, US);
    }

    fn end_move(&mut self, process: usize, seq: u32, to_host: bool, refusal: Option<MoveRefusal>) {
        let own = &mut self.processes[process];
        // What could not be moved is on the host in either case.
        own.memory.is_away = to_host || refusal.is_some();
        own.memory.state = MoverState::Idle;
        let place = own.memory.place();
        own.publish_residency(place);
        let is_alone = seq == 0 && refusal.is_some();
        self.answer(process, seq, refusal);
        if place == Residency::Resident {
            self.open_memory(process);
        }
        if is_alone {
            self.processes[process].memory.state = MoverState::Paused;
            self.go(process, Thread::Mover, RETRY_NS);
        } else {
            self.go(process, Thread::Mover, US);
        }
    }

    fn open_memory(&mut self, process: usize) {
        let own = &mut self.processes[process];
        own.memory.gate.open();
        if matches!(own.program, Program::Away(_)) {
            let delay = self.delay();
            self.go(process, Thread::Program, delay);
        }
    }

    /// Answers an order of a page: number, and message.
    fn answer(&mut self, process: usize, seq: u32, refusal: Option<MoveRefusal>) {
        let own = &mut self.processes[process];
        let page = own.memory.page.take();
        if page.is_none_or(|page| !Arc::ptr_eq(&page, own.page())) {
            return;
        }
        own.facts().done_seq.store(seq, Ordering::Release);
        if !own.is_served() {
            return;
        }
        let number = own.facts().residency.load(Ordering::Relaxed);
        let report = MoveReport {
            seq,
            residency: Residency::from_number(number).unwrap(),
            refusal,
            transfer: Transfer::default(),
        };
        let _lost = self.send(process, &FromProcess::Moved(report));
    }

    /// Returns the report of a lying process on a move.
    pub(crate) fn false_report(&mut self, wild: u64) -> FromProcess {
        let places = [
            Residency::None,
            Residency::Host,
            Residency::Resident,
            Residency::Closing,
        ];
        FromProcess::Moved(MoveReport {
            seq: self.random.below_u32(4),
            residency: places[self.random.index(4)],
            refusal: [None, Some(MoveRefusal::StickyError)][self.random.index(2)],
            transfer: Transfer {
                bytes: wild,
                copied_bytes: wild,
                total_ns: wild,
                ..Transfer::default()
            },
        })
    }

    // Checks

    /// Invariant 6: nothing is launched while the memory is not on the device.
    pub(crate) fn check_memory(&self, process: usize) -> Result<(), Failure> {
        let memory = &self.processes[process].memory;
        let moves = matches!(memory.state, MoverState::Moving { .. });
        ensure(!memory.is_away && !moves, "memory", || {
            let (is_away, state) = (memory.is_away, memory.state);
            format!("process {process} launches, and its memory is away: {is_away}, {state:?}")
        })
    }

    /// Every order is answered, and the host memory that the agent counts is what processes have.
    pub(crate) fn check_moves(&self) -> Result<(), Failure> {
        let mut open = self.checks.orders.open.iter();
        let late = open.find(|(_, (at, _))| *at + ANSWER_NS < self.now);
        ensure(late.is_none(), "orders", || {
            format!("order {late:?} is not answered")
        })?;
        let Some(agent) = &self.node.agent else {
            return Ok(());
        };
        let figures = agent.agent();
        let figures = figures.figures(&BTreeMap::new(), AgentFigures::default());
        let processes = figures.pods.iter().flat_map(|pod| &pod.processes);
        let counted: u64 = processes.map(|process| process.host_bytes).sum();
        let alive = self.processes.iter().filter(|process| process.is_alive);
        let held: u64 = alive.map(|process| process.memory.windows).sum();
        ensure(counted == held, "host memory", || {
            format!("{counted} bytes count as given to processes, which have {held}")
        })?;
        let alive = self.processes.iter().filter(|process| process.is_alive);
        let pinned: u64 = alive.map(|process| process.memory.registered).sum();
        let most = self.plan.memory().pinned_bytes;
        ensure(pinned <= most, "pinned memory", || {
            format!("{pinned} bytes are registered, of at most {most}")
        })
    }
}
