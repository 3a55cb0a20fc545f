//! The agent of the node: the real service, with connections, rosters and pages in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use agent_core::local::{LocalAgent, SharedPages};
use agent_core::{
    Event, MemorySettings, Pod, PodKey, PodSettings, ProcessRecord, Slot, SlotKey, SlotKind,
};
use annotations::{Evict, Isolation};
use policy::tokens::{ProcessId, Settings};
use protocol::message::{FromAgent, FromProcess};

use crate::gpu::SMS;
use crate::plan::Plan;

/// A message on its way, or what ends a connection.
#[derive(Debug, Clone)]
pub(crate) enum Delivery {
    /// A message to the agent.
    ToAgent(FromProcess),
    /// Bytes to the agent that are no message.
    Garbage,
    /// The process has closed its end.
    ToAgentEnd,
    /// A message to the process, with the pages that it carries.
    ToProcess(FromAgent, Option<Arc<SharedPages>>),
    /// The agent has closed its end.
    ToProcessEnd,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) process: usize,
    /// Whether each end is open: the process's, the agent's.
    pub(crate) is_open: [bool; 2],
    /// Number at the agent, once it is admitted.
    pub(crate) number: Option<ProcessId>,
    /// Agent to which the connection belongs.
    pub(crate) generation: u64,
    /// Time of the last delivery in each direction, in nanoseconds: messages arrive in order.
    pub(crate) last: [u64; 2],
    /// Messages to the agent which came before the connection was accepted.
    pub(crate) early: VecDeque<Delivery>,
}

/// A pod on the node.
#[derive(Debug)]
pub(crate) struct NodePod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) is_there: bool,
    /// Whether the present agent listens to its socket.
    pub(crate) listens: bool,
    pub(crate) accepts: bool,
    /// Connections which wait to be accepted.
    pub(crate) backlog: VecDeque<usize>,
    pub(crate) roster: Vec<ProcessRecord>,
    /// Processes which the present agent has found.
    pub(crate) survivors: Vec<ProcessRecord>,
    pub(crate) added_at: u64,
    /// Serial number of the pod that the agent serves, and since when, in nanoseconds.
    pub(crate) served: (u64, u64),
}

/// The node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) agent: Option<LocalAgent>,
    pub(crate) generation: u64,
    pub(crate) started_at: u64,
    pub(crate) hangs: bool,
    /// What the agent has not read, because it hangs.
    pub(crate) unread: VecDeque<Event>,
    /// Time which the agent's clock shows until a time, both in nanoseconds.
    pub(crate) clock: Option<(u64, u64)>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) by_number: BTreeMap<ProcessId, usize>,
    pub(crate) pods: Vec<NodePod>,
    pub(crate) slots: Vec<Arc<Slot>>,
    pub(crate) is_mps_up: Vec<bool>,
    pub(crate) is_lost: Vec<bool>,
    /// Whether the agent has learnt of the loss of each slot.
    pub(crate) is_known_lost: Vec<bool>,
    /// Time of the wake-up that is scheduled, in nanoseconds.
    pub(crate) wakes_at: u64,
    pub(crate) arriving: Option<usize>,
    /// How models are moved.
    pub(crate) memory: MemorySettings,
}

impl Node {
    pub(crate) fn new(plan: &Plan) -> Self {
        let slots = plan.slots;
        let of_plan = |at| match plan.requests_ms {
            0 => slot(at),
            _ if plan.shared => shared(at),
            _ => exclusive(at),
        };
        Self {
            agent: None,
            generation: 0,
            started_at: 0,
            hangs: false,
            unread: VecDeque::new(),
            clock: None,
            connections: Vec::new(),
            by_number: BTreeMap::new(),
            pods: Vec::new(),
            slots: (0..slots).map(|at| Arc::new(of_plan(at))).collect(),
            is_mps_up: vec![true; slots],
            is_lost: vec![false; slots],
            is_known_lost: vec![false; slots],
            wakes_at: u64::MAX,
            arriving: None,
            memory: MemorySettings::default(),
        }
    }

    /// Starts an agent, which knows nothing.
    pub(crate) fn start(&mut self, now: u64) {
        let agent = LocalAgent::new(Settings::default());
        self.agent = Some(agent.with_memory(self.memory));
        self.generation += 1;
        self.started_at = now;
        self.hangs = false;
        self.unread.clear();
        self.is_known_lost.fill(false);
        self.clock = None;
        self.by_number.clear();
        self.wakes_at = u64::MAX;
        for pod in &mut self.pods {
            (pod.accepts, pod.listens) = (true, false);
            pod.backlog.clear();
            pod.survivors.clear();
        }
    }

    /// Returns the connection with this number, if the agent has it.
    pub(crate) fn connection(&self, number: ProcessId) -> Option<usize> {
        self.by_number.get(&number).copied()
    }
}

fn slot(at: usize) -> Slot {
    let key = u32::try_from(at).unwrap();
    Slot {
        key: SlotKey(key),
        name: at.to_string(),
        uuid: format!("GPU-00000000-0000-0000-0000-{at:012x}"),
        product: "H100".to_owned(),
        kind: SlotKind::Mps,
        sms: Some(SMS),
        memory_bytes: 80 << 30,
        compute_capability: Some((9, 0)),
        client_limit: 48,
        seats: 48,
        context_residue: None,
        host_path: key / 2,
        numa_nodes: Vec::new(),
        models_memory: None,
        mps_pipe: Some(PathBuf::from("/run/weir/mps/pipe")),
        mig: None,
    }
}

/// Returns a slot whose pods compute at once, with room for the models of two pods at most.
fn shared(at: usize) -> Slot {
    Slot {
        models_memory: Some(700 << 20),
        ..slot(at)
    }
}

/// Returns a slot whose pods compute in turns, with room for the models of two pods at most.
fn exclusive(at: usize) -> Slot {
    Slot {
        kind: SlotKind::Exclusive,
        models_memory: Some(700 << 20),
        mps_pipe: None,
        ..slot(at)
    }
}

/// Returns a pod with this share of the SMs and this limit of the time, in percent.
pub(crate) fn pod(key: usize, serial: u64, slot: usize, sm: u32, limit: u32, memory: u64) -> Pod {
    let number = u32::try_from(key).unwrap();
    Pod {
        key: PodKey(number),
        serial,
        name: format!("pod-{key}"),
        namespace: "default".to_owned(),
        function: format!("function-{key}"),
        revision: "revision".to_owned(),
        uid: None,
        cgroup: None,
        pod_name: None,
        mps_mount: None,
        settings: PodSettings {
            isolation: Isolation::Shared,
            sm_hundredths: sm * 100,
            quota_request_ppm: limit * 10_000 / 5,
            quota_limit_ppm: limit * 10_000,
            gpu_memory: (memory > 0).then_some(memory),
            evict: Evict::Host,
            slo: None,
            is_pipeline: false,
            slo_percentile_ppm: 980_000,
            version: String::new(),
        },
        slot: SlotKey(u32::try_from(slot).unwrap()),
        folder: PathBuf::from("/run/weir/pods"),
    }
}
