//! Dispatch of events to the slots, process numbers, and wake-ups.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::Time;
use policy::pool::leases::Rule;
use policy::tokens::{ProcessId, Settings};
use protocol::message::{FromProcess, MoveRefusal, Report};
use protocol::page::Streaming;
use protocol::queue::FromQueue;

use crate::action::{Action, Order, OrderAnswer};
use crate::event::{Event, ProcessRecord};
use crate::facts::Facts;
use crate::figures::{AgentFigures, Figures, ProcessMemory};
use crate::leases::NodeLeases;
use crate::pods::{Pod, PodKey};
use crate::residency::{MemorySettings, NodeMemory};
use crate::slot::{Context, SlotState};
use crate::slots::{Slot, SlotKey};

/// Maximum number of processes of all pods together.
pub const PROCESSES_MAX: usize = 8_192;
/// Shortest time between two publications of figures, unless they are requested, in nanoseconds.
pub const PUBLISH_NS: u64 = 100_000_000;

/// Numbers of processes, and the slot of each.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    next: u32,
    used: BTreeMap<ProcessId, SlotKey>,
}

impl Numbers {
    /// Returns an unused number for a process on this slot; `None` while [`PROCESSES_MAX`] are used. Freed numbers are reused,
    /// the oldest first.
    pub(crate) fn take(&mut self, slot: SlotKey) -> Option<ProcessId> {
        if self.used.len() >= PROCESSES_MAX {
            return None;
        }
        loop {
            let id = ProcessId(self.next);
            self.next = (self.next + 1) % (2 * u32::try_from(PROCESSES_MAX).unwrap_or(1));
            if let std::collections::btree_map::Entry::Vacant(free) = self.used.entry(id) {
                free.insert(slot);
                return Some(id);
            }
        }
    }

    /// Releases a number.
    pub(crate) fn release(&mut self, id: ProcessId) {
        self.used.remove(&id);
    }

    fn is_any_used(&self) -> bool {
        !self.used.is_empty()
    }

    fn slot(&self, id: ProcessId) -> Option<SlotKey> {
        self.used.get(&id).copied()
    }
}

/// The token service of a node; see the [crate].
#[derive(Debug)]
pub struct Agent {
    tokens: Settings,
    pub(crate) slots: BTreeMap<SlotKey, SlotState>,
    pub(crate) slot_of_pod: BTreeMap<PodKey, SlotKey>,
    numbers: Numbers,
    /// Latest time passed in, in nanoseconds: a clock that is set back counts as one that stands still.
    pub(crate) now: u64,
    published_at: u64,
    malformed_messages: u64,
    memory: NodeMemory,
    pub(crate) leases: NodeLeases,
}

impl Agent {
    /// Creates a service without slots. `tokens`: settings of the scheduler on slots shared by MPS; an exclusive slot belongs to
    /// the pod that came first.
    #[must_use]
    pub fn new(tokens: Settings) -> Self {
        Self {
            tokens,
            slots: BTreeMap::new(),
            slot_of_pod: BTreeMap::new(),
            numbers: Numbers {
                next: 0,
                used: BTreeMap::new(),
            },
            now: 0,
            published_at: 0,
            malformed_messages: 0,
            memory: NodeMemory::none(),
            leases: NodeLeases::new(Rule::Weir, false),
        }
    }

    /// Sets how models are moved between devices and host; without, none is.
    #[must_use]
    pub fn with_memory(mut self, settings: MemorySettings) -> Self {
        self.memory = NodeMemory::new(settings);
        self.leases = NodeLeases::new(settings.rule, settings.streaming != Streaming::Off);
        self
    }

    /// Handles an event at `now`, in nanoseconds, and appends what is to be done. An event about a process or pod that does not
    /// exist any more is ignored.
    pub fn handle(&mut self, now: u64, event: &Event, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        if let Event::Facts { process, facts } = event {
            self.take_facts(*process, facts);
            return;
        }
        // After the event its process or pod may be gone.
        let concerned = self.pod_of(event);
        let slot_before = concerned.and_then(|pod| self.slot_of_pod.get(&pod).copied());
        match event {
            Event::SlotAdded(slot) => self.add_slot(slot, actions),
            Event::SlotLost { slot, reason } => {
                self.on_slot(*slot, actions, |slot, cx| slot.lose(cx, reason));
            }
            Event::MpsState { slot, is_up, text } => {
                self.on_slot(*slot, actions, |slot, cx| {
                    slot.set_mps_state(cx, *is_up, text);
                });
            }
            Event::DeviceMemory { slot, processes } => {
                self.on_slot(*slot, actions, |slot, cx| slot.learn_residue(cx, processes));
            }
            Event::PodAdded { pod, survivors } => self.add_pod(pod, survivors, actions),
            Event::PodChanged(pod) => {
                self.on_pod(pod.key, actions, |slot, cx| slot.change_pod(cx, pod));
            }
            Event::PodRemoved(key) => self.remove_pod(*key, actions),
            Event::Ordered { pod, order } => {
                if self.slot_of_pod.contains_key(pod) {
                    self.on_pod(*pod, actions, |slot, cx| slot.order(cx, *pod, order));
                } else {
                    actions.push(Action::Answer {
                        number: order.number,
                        answer: OrderAnswer::Refused(MoveRefusal::NoProcess),
                    });
                }
            }
            Event::Connected { pod, peer } => {
                self.on_pod(*pod, actions, |slot, cx| slot.connect(cx, *pod, *peer));
            }
            Event::AcceptFailed(pod) => {
                self.on_pod(*pod, actions, |slot, cx| slot.accept_failed(cx, *pod));
            }
            Event::Message { process, message } => {
                self.on_process(*process, actions, |slot, cx| {
                    slot.receive(cx, *process, message);
                });
            }
            Event::Malformed {
                process,
                is_of_other_version,
                text,
            } => {
                self.malformed_messages += 1;
                self.on_process(*process, actions, |slot, cx| {
                    slot.refuse_malformed(cx, *process, *is_of_other_version, text);
                });
            }
            Event::Disconnected(process) => {
                self.on_process(*process, actions, |slot, cx| slot.disconnect(cx, *process));
            }
            Event::NotSent { process, is_probe } => {
                self.on_process(*process, actions, |slot, cx| {
                    slot.not_sent(cx, *process, *is_probe);
                });
            }
            Event::PagesFailed { process, text } => {
                self.on_process(*process, actions, |slot, cx| {
                    slot.pages_failed(cx, *process, text);
                });
            }
            Event::WindowFailed {
                process,
                bytes,
                is_pinned,
            } => {
                self.on_process(*process, actions, |slot, cx| {
                    slot.window_failed(cx, *process, *bytes, *is_pinned);
                });
            }
            Event::Ended(process) => {
                self.on_process(*process, actions, |slot, cx| slot.forget(cx, *process));
            }
            Event::Stopped(process) => {
                self.on_process(*process, actions, |slot, cx| slot.stopped(cx, *process));
            }
            Event::SurvivorEnded { pod, record } => {
                self.on_pod(*pod, actions, |slot, cx| {
                    slot.survivor_ended(cx, *pod, *record);
                });
            }
            Event::QueueConnected { pod, is_of_pod } => {
                let is_served = self.slot_with(*pod).is_some_and(SlotState::has_device);
                self.leases
                    .connect_queue(*pod, *is_of_pod, is_served, actions);
            }
            Event::QueueMessage { pod, message } => {
                match message {
                    // It may state to hold a lease, which one whose processes have failed does not get.
                    FromQueue::Hello { .. } => {
                        self.on_leased(*pod, actions, |slot, cx| slot.report_failure(cx, *pod));
                    }
                    FromQueue::Head { waiting, .. } if *waiting > 0 => {
                        self.on_leased(*pod, actions, |slot, cx| slot.expects_return(cx, *pod));
                    }
                    _ => {}
                }
                self.leases.receive(self.now, *pod, message, actions);
            }
            Event::QueueMalformed { pod, text } => {
                self.malformed_messages += 1;
                self.leases.refuse_queue(self.now, *pod, text, actions);
            }
            Event::QueueDisconnected(pod) => self.leases.disconnect_queue(self.now, *pod),
            Event::Wake => {
                self.each_slot(actions, |slot, cx| slot.wake(cx));
            }
            Event::Facts { .. } | Event::FiguresWanted => {}
        }
        let slot = concerned.and_then(|pod| self.slot_of_pod.get(&pod).copied());
        self.decide_leases(concerned, slot.or(slot_before), actions);
        self.decide_pins(actions);
        if let Event::Message { process, message } = event
            && let FromProcess::Report(Report::Fatal(code)) = message
        {
            // The program learns of its error after the pod's queue has been sent a recall.
            let (process, order) = (*process, Order::NoteError { code: *code });
            actions.push(Action::Order { process, order });
        }
        if self.must_publish(event) {
            self.published_at = self.now;
            for slot in self.slots.values_mut() {
                slot.forget_wake();
                slot.settle_for_figures(self.now, actions);
            }
            actions.push(Action::Publish);
        }
    }

    /// Returns when [`Event::Wake`] is due unless an event comes before, in nanoseconds; `None`: never.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        let slots = self.slots.values().filter_map(SlotState::next_wake);
        slots.chain(self.leases.next_wake()).min()
    }

    /// Appends the processes of which the facts are needed for this event at `now`.
    pub fn observes(&self, now: u64, event: &Event, processes: &mut Vec<ProcessId>) {
        let now = self.now.max(now);
        if self.must_publish_at(now, event) {
            for slot in self.slots.values() {
                slot.observed(|_| true, processes);
            }
            return;
        }
        let (slot, pod) = match event {
            Event::Message { process, .. }
            | Event::Malformed { process, .. }
            | Event::PagesFailed { process, .. }
            | Event::Disconnected(process)
            | Event::NotSent { process, .. }
            | Event::WindowFailed { process, .. }
            | Event::Ended(process)
            | Event::Stopped(process) => {
                let slot = self.numbers.slot(*process);
                let slot = slot.and_then(|slot| self.slots.get(&slot));
                (slot, slot.and_then(|slot| slot.pod_of(*process)))
            }
            Event::PodRemoved(pod)
            | Event::SurvivorEnded { pod, .. }
            | Event::Ordered { pod, .. } => (self.slot_with(*pod), Some(*pod)),
            Event::PodChanged(pod) => (self.slot_with(pod.key), Some(pod.key)),
            Event::PodAdded { pod, .. } => (self.slots.get(&pod.slot), Some(pod.key)),
            Event::SlotLost { slot, .. } | Event::MpsState { slot, .. } => {
                (self.slots.get(slot), None)
            }
            Event::DeviceMemory { slot, .. } => {
                if let Some(slot) = self.slots.get(slot) {
                    slot.observed(|_| true, processes);
                }
                return;
            }
            Event::SlotAdded(slot) => (self.slots.get(&slot.key), None),
            Event::Wake => {
                // What computes is looked at before leases end because nothing does.
                let is_lease_due = self.leases.next_wake().is_some_and(|at| at <= now);
                let is_due = |slot: &&SlotState| is_lease_due || slot.is_due(now);
                for slot in self.slots.values().filter(is_due) {
                    slot.observed(|pod| pod.holders() > 0, processes);
                }
                return self.observed_for_leases(processes);
            }
            Event::QueueMessage { .. } => return self.observed_for_leases(processes),
            Event::Connected { .. }
            | Event::AcceptFailed(_)
            | Event::QueueConnected { .. }
            | Event::QueueMalformed { .. }
            | Event::QueueDisconnected(_)
            | Event::Facts { .. }
            | Event::FiguresWanted => return,
        };
        if let Some(slot) = slot {
            slot.observed(
                |served| served.holders() > 0 || Some(served.key()) == pod,
                processes,
            );
        }
    }

    /// Appends the processes of pods of which it matters to leases whether they compute.
    fn observed_for_leases(&self, processes: &mut Vec<ProcessId>) {
        for pod in self.leases.watched() {
            if let Some(slot) = self.slot_with(pod) {
                slot.observed(|served| served.key() == pod, processes);
            }
        }
        processes.sort_unstable();
        processes.dedup();
    }

    /// Returns the figures as of the last [`Action::Publish`]. `memory`: device memory of each process ID as NVML reports it;
    /// `agent`: counters of the caller, to which the service's own are added.
    #[must_use]
    pub fn figures(
        &self,
        memory: &BTreeMap<u32, ProcessMemory>,
        mut agent: AgentFigures,
    ) -> Figures {
        let slots: Vec<_> = self.slots.values().filter_map(SlotState::figures).collect();
        let pods = self.slots.values();
        let mut pods: Vec<_> = pods.flat_map(|slot| slot.pod_figures(memory)).collect();
        for figures in &mut pods {
            figures.lease = self.leases.figures(figures.pod.key);
        }
        pods.sort_by_key(|figures| figures.pod.key);
        agent.grants = slots.iter().map(|slot| slot.grants).sum();
        agent.malformed_messages = self.malformed_messages;
        Figures {
            at_ns: self.published_at,
            slots,
            pods,
            agent,
        }
    }

    fn must_publish(&self, event: &Event) -> bool {
        self.must_publish_at(self.now, event)
    }

    fn must_publish_at(&self, now: u64, event: &Event) -> bool {
        let is_time = now.saturating_sub(self.published_at) >= PUBLISH_NS;
        *event == Event::FiguresWanted
            // Without a process no slot is looked at for one.
            || (is_time
                && self.numbers.is_any_used()
                && self.slots.values().any(SlotState::has_processes))
    }

    fn slot_with(&self, pod: PodKey) -> Option<&SlotState> {
        self.slots.get(self.slot_of_pod.get(&pod)?)
    }

    /// Carries out what is decided on which processes may register their host memory with the driver.
    fn decide_pins(&mut self, actions: &mut Vec<Action>) {
        let mut changed = Vec::new();
        self.memory.pins.decide(Time(self.now), &mut changed);
        for (process, bytes) in changed {
            if let Some(slot) = self.numbers.slot(process) {
                self.on_slot(slot, actions, |slot, cx| {
                    slot.set_pinned(cx, process, bytes);
                });
            }
        }
    }

    fn take_facts(&mut self, process: ProcessId, facts: &Facts) {
        let now = self.now;
        if let Some(slot) = self.numbers.slot(process)
            && let Some(slot) = self.slots.get_mut(&slot)
        {
            slot.forget_wake();
            slot.take_facts(now, process, facts);
            let limit = facts.pinned_max.checked_sub(1);
            self.memory.pins.states(process, limit);
        }
    }

    pub(crate) fn on_slot(
        &mut self,
        slot: SlotKey,
        actions: &mut Vec<Action>,
        handler: impl FnOnce(&mut SlotState, &mut Context<'_>),
    ) {
        if let Some(slot) = self.slots.get_mut(&slot) {
            let mut cx = Context {
                now: self.now,
                actions,
                numbers: &mut self.numbers,
                memory: &mut self.memory,
                leases: &mut self.leases,
            };
            slot.forget_wake();
            handler(slot, &mut cx);
        }
    }

    /// Calls a handler of the slot of a pod that has leases.
    pub(crate) fn on_leased(
        &mut self,
        pod: PodKey,
        actions: &mut Vec<Action>,
        handler: impl FnOnce(&mut SlotState, &mut Context<'_>),
    ) {
        if let Some(slot) = self.leases.slot_of(pod) {
            self.on_slot(slot, actions, handler);
        }
    }

    /// Calls a handler of each slot.
    pub(crate) fn each_slot(
        &mut self,
        actions: &mut Vec<Action>,
        handler: impl Fn(&mut SlotState, &mut Context<'_>),
    ) {
        for slot in self.slots.values_mut() {
            let mut cx = Context {
                now: self.now,
                actions,
                numbers: &mut self.numbers,
                memory: &mut self.memory,
                leases: &mut self.leases,
            };
            slot.forget_wake();
            handler(slot, &mut cx);
        }
    }

    /// Returns whether the pods of some slot compute by leases, although perhaps no queue is connected any more.
    pub(crate) fn is_any_leased(&self) -> bool {
        self.slots.values().any(SlotState::is_leased)
    }

    /// Returns the pod that an event concerns.
    pub(crate) fn pod_of(&self, event: &Event) -> Option<PodKey> {
        match event {
            Event::Message { process, .. }
            | Event::Malformed { process, .. }
            | Event::PagesFailed { process, .. }
            | Event::Disconnected(process)
            | Event::NotSent { process, .. }
            | Event::WindowFailed { process, .. }
            | Event::Ended(process)
            | Event::Stopped(process) => {
                let slot = self.slots.get(&self.numbers.slot(*process)?)?;
                slot.pod_of(*process)
            }
            Event::PodRemoved(pod)
            | Event::SurvivorEnded { pod, .. }
            | Event::Ordered { pod, .. }
            | Event::QueueConnected { pod, .. }
            | Event::QueueMessage { pod, .. }
            | Event::QueueMalformed { pod, .. }
            | Event::QueueDisconnected(pod)
            | Event::Connected { pod, .. }
            | Event::AcceptFailed(pod) => Some(*pod),
            Event::PodChanged(pod) | Event::PodAdded { pod, .. } => Some(pod.key),
            Event::SlotLost { .. }
            | Event::MpsState { .. }
            | Event::DeviceMemory { .. }
            | Event::SlotAdded(_)
            | Event::Facts { .. }
            | Event::Wake
            | Event::FiguresWanted => None,
        }
    }

    fn on_pod(
        &mut self,
        pod: PodKey,
        actions: &mut Vec<Action>,
        handler: impl FnOnce(&mut SlotState, &mut Context<'_>),
    ) {
        if let Some(slot) = self.slot_of_pod.get(&pod).copied() {
            self.on_slot(slot, actions, handler);
        }
    }

    fn on_process(
        &mut self,
        process: ProcessId,
        actions: &mut Vec<Action>,
        handler: impl FnOnce(&mut SlotState, &mut Context<'_>),
    ) {
        if let Some(slot) = self.numbers.slot(process) {
            self.on_slot(slot, actions, handler);
        }
    }

    fn add_slot(&mut self, slot: &Arc<Slot>, actions: &mut Vec<Action>) {
        let key = slot.key;
        let settings = self.tokens;
        self.slots.entry(key).or_insert_with(|| SlotState::new(key));
        self.on_slot(key, actions, |own, cx| own.add_device(cx, slot, settings));
        let pods: Vec<PodKey> = self
            .slot_of_pod
            .iter()
            .filter(|(_, own)| **own == key)
            .map(|(pod, _)| *pod)
            .collect();
        for pod in pods {
            self.lease_pod(pod, actions);
        }
    }

    fn add_pod(&mut self, pod: &Arc<Pod>, survivors: &[ProcessRecord], actions: &mut Vec<Action>) {
        // A caller which adds a pod twice has not seen its removal.
        self.remove_pod(pod.key, actions);
        let slot = pod.slot;
        self.slot_of_pod.insert(pod.key, slot);
        self.slots
            .entry(slot)
            .or_insert_with(|| SlotState::new(slot));
        self.on_slot(slot, actions, |own, cx| own.add_pod(cx, pod, survivors));
        self.lease_pod(pod.key, actions);
    }

    fn remove_pod(&mut self, key: PodKey, actions: &mut Vec<Action>) {
        self.on_pod(key, actions, |slot, cx| slot.remove_pod(cx, key));
        self.leases.remove_pod(self.now, key);
        self.slot_of_pod.remove(&key);
    }
}
