//! The service without sockets: what it does with events, one at a time.
//!
//! | module | tests |
//! |---|---|
//! | `connections` | greetings, pages, and connections which end, overlap or misbehave |
//! | `tokens` | grants, returns and revocations |
//! | `leases` | which pod of an exclusive slot computes, and whose model is there |
//! | `moves` | models moved to the host and back |
//! | `windows` | host memory for copies of models |
//! | `pods` | memory claims, heartbeats and limits |
//! | `restart` | an agent that finds the processes of an earlier one |
//!
//! Here is the service under test, in a time of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod connections;
mod leases;
mod moves;
mod pods;
mod restart;
mod tokens;
mod windows;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_core::local::{LocalAgent, SharedPages};
use agent_core::{
    Action, AgentFigures, Event, EventKind, Figures, MemorySettings, Order, Peer, Pod, PodKey,
    PodSettings, ProcessRecord, Slot, SlotKey, SlotKind,
};
use annotations::{Evict, Isolation};
use policy::pool::leases::Rule;
use policy::tokens::{ProcessId, Settings};
use protocol::message::{FromAgent, FromProcess, Refusal};
use protocol::page::{Residency, Streaming};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

const MIB: u64 = 1 << 20;
/// Host memory for models, and what brings them back.
const MEMORY: MemorySettings = MemorySettings {
    host_bytes: 100 * MIB,
    pinned_bytes: 50 * MIB,
    staging_bytes: 0,
    restores_on_demand: true,
    seal_after_ms: 700,
    streaming: Streaming::Poisoned,
    rule: Rule::Weir,
    ends_faulted: true,
};

/// Returns a pod that may have all memory of its slot.
fn unlimited(key: u32) -> Pod {
    let mut pod = pod(key, 10);
    pod.settings.gpu_memory = None;
    pod
}

/// A service under test, with its time and everything it has done.
struct Node {
    agent: LocalAgent,
    now: u64,
    actions: Vec<Action>,
}

fn slot(kind: SlotKind) -> Slot {
    Slot {
        key: SlotKey(0),
        name: "0".to_owned(),
        uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
        product: "H100".to_owned(),
        kind,
        sms: Some(132),
        memory_bytes: 80 << 30,
        compute_capability: Some((9, 0)),
        client_limit: 3,
        seats: 48,
        context_residue: None,
        host_path: 0,
        numa_nodes: Vec::new(),
        models_memory: None,
        mps_pipe: Some(PathBuf::from("/run/weir/mps/0/pipe")),
        mig: None,
    }
}

fn pod(key: u32, sm_percent: u32) -> Pod {
    Pod {
        key: PodKey(key),
        serial: u64::from(key) + 1,
        name: format!("pod-{key}"),
        namespace: "default".to_owned(),
        function: "function".to_owned(),
        revision: "revision".to_owned(),
        uid: None,
        cgroup: None,
        pod_name: None,
        mps_mount: None,
        settings: PodSettings {
            isolation: Isolation::Shared,
            sm_hundredths: sm_percent * 100,
            quota_request_ppm: 100_000,
            quota_limit_ppm: 1_000_000,
            gpu_memory: Some(1_000),
            evict: Evict::Host,
            slo: None,
            is_pipeline: false,
            slo_percentile_ppm: 980_000,
            version: String::new(),
        },
        slot: SlotKey(0),
        folder: PathBuf::from("/run/weir/pods"),
    }
}

impl Node {
    /// A slot with a running MPS daemon and these pods, after the time in which others may be found.
    fn new(pods: &[Pod]) -> Self {
        let mut node = Self::starting(pods, &[]);
        node.pass(400 * MS);
        node
    }

    fn starting(pods: &[Pod], survivors: &[ProcessRecord]) -> Self {
        let mut node = Self {
            agent: LocalAgent::new(Settings::default()).with_memory(MEMORY),
            now: SECOND,
            actions: Vec::new(),
        };
        node.on(Event::SlotAdded(Arc::new(slot(SlotKind::Mps))));
        node.mps(true);
        for pod in pods {
            let of_pod = |record: &&ProcessRecord| record.pid / 100 == pod.key.0;
            node.on(Event::PodAdded {
                pod: Arc::new(pod.clone()),
                survivors: survivors.iter().filter(of_pod).copied().collect(),
            });
        }
        node
    }

    fn mps(&mut self, is_up: bool) {
        self.on(Event::MpsState {
            slot: SlotKey(0),
            is_up,
            text: "by the test".to_owned(),
        });
    }

    /// Passes an event, and returns what follows.
    fn on(&mut self, event: Event) -> &[Action] {
        let from = self.actions.len();
        self.agent.handle(self.now, &event, &mut self.actions);
        &self.actions[from..]
    }

    /// Lets time pass, with all wake-ups in it.
    fn pass(&mut self, ns: u64) {
        let until = self.now + ns;
        while let Some(at) = self.agent.agent().next_wake().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            let before = self.agent.agent().next_wake();
            self.on(Event::Wake);
            let after = self.agent.agent().next_wake();
            assert!(after.is_none() || after > before, "the same wake-up again");
        }
        self.now = until;
    }

    /// Connects a process. Its ID is that of its pod times 100, plus a number.
    fn connect(&mut self, pid: u32) -> Option<ProcessId> {
        let event = Event::Connected {
            pod: PodKey(pid / 100),
            peer: Some(Peer {
                pid,
                start: Some(7),
                is_watched: true,
                is_of_pod: true,
            }),
        };
        let actions = self.on(event);
        actions.iter().find_map(|action| match action {
            Action::Admit(id) => Some(*id),
            _ => None,
        })
    }

    fn send(&mut self, process: ProcessId, message: FromProcess) -> &[Action] {
        self.on(Event::Message { process, message })
    }

    fn hello(&mut self, process: ProcessId, open: bool, busy_ns: u64) -> &[Action] {
        self.greet(process, false, open, busy_ns)
    }

    /// Sends `Hello` of a process which was connected before.
    fn hello_again(&mut self, process: ProcessId, open: bool) {
        self.greet(process, true, open, 0);
    }

    fn greet(&mut self, process: ProcessId, again: bool, open: bool, busy_ns: u64) -> &[Action] {
        self.send(
            process,
            FromProcess::Hello {
                version: protocol::VERSION,
                residency: Residency::None,
                host_bytes: 0,
                pinned_bytes: 0,
                pid: 1,
                again,
                open,
                busy_ns,
                ungated_ns: 0,
                bytes_used: 0,
                program: "test".to_owned(),
            },
        )
    }

    /// Greets and attaches a process which was connected before, with its memory at this place and this host memory in bytes.
    fn returned(&mut self, process: ProcessId, residency: Residency, host: u64, pinned: u64) {
        let hello = FromProcess::Hello {
            version: protocol::VERSION,
            residency,
            host_bytes: host,
            pinned_bytes: pinned,
            pid: 1,
            again: true,
            open: false,
            busy_ns: 0,
            ungated_ns: 0,
            bytes_used: 10,
            program: "test".to_owned(),
        };
        self.send(process, hello);
        self.attach(process, 0);
    }

    fn attach(&mut self, process: ProcessId, busy_ns: u64) -> &[Action] {
        self.send(
            process,
            FromProcess::Attach {
                uuid: [0; 16],
                multiprocessors: 1,
                mps: true,
                context_bytes: 0,
                busy_ns,
            },
        )
    }

    fn attached(&mut self, pid: u32) -> ProcessId {
        let process = self.connect(pid).unwrap();
        self.hello(process, false, 0);
        self.attach(process, 0);
        process
    }

    fn pages(&self, process: ProcessId) -> Arc<SharedPages> {
        Arc::clone(self.agent.pages(process).unwrap())
    }

    fn epoch(&self, process: ProcessId) -> u64 {
        self.pages(process).orders.gate.epoch()
    }

    fn is_open(&self, process: ProcessId) -> bool {
        self.epoch(process) & 1 == 0
    }

    fn ask(&mut self, process: ProcessId) {
        let epoch = self.epoch(process);
        self.send(process, FromProcess::Ask { epoch });
    }

    fn close(&mut self, process: ProcessId) {
        let epoch = self.epoch(process) & !1;
        self.send(process, FromProcess::Closed { epoch });
    }

    /// Publishes that work has been in flight since now.
    fn work(&self, process: ProcessId) {
        let pages = self.pages(process);
        pages.facts.inflight_us.store(1_000_000, Ordering::Relaxed);
        pages.facts.busy_since.store(self.now, Ordering::Relaxed);
        pages.facts.launches.0.fetch_add(1, Ordering::Relaxed);
    }

    fn figures(&mut self) -> Figures {
        self.on(Event::FiguresWanted);
        let agent = self.agent.agent();
        agent.figures(&std::collections::BTreeMap::new(), AgentFigures::default())
    }

    fn messages(&self, process: ProcessId) -> Vec<&FromAgent> {
        let sent = self.actions.iter().filter_map(|action| match action {
            Action::Send {
                process: to,
                message,
            } if *to == process => Some(message),
            _ => None,
        });
        sent.collect()
    }

    fn count(&self, is: impl Fn(&Action) -> bool) -> usize {
        self.actions.iter().filter(|action| is(action)).count()
    }
}

fn record(pid: u32, sm_hundredths: u32) -> ProcessRecord {
    ProcessRecord {
        pid,
        start: 7,
        sm_hundredths,
    }
}
