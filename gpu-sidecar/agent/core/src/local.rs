//! A caller of the service with pages in its own memory, for processes in virtual time; and a node with one slot shared by MPS.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use annotations::{Evict, Isolation};
use policy::tokens::{ProcessId, Settings};
use protocol::message::FromProcess;
use protocol::page;

use crate::action::Action;
use crate::agent::Agent;
use crate::event::{Event, Peer};
use crate::facts::Facts;
use crate::kind::SlotKind;
use crate::pods::{Pod, PodKey, PodSettings};
use crate::residency::MemorySettings;
use crate::slots::{Slot, SlotKey};

/// Time from which the service of [`LocalAgent::with_shared_slot`] grants tokens, in nanoseconds.
pub const READY_NS: u64 = 1_000_000_000;

/// A pod with one process on the slot of [`LocalAgent::with_shared_slot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Share of the SMs, in hundredths of a percent.
    pub sm_hundredths: u32,
    /// Guaranteed share of wall time, in millionths.
    pub quota_request_ppm: u32,
    /// Largest share of wall time, in millionths.
    pub quota_limit_ppm: u32,
}

/// The two pages which the service shares with a process.
#[derive(Debug, Default)]
pub struct SharedPages {
    /// Page which the service writes.
    pub orders: page::Orders,
    /// Page which the process writes.
    pub facts: page::Facts,
}

/// A service with the pages of its processes. It reads facts and writes orders; everything else is left to its caller.
#[derive(Debug)]
pub struct LocalAgent {
    agent: Agent,
    pages: BTreeMap<ProcessId, (Arc<SharedPages>, u64)>,
    observed: Vec<ProcessId>,
    facts: Facts,
}

impl LocalAgent {
    /// Creates a service without slots.
    #[must_use]
    pub fn new(tokens: Settings) -> Self {
        Self {
            agent: Agent::new(tokens),
            pages: BTreeMap::new(),
            observed: Vec::new(),
            facts: Facts {
                launches: 0,
                busy_since: 0,
                busy_ns: 0,
                ungated_ns: 0,
                bound_exceeded: 0,
                bytes_used: 0,
                bytes_fixed: 0,
                refused_allocations: 0,
                unknown_symbols: 0,
                inflight_us: 0,
                unmeasured: 0,
                parked: 0,
                last_error: 0,
                residency: 0,
                sealed: 0,
                fixed: [0; _],
                pinned_max: 0,
                stretches: Vec::new(),
            },
        }
    }

    /// Sets how models are moved between devices and host.
    #[must_use]
    pub fn with_memory(mut self, settings: MemorySettings) -> Self {
        self.agent = self.agent.with_memory(settings);
        self
    }

    /// Returns the service as a state machine, without its pages.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the pages of a process; `None` before [`Action::CreatePages`] and after [`Action::Forget`].
    #[must_use]
    pub fn pages(&self, process: ProcessId) -> Option<&Arc<SharedPages>> {
        self.pages.get(&process).map(|(pages, _)| pages)
    }

    /// Handles an event with the facts which it needs, and appends the actions that follow. Those which concern pages are carried
    /// out already.
    pub fn handle(&mut self, now: u64, event: &Event, actions: &mut Vec<Action>) {
        let mut observed = std::mem::take(&mut self.observed);
        self.agent.observes(now, event, &mut observed);
        for process in observed.drain(..) {
            if let Some((pages, seen)) = self.pages.get_mut(&process) {
                let mut facts = std::mem::take(&mut self.facts);
                facts.read(&pages.facts, seen);
                let event = Event::Facts { process, facts };
                self.agent.handle(now, &event, actions);
                if let Event::Facts { facts, .. } = event {
                    self.facts = facts;
                }
            }
        }
        self.observed = observed;
        let first = actions.len();
        self.agent.handle(now, event, actions);
        for action in &actions[first..] {
            match action {
                Action::CreatePages { process, pages } => {
                    let shared = SharedPages::default();
                    pages.write(&shared.orders, &shared.facts);
                    self.pages.insert(*process, (Arc::new(shared), 0));
                }
                Action::Order { process, order } => {
                    if let Some((pages, _)) = self.pages.get(process) {
                        let _word = order.write(&pages.orders);
                    }
                }
                Action::Forget(process) => {
                    self.pages.remove(process);
                }
                _ => {}
            }
        }
    }

    /// Creates a service with slot 0, shared by MPS, whose daemon runs. It has started at time 0 and waits for nothing from
    /// [`READY_NS`] on.
    #[must_use]
    pub fn with_shared_slot(tokens: Settings) -> Self {
        let mut own = Self::new(tokens);
        let mut unused = Vec::new();
        let up = Event::MpsState {
            slot: SlotKey(0),
            is_up: true,
            text: String::new(),
        };
        for event in [Event::SlotAdded(Arc::new(shared_slot())), up] {
            own.handle(0, &event, &mut unused);
        }
        while let Some(at) = own.agent.next_wake().filter(|at| *at <= READY_NS) {
            own.handle(at, &Event::Wake, &mut unused);
        }
        own
    }

    /// Adds a pod to slot 0, and a process of it, which connects, greets and gets its pages; appends all other actions. Returns
    /// the process's number and pages; `None` when the service has no number left.
    pub fn add(
        &mut self,
        now: u64,
        key: PodKey,
        tenant: &Tenant,
        actions: &mut Vec<Action>,
    ) -> Option<(ProcessId, Arc<SharedPages>)> {
        let added = Event::PodAdded {
            pod: Arc::new(tenant.pod(key)),
            survivors: Vec::new(),
        };
        self.handle(now, &added, actions);
        let connected = Event::Connected {
            pod: key,
            peer: Some(Peer {
                pid: key.0 + 1,
                start: Some(0),
                is_watched: true,
                is_of_pod: true,
            }),
        };
        let from = actions.len();
        self.handle(now, &connected, actions);
        let process = actions[from..].iter().find_map(|action| match action {
            Action::Admit(process) => Some(*process),
            _ => None,
        })?;
        let hello = FromProcess::Hello {
            version: protocol::VERSION,
            residency: page::Residency::None,
            host_bytes: 0,
            pinned_bytes: 0,
            pid: 1,
            again: false,
            open: false,
            busy_ns: 0,
            ungated_ns: 0,
            bytes_used: 0,
            program: String::new(),
        };
        let attach = FromProcess::Attach {
            uuid: [0; 16],
            multiprocessors: 1,
            mps: true,
            context_bytes: 0,
            busy_ns: 0,
        };
        for message in [hello, attach] {
            self.handle(now, &Event::Message { process, message }, actions);
        }
        Some((process, Arc::clone(self.pages(process)?)))
    }
}

impl Tenant {
    fn pod(&self, key: PodKey) -> Pod {
        Pod {
            key,
            serial: u64::from(key.0),
            name: format!("pod-{}", key.0),
            namespace: "default".to_owned(),
            function: String::new(),
            revision: String::new(),
            uid: None,
            cgroup: None,
            pod_name: None,
            mps_mount: None,
            settings: PodSettings {
                isolation: Isolation::Shared,
                sm_hundredths: self.sm_hundredths,
                quota_request_ppm: self.quota_request_ppm,
                quota_limit_ppm: self.quota_limit_ppm,
                gpu_memory: None,
                evict: Evict::Never,
                slo: None,
                is_pipeline: false,
                slo_percentile_ppm: 980_000,
                version: String::new(),
            },
            slot: SlotKey(0),
            folder: PathBuf::new(),
        }
    }
}

/// Returns a slot whose number of SMs is unknown, so that shares count as they are stated.
fn shared_slot() -> Slot {
    Slot {
        key: SlotKey(0),
        name: "0".to_owned(),
        uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
        product: "simulated".to_owned(),
        kind: SlotKind::Mps,
        sms: None,
        memory_bytes: 0,
        compute_capability: None,
        client_limit: u32::MAX,
        seats: u32::MAX,
        context_residue: None,
        host_path: 0,
        numa_nodes: Vec::new(),
        models_memory: None,
        mps_pipe: Some(PathBuf::from("/run/weir/mps/0/pipe")),
        mig: None,
    }
}
