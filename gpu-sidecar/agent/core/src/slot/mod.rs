//! One slot: its scheduler, its pods and their processes.
//!
//! | module | contents |
//! |---|---|
//! | `pods` | added, changed and removed pods; the slot itself |
//! | `connections` | from connection to disconnection; messages; reports; the roster |
//! | `greeting` | the answer to `Hello`, and the pages after `Attach` |
//! | `tokens` | requests and returns of tokens; execution of the scheduler's actions; kernel time |
//! | `leases` | which pod may compute, and whose model is there |
//! | `memory` | claims on the pod's limit of device memory |
//! | `moves` | models moved to the host and back |
//! | `survivors` | processes of an earlier agent; the freeze after the start |
//! | `poll` | wake-ups: deadlines, heartbeats, and state that changes without events |
//! | `figures` | counters and gauges |

mod connections;
mod faults;
mod figures;
mod greeting;
mod leases;
mod memory;
mod moves;
mod pods;
mod poll;
mod residue;
mod strays;
mod survivors;
mod tokens;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use policy::tokens::{ProcessId, ProcessUsage, Tokens};
use protocol::union::Union;

use crate::action::Action;
use crate::agent::Numbers;
use crate::event_kind::EventKind;
use crate::leases::NodeLeases;
use crate::pod::ServedPod;
use crate::pods::PodKey;
use crate::process::Process;
use crate::residency::NodeMemory;
use crate::slots::{Slot, SlotKey};

/// What a handler gets besides the slot.
pub(crate) struct Context<'a> {
    /// Time of the event, in nanoseconds.
    pub(crate) now: u64,
    pub(crate) actions: &'a mut Vec<Action>,
    pub(crate) numbers: &'a mut Numbers,
    pub(crate) memory: &'a mut NodeMemory,
    pub(crate) leases: &'a mut NodeLeases,
}

/// A slot with its pods; they may be added before the slot itself.
#[derive(Debug)]
pub(crate) struct SlotState {
    key: SlotKey,
    /// The device and its scheduler; `None` until the slot was added.
    device: Option<Device>,
    pods: BTreeMap<PodKey, ServedPod>,
    processes: BTreeMap<ProcessId, Process>,
    /// Processes that have greeted before the slot's MPS daemon answers, each with the end of its wait in nanoseconds.
    early: Vec<(ProcessId, u64)>,
    heartbeat_at: u64,
    /// Time until which threads count as waiting for memory, in nanoseconds: they repeat their notices.
    memory_waits_until: u64,
    polled_at: u64,
    /// Whether its pods compute by leases.
    is_leased: bool,
    /// Least device memory that a context was found to take by itself, in bytes, where it is not configured.
    measured_residue: Option<u64>,
    /// Result of [`SlotState::next_wake`], while nothing has changed since.
    wake: Cell<Option<Option<u64>>>,
}

/// The device of a slot, and the scheduler of its tokens.
#[derive(Debug)]
struct Device {
    slot: Arc<Slot>,
    tokens: Tokens,
    /// Whether the slot is lost: nothing is granted.
    is_lost: bool,
    is_mps_up: bool,
    /// State of the MPS daemon, for operators.
    mps_text: String,
    /// Time until which nothing is granted because processes of an earlier agent may compute, in nanoseconds.
    frozen_until: Option<u64>,
    /// Time until which pods of an earlier agent may not have been found yet, in nanoseconds.
    first_look_until: u64,
    /// Processes that requested a token while the slot was frozen.
    early_requests: Vec<ProcessId>,
    /// Number of tokens granted.
    grants: u64,
    /// Time during which the device was idle between two holders, in nanoseconds.
    idle_ns: u64,
    /// Upper bound of the union of all pods' kernel times.
    busy: Union,
    /// Buffers without contents between calls.
    scheduled: Vec<policy::tokens::Action>,
    usages: Vec<ProcessUsage>,
}

/// A process with its pod and its device, found once for each event.
struct Member<'a> {
    process: &'a mut Process,
    pod: &'a mut ServedPod,
    device: &'a mut Device,
}

impl Member<'_> {
    /// Returns the host memory that the processes of the pod can need together, in bytes.
    fn windows_max(&self) -> u64 {
        match self.pod.memory_limit() {
            0 => self.device.slot.memory_bytes,
            limit => limit,
        }
    }
}

impl SlotState {
    pub(crate) const fn new(key: SlotKey) -> Self {
        Self {
            key,
            device: None,
            pods: BTreeMap::new(),
            processes: BTreeMap::new(),
            early: Vec::new(),
            heartbeat_at: 0,
            memory_waits_until: 0,
            polled_at: 0,
            is_leased: false,
            measured_residue: None,
            wake: Cell::new(None),
        }
    }

    /// Returns the process with its pod and device; `None` when it has been forgotten.
    fn member(&mut self, id: ProcessId) -> Option<Member<'_>> {
        let process = self.processes.get_mut(&id)?;
        let pod = self.pods.get_mut(&process.pod())?;
        let device = self.device.as_mut()?;
        Some(Member {
            process,
            pod,
            device,
        })
    }

    pub(crate) fn pod_of(&self, id: ProcessId) -> Option<PodKey> {
        self.processes.get(&id).map(Process::pod)
    }

    pub(crate) fn has_processes(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Appends the processes with pages of the pods for which `is_observed` returns true.
    pub(crate) fn observed(
        &self,
        is_observed: impl Fn(&ServedPod) -> bool,
        processes: &mut Vec<ProcessId>,
    ) {
        for pod in self.pods.values().filter(|pod| is_observed(pod)) {
            let attached = pod.processes().iter().filter(|id| {
                let process = self.processes.get(id);
                process.is_some_and(|process| process.device().is_some())
            });
            processes.extend(attached);
        }
    }

    /// Appends an entry of a pod to the event log.
    fn record(&self, cx: &mut Context<'_>, kind: EventKind, pod: PodKey, text: String) {
        let Some(pod) = self.pods.get(&pod) else {
            return;
        };
        let slot = self.device.as_ref();
        cx.actions.push(Action::Record {
            kind,
            slot: slot.map_or_else(String::new, |device| device.slot.name.clone()),
            pod: pod.pod().display(),
            text,
        });
    }
}
