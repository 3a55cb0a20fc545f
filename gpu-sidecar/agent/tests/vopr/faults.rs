//! Faults, their repair, and processes that lie.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_core::{Event as AgentEvent, PodKey, SlotKey};
use annotations::Isolation;
use preload_state::link;
use protocol::message::{FromProcess, Report};

use crate::checks::Failure;
use crate::node::{Delivery, NodePod, pod};
use crate::plan::Fault;
use crate::queues::uid_of;
use crate::world::{Event, Found, MS, Repair, SECOND, US, World};

impl World {
    pub(crate) fn add_node_pod(
        &mut self,
        key: usize,
        slot: usize,
        sm: u32,
        limit: u32,
        memory: u64,
    ) {
        self.pods_seen += 1;
        let mut pod = pod(key, self.pods_seen, slot, sm, limit, memory);
        if self.plan.requests_ms > 0 {
            if !self.plan.shared {
                pod.settings.isolation = Isolation::Tenant;
            }
            if self.plan.siblings {
                pod.function = format!("function-{}", key / self.plan.slots);
                pod.uid = Some(uid_of(key));
            }
        }
        self.node.pods.push(NodePod {
            pod: Arc::new(pod),
            is_there: true,
            listens: false,
            accepts: true,
            backlog: std::collections::VecDeque::new(),
            roster: Vec::new(),
            survivors: Vec::new(),
            added_at: self.now,
            served: (0, 0),
        });
    }

    /// Starts an agent; its other parts find the slots, the daemons and the pods.
    pub(crate) fn start_agent(&mut self) {
        self.node.start(self.now);
        self.checks.forget_agent();
        let generation = self.node.generation;
        for slot in 0..self.node.slots.len() {
            self.after(US, Event::Found(generation, Found::Slot(slot)));
            if !self.plan.has_exclusive_slots() {
                let delay = 2 * US + self.random.below(100 * MS);
                self.after(delay, Event::Found(generation, Found::Mps(slot)));
            }
        }
        for pod in 0..self.node.pods.len() {
            let delay = 2 * US + self.random.below(200 * MS);
            self.after(delay, Event::Found(generation, Found::Pod(pod)));
        }
    }

    /// Passes what the other parts of an agent have found to its service.
    pub(crate) fn found(&mut self, generation: u64, found: Found) -> Result<(), Failure> {
        if generation != self.node.generation {
            return Ok(());
        }
        match found {
            Found::Slot(at) => {
                self.agent_learns(
                    generation,
                    AgentEvent::SlotAdded(Arc::clone(&self.node.slots[at])),
                )?;
                if self.node.is_lost[at] {
                    let slot = SlotKey(u32::try_from(at).unwrap());
                    let reason = "still lost".to_owned();
                    self.agent_learns(generation, AgentEvent::SlotLost { slot, reason })?;
                }
                Ok(())
            }
            Found::Mps(at) => {
                let slot = SlotKey(u32::try_from(at).unwrap());
                let (is_up, text) = (self.node.is_mps_up[at], "found".to_owned());
                self.agent_learns(generation, AgentEvent::MpsState { slot, is_up, text })
            }
            Found::Pod(pod) => {
                if !self.node.pods[pod].is_there || self.node.pods[pod].listens {
                    return Ok(());
                }
                let event = self.pod_added(pod);
                self.agent_learns(generation, event)
            }
        }
    }

    fn pod_added(&mut self, pod: usize) -> AgentEvent {
        let own = &mut self.node.pods[pod];
        (own.added_at, own.listens) = (self.now, true);
        let mut survivors = own.roster.clone();
        survivors.retain(|record| {
            self.processes.iter().any(|process| {
                process.is_alive && (process.pid, process.start) == (record.pid, record.start)
            })
        });
        own.survivors.clone_from(&survivors);
        AgentEvent::PodAdded {
            pod: Arc::clone(&own.pod),
            survivors,
        }
    }

    /// Returns a random live process of which the faults are those of the plan.
    fn some_process(&mut self) -> Option<usize> {
        let alive: Vec<_> = (0..self.processes.len())
            .filter(|at| self.processes[*at].is_alive && !self.processes[*at].is_stopped)
            .collect();
        (!alive.is_empty()).then(|| alive[self.random.index(alive.len())])
    }

    fn tell(&mut self, event: AgentEvent) -> Result<(), Failure> {
        let generation = self.node.generation;
        self.agent_learns(generation, event)
    }

    /// Lets one of the plan's faults occur, and schedules the next.
    pub(crate) fn fault(&mut self) -> Result<(), Failure> {
        if self.is_healing {
            return Ok(());
        }
        self.after_mean(self.plan.fault_ms * MS, Event::Fault);
        let fault = self.plan.faults[self.random.index(self.plan.faults.len())];
        self.note(|| format!("fault {fault:?}"));
        let slot = self.random.index(self.node.slots.len());
        let slot_key = SlotKey(u32::try_from(slot).unwrap());
        let pod = self.random.index(self.node.pods.len());
        match fault {
            Fault::Late | Fault::Doubled | Fault::Unsent | Fault::Liar => {}
            Fault::QueueLiar => self.lie_of_queue()?,
            Fault::Sticky => {
                if let Some(process) = self.some_process() {
                    self.fail_for_good(process)?;
                }
            }
            Fault::Cut => {
                if let Some(process) = self.some_process() {
                    self.lose_connection(process);
                }
            }
            Fault::Malformed => {
                if let Some(process) = self.some_process()
                    && let Some(connection) = self.processes[process].connection
                {
                    self.convey(connection, 0, Delivery::Garbage);
                }
            }
            Fault::Kill => {
                if !self.queues.is_empty() && self.random.below(2) == 0 {
                    self.kill_queue(pod, true);
                } else if let Some(process) = self.some_process() {
                    self.end_process(process)?;
                }
            }
            Fault::Stop => {
                if let Some(process) = self.some_process() {
                    self.processes[process].is_stopped = true;
                    let span = [MS, 20 * MS, 400 * MS, 3 * SECOND][self.random.index(4)];
                    self.after_mean(span, Event::Repair(Repair::Continue(process)));
                }
            }
            Fault::Fork => {
                if let Some(process) = self.some_process() {
                    let mut link = self.processes[process].link.clone();
                    link.fork();
                    let is_new = link.phase() == link::Phase::New;
                    if !is_new && link.phase() != link::Phase::Off {
                        return Err(Failure::new("fork", "a forked child is not off"));
                    }
                    // The child of a process that has not initialised the driver, or a program which it executes.
                    let pod = self.processes[process].pod;
                    let of_pod = |own: &&crate::process::Process| own.is_alive && own.pod == pod;
                    if self.processes.iter().filter(of_pod).count() < self.plan.processes + 2 {
                        let child = self.spawn(pod);
                        self.processes[child].is_liar = self.processes[process].is_liar;
                        self.begin(child, MS);
                    }
                }
            }
            Fault::AgentKill => {
                if self.node.agent.take().is_some() {
                    self.drop_connections();
                    self.drop_queues();
                    let span = [5 * MS, 200 * MS, 2 * SECOND][self.random.index(3)];
                    self.after_mean(span, Event::Repair(Repair::StartAgent));
                    // A process that does not greet the next agent until it counts as silent.
                    if self.plan.has(Fault::Stop)
                        && let Some(process) = self.some_process()
                    {
                        self.processes[process].is_stopped = true;
                        let span = [3 * SECOND, 6 * SECOND][self.random.index(2)];
                        self.after(span, Event::Repair(Repair::Continue(process)));
                    }
                }
            }
            Fault::AgentHang => {
                let span = [MS, 100 * MS, 2 * SECOND][self.random.index(3)];
                self.node.hangs = self.node.agent.is_some();
                self.after_mean(span, Event::Repair(Repair::ContinueAgent));
            }
            Fault::Clock => {
                let back = [0, MS, SECOND][self.random.index(3)];
                let span = self.exponential(100 * MS);
                self.node.clock = Some((self.now - back.min(self.now), self.now + span));
            }
            Fault::PodChange => {
                let mut changed = (*self.node.pods[pod].pod).clone();
                let percent = [10, 30, 100][self.random.index(3)];
                changed.settings.quota_limit_ppm = percent * 10_000;
                changed.settings.quota_request_ppm = percent * 1_000;
                if changed.settings.gpu_memory.is_some() {
                    changed.settings.gpu_memory = Some((1 + self.random.below(2)) << 30);
                }
                self.node.pods[pod].pod = Arc::new(changed);
                if self.node.pods[pod].is_there {
                    self.tell(AgentEvent::PodChanged(Arc::clone(&self.node.pods[pod].pod)))?;
                }
            }
            Fault::PodRemove => {
                if std::mem::take(&mut self.node.pods[pod].is_there) {
                    self.node.pods[pod].listens = false;
                    let key = PodKey(u32::try_from(pod).unwrap());
                    self.tell(AgentEvent::PodRemoved(key))?;
                    for process in 0..self.processes.len() {
                        if self.processes[process].pod == pod {
                            self.end_process(process)?;
                        }
                    }
                    self.node.pods[pod].roster.clear();
                    self.node.pods[pod].backlog.clear();
                    self.kill_queue(pod, false);
                    self.after_mean(200 * MS, Event::Repair(Repair::AddPod(pod)));
                }
            }
            Fault::SlotLost => {
                self.checks.unbounded.insert(slot);
                if !std::mem::replace(&mut self.node.is_lost[slot], true) {
                    let reason = "Xid".to_owned();
                    let slot = slot_key;
                    self.tell(AgentEvent::SlotLost { slot, reason })?;
                    self.after_mean(200 * MS, Event::Repair(Repair::SlotBack(slot.0 as usize)));
                }
            }
            Fault::MpsDown => {
                if std::mem::take(&mut self.node.is_mps_up[slot]) {
                    let (is_up, text) = (false, "ended".to_owned());
                    let slot = slot_key;
                    self.tell(AgentEvent::MpsState { slot, is_up, text })?;
                    self.after_mean(300 * MS, Event::Repair(Repair::MpsUp(slot.0 as usize)));
                }
            }
        }
        Ok(())
    }

    /// Has the driver of a process report an error that stays. Its program answers the request that it computes.
    fn fail_for_good(&mut self, process: usize) -> Result<(), Failure> {
        if !self.is_attached(process) {
            return Ok(());
        }
        self.processes[process].has_failed = true;
        let facts = self.processes[process].facts();
        if let Some(report) = preload_state::counters::note_error(facts, 700) {
            let _sent = self.send(process, &FromProcess::Report(report));
        }
        self.request_ends(process)
    }

    /// Ends all connections with the agent.
    fn drop_connections(&mut self) {
        for connection in 0..self.node.connections.len() {
            let own = &mut self.node.connections[connection];
            let (is_open, process) = (std::mem::take(&mut own.is_open[1]), own.process);
            if is_open && self.processes[process].connection == Some(connection) {
                self.convey(connection, 1, Delivery::ToProcessEnd);
            }
        }
        self.node.by_number.clear();
    }

    pub(crate) fn repair(&mut self, repair: Repair) -> Result<(), Failure> {
        match repair {
            Repair::Continue(process) => self.continue_process(process),
            Repair::ContinueAgent => self.continue_agent()?,
            Repair::StartAgent => {
                if self.node.agent.is_none() {
                    self.start_agent();
                }
            }
            Repair::Replace { pod } => {
                let alive = |own: &&crate::process::Process| own.is_alive && own.pod == pod;
                let count = self.processes.iter().filter(alive).count();
                if self.node.pods[pod].is_there && count < self.plan.processes {
                    let process = self.spawn(pod);
                    self.begin(process, MS);
                }
            }
            Repair::AddPod(pod) => {
                if !std::mem::replace(&mut self.node.pods[pod].is_there, true) {
                    self.pods_seen += 1;
                    let mut again = (*self.node.pods[pod].pod).clone();
                    again.serial = self.pods_seen;
                    self.node.pods[pod].pod = Arc::new(again);
                    self.node.pods[pod].accepts = true;
                    self.found(self.node.generation, Found::Pod(pod))?;
                    self.kill_queue(pod, true);
                    for _process in 0..self.plan.processes {
                        self.repair(Repair::Replace { pod })?;
                    }
                }
            }
            Repair::SlotBack(slot) => {
                if std::mem::take(&mut self.node.is_lost[slot]) {
                    self.tell(AgentEvent::SlotAdded(Arc::clone(&self.node.slots[slot])))?;
                }
            }
            Repair::MpsUp(slot) => {
                if !std::mem::replace(&mut self.node.is_mps_up[slot], true) {
                    let (is_up, text) = (true, "up".to_owned());
                    let slot = SlotKey(u32::try_from(slot).unwrap());
                    self.tell(AgentEvent::MpsState { slot, is_up, text })?;
                }
            }
            Repair::All => {
                self.is_healing = true;
                self.node.clock = None;
                self.continue_agent()?;
                self.repair(Repair::StartAgent)?;
                for slot in 0..self.node.slots.len() {
                    self.repair(Repair::SlotBack(slot))?;
                    self.repair(Repair::MpsUp(slot))?;
                }
                for pod in 0..self.node.pods.len() {
                    self.repair(Repair::AddPod(pod))?;
                }
                for process in 0..self.processes.len() {
                    if self.processes[process].is_alive && self.processes[process].is_stopped {
                        self.continue_process(process);
                    }
                    if self.processes[process].is_liar || self.processes[process].has_failed {
                        self.end_process(process)?;
                    }
                }
                if self.plan.has(Fault::QueueLiar) {
                    self.kill_queue(self.plan.pods - 1, true);
                }
            }
            Repair::Measure => self.begin_measurement()?,
            Repair::End => {
                self.end_measurement()?;
                self.is_over = true;
            }
        }
        Ok(())
    }

    /// One act of a lying process: it says and publishes what it likes.
    pub(crate) fn lie(&mut self, process: usize) -> Result<(), Failure> {
        if self.is_healing {
            return Ok(());
        }
        self.after_mean(3 * MS, Event::Lie(process));
        if self.processes[process].connection.is_none() {
            let _outcome = self.connect(process);
            return Ok(());
        }
        // It finds its pages, if it has any.
        let connection = self.processes[process].connection;
        let number = connection.and_then(|own| self.node.connections[own].number);
        let pages = number.and_then(|number| self.node.agent.as_ref()?.pages(number).cloned());
        let epoch = pages.as_ref().map_or(1, |pages| pages.orders.gate.epoch());
        if let Some(pages) = &pages {
            let facts = &pages.facts;
            let value = [0, 1, self.now, u64::MAX, self.random.next()][self.random.index(5)];
            match self.random.index(6) {
                0 => facts.busy_ns.store(value, Ordering::Release),
                1 => facts.busy_since.store(value, Ordering::Release),
                2 => facts
                    .inflight_us
                    .store(u32::try_from(value % 100_000).unwrap(), Ordering::Release),
                3 => facts.launches.0.store(value, Ordering::Release),
                4 => facts.push(value, value.wrapping_add(self.random.below(SECOND))),
                _ => facts.bytes_used.store(value, Ordering::Relaxed),
            }
        }
        let wild = [0, 1, 2, epoch, epoch.wrapping_sub(1), epoch & !1, u64::MAX];
        let wild = wild[self.random.index(wild.len())];
        let mut uuid = [0; 16];
        uuid[15] = u8::try_from(self.processes[process].slot).unwrap();
        let acts = if self.plan.orders_ms > 0 { 14 } else { 12 };
        let message = match self.random.index(acts) {
            0 => FromProcess::Hello {
                version: protocol::VERSION,
                residency: protocol::page::Residency::None,
                host_bytes: 0,
                pinned_bytes: 0,
                pid: 1,
                again: self.random.below(2) == 0,
                open: self.random.below(2) == 0,
                busy_ns: wild,
                ungated_ns: wild,
                bytes_used: wild,
                program: String::new(),
            },
            1 => FromProcess::Attach {
                uuid,
                multiprocessors: u32::try_from(wild & 0xff).unwrap(),
                mps: self.random.below(4) > 0,
                context_bytes: 0,
                busy_ns: wild,
            },
            2..5 => FromProcess::Ask { epoch: wild },
            5..8 => FromProcess::Closed { epoch: wild },
            8 => FromProcess::Claim {
                seq: u32::try_from(wild & 0xffff).unwrap(),
                bytes: wild,
            },
            9 => FromProcess::Present,
            10 => FromProcess::Report(Report::OutOfMemory(wild)),
            12 => FromProcess::WindowsWanted { bytes: wild },
            13 => self.false_report(wild),
            _ => {
                if self.random.below(4) == 0 {
                    self.close(process);
                }
                return Ok(());
            }
        };
        if !self.send(process, &message) {
            self.close(process);
        }
        Ok(())
    }
}
