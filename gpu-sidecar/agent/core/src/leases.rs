//! Leases of the node's slots: queues of pods, and which pod may compute ([`policy::pool::leases`]), or has its model on a slot on which several do
//! ([`policy::pool::shared`]).
//!
//! Slots report what their pods and processes do, and carry out what is decided (`slot::leases`); [`crate::agent`] decides after each event. Without a
//! connected queue nothing is leased, and an exclusive slot belongs to the pod that came first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::num::NonZero;

use annotations::{Evict, Isolation};
use policy::pool::leases::{
    Claim, Class, Demand, Instance, InstanceId, Location, PARKED_DEADLINE, Rule,
};
use policy::pool::{FunctionId, Percentile, SlotId};
use policy::tokens::ProcessId;
use policy::{Span, Time};
use protocol::message::Refusal;
use protocol::page::Residency;
use protocol::queue::{FromQueue, LoadSource, ToQueue};

use crate::action::{Action, Level};
use crate::figures::LeaseFigures;
use crate::lease_policy::LeasePolicy;
use crate::pods::{Pod, PodKey};
use crate::slots::SlotKey;

/// Latest deadline that is believed, from now.
const DEADLINE_MAX: Span = Span::from_secs(3_600);
/// Longest estimate that is believed.
const ESTIMATE_MAX: Span = Span::from_secs(600);
/// Largest number of heads of a queue for which it is remembered which sibling was named.
const NAMED_MAX: usize = 64;

/// Queue of a pod.
#[derive(Debug, Clone, Default)]
struct Queue {
    has_greeted: bool,
    /// Address at which siblings reach it.
    address: Option<(IpAddr, u16)>,
    /// Number of its last head.
    head: u64,
    /// Whether that head waits, as far as is known.
    has_head: bool,
    /// ID of its trace; `None` without a head, or if it is not sampled.
    trace: Option<NonZero<u128>>,
    /// State which it was sent last.
    state: Option<(Residency, u64)>,
    /// Heads for which it was sent the name of a sibling, the last ones: number, sibling.
    named: VecDeque<(u64, PodKey)>,
}

impl Queue {
    /// Forgets its head, which was served, or is stated anew.
    const fn forget_head(&mut self) {
        (self.has_head, self.trace) = (false, None);
    }
}

/// A pod with leases.
#[derive(Debug)]
struct LeasedPod {
    slot: SlotKey,
    /// Whether several pods compute on its slot at once, so that its lease is for memory alone.
    is_shared: bool,
    function: FunctionId,
    name: String,
    uid: Option<String>,
    revision: String,
    deadline: Span,
    queue: Option<Queue>,
    /// Epoch of its lease; 0: none.
    epoch: u64,
    /// Whether its processes may have tokens.
    is_open: bool,
    /// Whether its gate is to close, and an answer is due when it has.
    closing: Option<Closing>,
    /// Processes which have not answered the order to seal, each with its number.
    sealing: BTreeMap<ProcessId, u32>,
    /// Number of its heads for which a sibling was named, and of those which the sibling did not serve.
    siblings: (u64, u64),
    /// Last load of its model for a lease which its queue has not learnt of.
    load: Option<Load>,
}

/// Load of a model, with points in time in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Load {
    begun: u64,
    /// `None` while it goes on.
    ended: Option<u64>,
}

/// Identity of a function: namespace, name and version.
type FunctionName = (String, String, String);

/// What follows once the gate of a pod is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Its lease ends.
    Lease,
    /// Its eviction ends, and whether the model has left.
    Eviction { has_left: bool },
}

/// Leases of a node; see the [module](self).
#[derive(Debug)]
pub(crate) struct NodeLeases {
    pub(crate) policy: LeasePolicy,
    pods: BTreeMap<PodKey, LeasedPod>,
    /// Connected queues of pods that need no lease, as on slots beyond those with leases: each holds one without end. The value is whether it has greeted.
    unbound: BTreeMap<PodKey, bool>,
    /// Functions with their number of instances on different slots, and names of those that may have several.
    functions: BTreeMap<FunctionId, u32>,
    names: BTreeMap<FunctionName, FunctionId>,
    namespaces: BTreeMap<String, u32>,
    queues: usize,
    /// Pods of which something has changed since the last decision.
    touched: BTreeSet<PodKey>,
    last_epoch: u64,
}

impl NodeLeases {
    /// `streams`: processes compute while their models return.
    pub(crate) fn new(rule: Rule, streams: bool) -> Self {
        Self {
            policy: LeasePolicy::new(rule, streams),
            pods: BTreeMap::new(),
            unbound: BTreeMap::new(),
            functions: BTreeMap::new(),
            names: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            queues: 0,
            touched: BTreeSet::new(),
            last_epoch: 0,
        }
    }

    /// Returns when a decision is due unless something happens before, in nanoseconds.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        let wake = self.policy.next_wake()?;
        self.is_used().then_some(wake.0)
    }

    /// Returns whether any queue is connected, or something of the last ones is not over.
    pub(crate) fn is_used(&self) -> bool {
        self.queues > 0 || self.policy.has_claims()
    }

    pub(crate) fn touch(&mut self, pod: PodKey) {
        if self.pods.contains_key(&pod) {
            self.touched.insert(pod);
        }
    }

    /// Marks all pods of exclusive slots that compute, or are about to end to, as changed.
    pub(crate) fn touch_active(&mut self) {
        let active = self.pods.iter();
        let active =
            active.filter(|(_, pod)| pod.is_open && !pod.is_shared || pod.closing.is_some());
        self.touched.extend(active.map(|(key, _)| *key));
    }

    /// Marks the pods of shared slots of which it matters whether they compute as changed.
    pub(crate) fn touch_watched(&mut self) {
        let watched: Vec<PodKey> = self.watched().collect();
        self.touched.extend(watched);
    }

    /// Returns the pods of shared slots of which it matters whether they compute.
    pub(crate) fn watched(&self) -> impl Iterator<Item = PodKey> {
        let watched = self.policy.watched();
        watched.map(|InstanceId(number)| PodKey(number))
    }

    pub(crate) fn take_touched(&mut self) -> BTreeSet<PodKey> {
        std::mem::take(&mut self.touched)
    }

    pub(crate) fn slot_of(&self, pod: PodKey) -> Option<SlotKey> {
        self.pods.get(&pod).map(|pod| pod.slot)
    }

    /// Returns whether the pods of a slot need leases.
    pub(crate) fn is_leased(&self, slot: SlotKey) -> bool {
        self.policy.is_leased(SlotId(slot.0))
    }

    /// `is_shared`: several pods compute on its slot at once.
    pub(crate) fn add_pod(
        &mut self,
        now: u64,
        pod: &Pod,
        is_shared: bool,
        actions: &mut Vec<Action>,
    ) {
        let function = self.function_of(pod);
        let settings = &pod.settings;
        let objective = settings.slo.map_or(Span::ZERO, Span::from);
        let class = if settings.isolation == Isolation::Strict {
            Class::Strict
        } else {
            let next = u32::try_from(self.namespaces.len()).unwrap_or(u32::MAX);
            let namespace = *self.namespaces.entry(pod.namespace.clone()).or_insert(next);
            Class::Tenant { namespace }
        };
        let instance = Instance {
            function,
            slot: SlotId(pod.slot.0),
            percentile: Percentile::from_parts_per_million(settings.slo_percentile_ppm),
            objective,
            class,
            may_leave: settings.evict == Evict::Host,
        };
        if let Err(refusal) = self.policy.add(Time(now), id_of(pod.key), &instance) {
            self.forget_function(function);
            actions.push(Action::Log {
                level: Level::Error,
                subject: pod.display(),
                text: format!("the pod has no leases: {refusal}"),
            });
            return;
        }
        self.pods.insert(
            pod.key,
            LeasedPod {
                slot: pod.slot,
                is_shared,
                function,
                name: pod.display(),
                uid: pod.uid.clone(),
                revision: pod.revision.clone(),
                deadline: if objective > Span::ZERO {
                    objective
                } else {
                    PARKED_DEADLINE
                },
                queue: None,
                epoch: 0,
                is_open: !self.is_leased(pod.slot),
                closing: None,
                sealing: BTreeMap::new(),
                siblings: (0, 0),
                load: None,
            },
        );
    }

    /// Returns the function of a new pod: that of the pods of equal namespace, function and version, unless one of them is on the same slot. There, it
    /// counts as a function of its own.
    fn function_of(&mut self, pod: &Pod) -> FunctionId {
        let name = (
            pod.namespace.clone(),
            pod.function.clone(),
            pod.settings.version.clone(),
        );
        let known = self.names.get(&name).copied();
        let is_on_slot = |function| {
            let on_slot = |own: &LeasedPod| own.slot == pod.slot && own.function == function;
            self.pods.values().any(on_slot)
        };
        if let Some(function) = known.filter(|function| !is_on_slot(*function)) {
            *self.functions.entry(function).or_default() += 1;
            return function;
        }
        let free = (0..).map(FunctionId);
        let id = free
            .into_iter()
            .find(|id| !self.functions.contains_key(id))
            .unwrap_or_default();
        self.functions.insert(id, 1);
        if known.is_none() && !pod.function.is_empty() {
            self.names.insert(name, id);
        }
        id
    }

    /// Records that a function has an instance less.
    fn forget_function(&mut self, function: FunctionId) {
        if let Some(instances) = self.functions.get_mut(&function) {
            *instances -= 1;
            if *instances == 0 {
                self.functions.remove(&function);
                self.names.retain(|_, id| *id != function);
            }
        }
    }

    pub(crate) fn remove_pod(&mut self, now: u64, key: PodKey) {
        self.unbound.remove(&key);
        let Some(pod) = self.pods.remove(&key) else {
            return;
        };
        self.queues -= usize::from(pod.queue.is_some());
        self.touched.remove(&key);
        self.policy.remove(Time(now), id_of(key));
        self.forget_function(pod.function);
    }

    /// Handles a connection to a pod's socket for queues, which has at most one. `is_served`: its slot was found, so that a pod without leases
    /// needs none.
    pub(crate) fn connect_queue(
        &mut self,
        key: PodKey,
        is_of_pod: bool,
        is_served: bool,
        actions: &mut Vec<Action>,
    ) {
        let is_unbound = is_served && !self.pods.contains_key(&key);
        if is_unbound && is_of_pod && !self.unbound.contains_key(&key) {
            self.unbound.insert(key, false);
            return actions.push(Action::AdmitQueue(key));
        }
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        if !is_of_pod || pod.queue.is_some() {
            // Not admitted, it is closed.
            return actions.push(Action::Log {
                level: Level::Warning,
                subject: pod.name.clone(),
                text: if is_of_pod {
                    "a second connection for the pod's queue is refused".to_owned()
                } else {
                    "a queue of another pod is refused".to_owned()
                },
            });
        }
        pod.queue = Some(Queue::default());
        self.queues += 1;
        // With the first queue of a slot, the memory of its other pods matters as well.
        let slot = pod.slot;
        let own: Vec<PodKey> = self.pods_of(slot).collect();
        self.touched.extend(own);
        actions.push(Action::AdmitQueue(key));
    }

    pub(crate) fn disconnect_queue(&mut self, now: u64, key: PodKey) {
        self.unbound.remove(&key);
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        if pod.queue.take().is_some() {
            self.queues -= 1;
            pod.epoch = 0;
            self.policy.disconnect(Time(now), id_of(key));
            self.touched.insert(key);
        }
    }

    /// Refuses the queue of a pod with a reason.
    pub(crate) fn refuse_queue(
        &mut self,
        now: u64,
        key: PodKey,
        text: &str,
        actions: &mut Vec<Action>,
    ) {
        let subject = match self.pods.get(&key) {
            Some(pod) => pod.name.clone(),
            None if self.unbound.contains_key(&key) => format!("pod {}", key.0),
            None => return,
        };
        actions.push(Action::Log {
            level: Level::Warning,
            subject,
            text: format!("the pod's queue is refused: {text}"),
        });
        actions.push(Action::SendQueue {
            pod: key,
            message: ToQueue::Refused {
                reason: Refusal::Protocol,
                text: text.to_owned(),
            },
        });
        actions.push(Action::DisconnectQueue(key));
        self.disconnect_queue(now, key);
    }

    /// Handles a message of a pod's queue.
    pub(crate) fn receive(
        &mut self,
        now: u64,
        key: PodKey,
        message: &FromQueue,
        actions: &mut Vec<Action>,
    ) {
        let (id, at) = (id_of(key), Time(now));
        if let Some(has_greeted) = self.unbound.get(&key).copied() {
            return self.receive_unbound(now, key, message, has_greeted, actions);
        }
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        let Some(queue) = &mut pod.queue else {
            return;
        };
        match message {
            FromQueue::Hello {
                epoch,
                address,
                port,
                ..
            } if !queue.has_greeted => {
                queue.has_greeted = true;
                let port = u16::try_from(*port).ok().filter(|port| *port > 0);
                queue.address = address.parse().ok().zip(port);
                let is_reachable = queue.address.is_some() && pod.uid.is_some();
                actions.push(Action::SendQueue {
                    pod: key,
                    message: ToQueue::Welcome {
                        uid: pod.uid.clone().unwrap_or_default(),
                    },
                });
                let holds = *epoch != 0;
                self.policy.connect(at, id, holds);
                self.policy.set_reachable(id, is_reachable);
                let is_holder = self.policy.view(id).is_some_and(|view| view.is_holder);
                if holds && !is_holder {
                    // Another instance has the slot by now, or the lease ends.
                    actions.push(Action::SendQueue {
                        pod: key,
                        message: ToQueue::Recall { epoch: *epoch },
                    });
                }
                self.touched.insert(key);
            }
            FromQueue::Head {
                seq,
                deadline,
                estimate,
                requests,
                in_time,
                waiting,
                may_move,
                trace,
            } if queue.has_greeted => {
                queue.head = *seq;
                queue.has_head = *waiting > 0;
                let trace = NonZero::new(u128::from_be_bytes(trace.trace));
                queue.trace = trace.filter(|_| queue.has_head);
                self.policy.outcomes(at, id, *requests, *in_time);
                let demand = Demand {
                    deadline: Time(*deadline).min(at.after(DEADLINE_MAX)),
                    estimate: Span(*estimate).min(ESTIMATE_MAX),
                    waiting: *waiting,
                    may_move: *may_move,
                };
                self.policy.head(at, id, demand);
                self.touched.insert(key);
            }
            FromQueue::Returned { seq, is_refused } if queue.has_greeted => {
                let named = queue.named.iter().position(|(own, _)| own == seq);
                // Of a head which an earlier agent has named, or of none, it means nothing.
                if let Some((_, to)) = named.and_then(|at| queue.named.remove(at)) {
                    pod.siblings.1 += 1;
                    self.policy.returned(at, id, id_of(to), *is_refused);
                    self.touched.extend([key, to]);
                }
            }
            FromQueue::Idle { epoch, ends } if queue.has_greeted => {
                // Of an earlier lease it means nothing.
                if *epoch == pod.epoch && pod.epoch != 0 {
                    if !*ends {
                        queue.forget_head();
                    }
                    self.policy.idle(at, id, *ends);
                    self.touched.insert(key);
                }
            }
            _ => self.refuse_queue(now, key, "unexpected message", actions),
        }
    }

    /// Handles a message of the queue of a pod that needs no lease.
    fn receive_unbound(
        &mut self,
        now: u64,
        key: PodKey,
        message: &FromQueue,
        has_greeted: bool,
        actions: &mut Vec<Action>,
    ) {
        match (message, has_greeted) {
            (FromQueue::Hello { .. }, false) => {
                self.unbound.insert(key, true);
                let epoch = self.next_epoch(now);
                let uid = String::new();
                for message in [ToQueue::Welcome { uid }, ToQueue::Lease { epoch }] {
                    actions.push(Action::SendQueue { pod: key, message });
                }
            }
            (
                FromQueue::Head { .. } | FromQueue::Returned { .. } | FromQueue::Idle { .. },
                true,
            ) => {}
            _ => self.refuse_queue(now, key, "unexpected message", actions),
        }
    }

    /// Returns the ID of the trace of the head for which the model of a pod returns: that of its own queue, or else of the first sibling that has one; `None`
    /// if it is not sampled.
    pub(crate) fn trace_of(&self, key: PodKey) -> Option<NonZero<u128>> {
        let own = self.pods.get(&key)?;
        let head = |pod: &LeasedPod| pod.queue.as_ref().is_some_and(|queue| queue.has_head);
        let others = self.pods.values();
        let mut siblings = others.filter(|pod| pod.function == own.function && head(pod));
        let of = if head(own) { own } else { siblings.next()? };
        of.queue.as_ref()?.trace
    }

    /// Returns whether the pod's processes may have tokens.
    pub(crate) fn is_open(&self, key: PodKey) -> bool {
        self.pods.get(&key).is_none_or(|pod| pod.is_open)
    }

    /// Records whether the pod's processes may have tokens.
    pub(crate) fn set_open(&mut self, key: PodKey, is_open: bool) {
        if let Some(pod) = self.pods.get_mut(&key) {
            pod.is_open = is_open;
            self.touched.insert(key);
        }
    }

    /// Records what follows once the gate of a pod is closed.
    pub(crate) fn set_closing(&mut self, key: PodKey, closing: Option<Closing>) {
        if let Some(pod) = self.pods.get_mut(&key) {
            pod.closing = closing;
            self.touched.insert(key);
        }
    }

    /// Waits for the answers of processes to the order to seal, which replaces an earlier one.
    pub(crate) fn begin_seal(&mut self, key: PodKey, pending: BTreeMap<ProcessId, u32>) {
        if let Some(pod) = self.pods.get_mut(&key) {
            pod.sealing = pending;
        }
    }

    /// Takes the answer of a process. Returns whether it is the last one; `None` if the number is not that of an order to seal.
    pub(crate) fn seal_answered(&mut self, key: PodKey, id: ProcessId, seq: u32) -> Option<bool> {
        let pod = self.pods.get_mut(&key)?;
        if pod.sealing.get(&id) != Some(&seq) {
            return None;
        }
        pod.sealing.remove(&id);
        Some(pod.sealing.is_empty())
    }

    pub(crate) fn closing(&self, key: PodKey) -> Option<Closing> {
        self.pods.get(&key)?.closing
    }

    /// Returns the time by which a process of the pod that waits from now on is to compute.
    pub(crate) fn parked_deadline(&self, now: u64, key: PodKey) -> Time {
        let deadline = self
            .pods
            .get(&key)
            .map_or(PARKED_DEADLINE, |pod| pod.deadline);
        Time(now).after(deadline)
    }

    /// Returns whether a pod's model is on the host, as far as leases know, and not about to return.
    pub(crate) fn is_away(&self, key: PodKey) -> bool {
        let view = self.policy.view(id_of(key));
        view.is_some_and(|view| view.location == Location::Host && !view.has_turn)
    }

    /// Returns the pods of a slot that have leases.
    pub(crate) fn pods_of(&self, slot: SlotKey) -> impl Iterator<Item = PodKey> {
        let of_slot = move |(key, pod): (&PodKey, &LeasedPod)| (pod.slot == slot).then_some(*key);
        self.pods.iter().filter_map(of_slot)
    }

    pub(crate) fn claim(&mut self, now: u64, key: PodKey, bytes: u64) -> Claim {
        if !self.pods.contains_key(&key) {
            return Claim::Granted;
        }
        let claim = self.policy.claim(Time(now), id_of(key), bytes);
        self.touched.insert(key);
        claim
    }

    pub(crate) fn located(&mut self, now: u64, key: PodKey, location: Location) {
        self.policy.located(Time(now), id_of(key), location);
    }

    /// Returns the epoch of the next lease: above those of earlier agents too, which had the time in microseconds.
    fn next_epoch(&mut self, now: u64) -> u64 {
        self.last_epoch = (self.last_epoch + 1).max(now / 1_000);
        self.last_epoch
    }

    /// Gives a pod's queue the lease.
    pub(crate) fn lease(&mut self, now: u64, key: PodKey, actions: &mut Vec<Action>) {
        let epoch = self.next_epoch(now);
        if let Some(pod) = self.pods.get_mut(&key)
            && pod.queue.is_some()
        {
            pod.epoch = epoch;
            if let Some(message) = pod.take_spent(now) {
                actions.push(Action::SendQueue { pod: key, message });
            }
            actions.push(Action::SendQueue {
                pod: key,
                message: ToQueue::Lease { epoch },
            });
        }
    }

    /// Records the begin of a load of a pod's model for a lease, or the end of the last one.
    pub(crate) fn note_load(&mut self, now: u64, key: PodKey, has_ended: bool) {
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        if !has_ended {
            let (begun, ended) = (now, None);
            pod.load = Some(Load { begun, ended });
        } else if let Some(load) = &mut pod.load {
            load.ended = Some(now);
        }
    }

    /// Recalls the lease of a pod's queue.
    pub(crate) fn recall(&mut self, key: PodKey, actions: &mut Vec<Action>) {
        if let Some(pod) = self.pods.get_mut(&key)
            && let Some(queue) = &mut pod.queue
        {
            // What waits is stated anew.
            queue.forget_head();
            let epoch = pod.epoch;
            actions.push(Action::SendQueue {
                pod: key,
                message: ToQueue::Recall { epoch },
            });
        }
    }

    /// Names the instance `to` to the queue of `from`, which forwards its head.
    pub(crate) fn name_sibling(&mut self, from: PodKey, to: PodKey, actions: &mut Vec<Action>) {
        let Some(target) = self.pods.get(&to) else {
            return;
        };
        let address = target.queue.as_ref().and_then(|queue| queue.address);
        let (Some((address, port)), Some(uid)) = (address, target.uid.clone()) else {
            return;
        };
        let revision = target.revision.clone();
        let Some(sender) = self.pods.get_mut(&from) else {
            return;
        };
        if let Some(queue) = &mut sender.queue {
            sender.siblings.0 += 1;
            queue.named.push_back((queue.head, to));
            if queue.named.len() > NAMED_MAX {
                queue.named.pop_front();
            }
            actions.push(Action::SendQueue {
                pod: from,
                message: ToQueue::Sibling {
                    seq: queue.head,
                    uid,
                    address: address.to_string(),
                    port: u32::from(port),
                    revision,
                },
            });
        }
    }

    /// Notifies a pod's queue of where its model is, if that has changed.
    pub(crate) fn notify(&mut self, key: PodKey, actions: &mut Vec<Action>) {
        let Some(view) = self.policy.view(id_of(key)) else {
            return;
        };
        let Some(queue) = self.pods.get_mut(&key).and_then(|pod| pod.queue.as_mut()) else {
            return;
        };
        let state = match view.location {
            _ if view.has_failed => (Residency::Faulted, 0),
            Location::Absent => (Residency::None, 0),
            Location::Device => (Residency::Resident, 0),
            // It is on its way.
            Location::Host if view.is_holder || view.has_turn => (Residency::Host, 0),
            Location::Host => (Residency::Host, view.load.0),
        };
        let is_known = queue.state.is_some_and(|(residency, load)| {
            // Means differ a little after each load, which is no news.
            residency == state.0 && load.abs_diff(state.1) <= load / 4
        });
        if queue.has_greeted && !is_known {
            queue.state = Some(state);
            let (residency, load) = state;
            actions.push(Action::SendQueue {
                pod: key,
                message: ToQueue::State { residency, load },
            });
        }
    }

    /// Returns what is known of a pod's lease.
    pub(crate) fn figures(&self, key: PodKey) -> LeaseFigures {
        let Some(view) = self.policy.view(id_of(key)) else {
            return LeaseFigures::default();
        };
        let siblings = self.pods.get(&key).map_or((0, 0), |pod| pod.siblings);
        LeaseFigures {
            has_queue: self.pods.get(&key).is_some_and(|pod| pod.queue.is_some()),
            is_holder: view.is_holder,
            load_ns: view.load.0,
            execution_ns: view.execution.0,
            siblings_named: siblings.0,
            siblings_returned: siblings.1,
        }
    }
}

impl LeasedPod {
    /// Returns what its queue is to learn of the load for the lease that it gets. A load that goes on delays no request's start.
    fn take_spent(&mut self, now: u64) -> Option<ToQueue> {
        let Load { begun, ended } = self.load.take()?;
        let load = ended.unwrap_or(now).saturating_sub(begun);
        (load > 0).then_some(ToQueue::Spent {
            seq: self.queue.as_ref()?.head,
            begun,
            load,
            source: LoadSource::Host,
        })
    }
}

/// Returns the instance of a pod.
pub(crate) const fn id_of(key: PodKey) -> InstanceId {
    InstanceId(key.0)
}
