//! Events: what the service learns.

use std::sync::Arc;

use policy::tokens::ProcessId;
use protocol::message::FromProcess;
use protocol::queue::FromQueue;
use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::pods::{Pod, PodKey};
use crate::record::wire;
use crate::slots::{Slot, SlotKey};

/// Input of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A slot was found, or a lost one is back, possibly with other properties.
    SlotAdded(Arc<Slot>),
    /// A slot is lost: work on it has failed, and nothing is granted on it.
    SlotLost {
        /// Slot which is lost.
        slot: SlotKey,
        /// Cause of the loss, for operators.
        reason: String,
    },
    /// The state of a slot's MPS daemon has changed.
    MpsState {
        /// Slot of the daemon.
        slot: SlotKey,
        /// Whether the daemon answers.
        is_up: bool,
        /// Description of the state, for operators.
        text: String,
    },
    /// The driver has listed the device memory of the processes on a slot, at intervals.
    DeviceMemory {
        /// Slot of the processes.
        slot: SlotKey,
        /// Process IDs in the agent's namespace, each with its device memory in bytes.
        processes: Vec<(u32, u64)>,
    },
    /// A pod was found and placed.
    PodAdded {
        /// Pod with its slot and settings.
        pod: Arc<Pod>,
        /// Live processes which an earlier agent has recorded with [`Action::Roster`](crate::Action::Roster).
        survivors: Vec<ProcessRecord>,
    },
    /// A pod's settings have changed; key, serial number, slot and folder stay the same.
    PodChanged(Arc<Pod>),
    /// A pod was removed.
    PodRemoved(PodKey),
    /// An operator orders a move of a pod's model. Answered with one [`Action::Answer`](crate::Action::Answer).
    Ordered {
        /// Pod of the model.
        pod: PodKey,
        /// The order.
        order: MoveOrder,
    },
    /// A process has connected to a pod's socket. Answered with [`Action::Admit`](crate::Action::Admit), or not admitted.
    Connected {
        /// Pod of the socket.
        pod: PodKey,
        /// Identity of the process; `None` where it has ended or cannot be examined.
        peer: Option<Peer>,
    },
    /// No connection of a pod can be accepted for lack of a resource.
    AcceptFailed(PodKey),
    /// A queue has connected to a pod's socket for queues. Answered with [`Action::AdmitQueue`](crate::Action::AdmitQueue), or not admitted.
    QueueConnected {
        /// Pod of the socket.
        pod: PodKey,
        /// Whether the connecting process belongs to the pod of the socket, as far as that can be examined.
        is_of_pod: bool,
    },
    /// The queue of a pod has sent a message.
    QueueMessage {
        /// Pod of the queue.
        pod: PodKey,
        /// The message.
        #[serde(with = "wire::from_queue")]
        message: FromQueue,
    },
    /// The queue of a pod has sent bytes that are no message.
    QueueMalformed {
        /// Pod of the queue.
        pod: PodKey,
        /// Reason, for logs and users.
        text: String,
    },
    /// The connection of a pod's queue has ended.
    QueueDisconnected(PodKey),
    /// A process has sent a message.
    Message {
        /// Sender of the message.
        #[serde(with = "wire::process")]
        process: ProcessId,
        /// The message.
        #[serde(with = "wire::from_process")]
        message: FromProcess,
    },
    /// A process has sent bytes that are no message.
    Malformed {
        /// Sender of the bytes.
        #[serde(with = "wire::process")]
        process: ProcessId,
        /// Whether they are of another version of the protocol.
        is_of_other_version: bool,
        /// Reason, for logs and users.
        text: String,
    },
    /// The connection of a process has ended.
    Disconnected(#[serde(with = "wire::process")] ProcessId),
    /// A message could not be sent: the connection has ended, or its buffer is full.
    NotSent {
        /// Process to which it was addressed.
        #[serde(with = "wire::process")]
        process: ProcessId,
        /// Whether it was [`FromAgent::Probe`](protocol::message::FromAgent::Probe).
        is_probe: bool,
    },
    /// The pages of a process could not be created or sent.
    PagesFailed {
        /// Process without pages.
        #[serde(with = "wire::process")]
        process: ProcessId,
        /// Reason, for the log.
        text: String,
    },
    /// Host memory for a process could not be created or sent.
    WindowFailed {
        /// Process for which it was meant.
        #[serde(with = "wire::process")]
        process: ProcessId,
        /// Size in bytes.
        bytes: u64,
        /// Whether it might have been registered with the driver.
        is_pinned: bool,
    },
    /// The values of a process's page of facts, before an event of the same time.
    Facts {
        /// Process which has published them.
        #[serde(with = "wire::process")]
        process: ProcessId,
        /// The values.
        facts: Facts,
    },
    /// A process has ended.
    Ended(#[serde(with = "wire::process")] ProcessId),
    /// A process which was to be examined is stopped, as by `SIGSTOP`.
    Stopped(#[serde(with = "wire::process")] ProcessId),
    /// A process of an earlier agent which was to be examined has ended.
    SurvivorEnded {
        /// Pod of the process.
        pod: PodKey,
        /// The process.
        record: ProcessRecord,
    },
    /// The time of [`Agent::next_wake`](crate::Agent::next_wake) has come.
    Wake,
    /// A reader waits for figures. Answered with [`Action::Publish`](crate::Action::Publish).
    FiguresWanted,
}

/// Change of residency ordered by an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodOrder {
    /// Evict the pod's model from its slot.
    Evict,
    /// Restore the pod's evicted model.
    Restore,
}

/// An operator's order about a pod's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveOrder {
    /// Number by which the caller finds the sender of the order.
    pub number: u64,
    /// Change that is ordered.
    pub order: PodOrder,
    /// Time for which work in flight is waited for, in milliseconds.
    pub drain_ms: u32,
    /// Whether the answer comes at the end of the move; otherwise at its beginning.
    pub waits: bool,
}

/// Identity of a connecting process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Process ID in the agent's PID namespace; 0 for a process of another one.
    pub pid: u32,
    /// Start time in clock ticks since boot, which identifies the process together with its ID; `None` where it is unknown.
    pub start: Option<u64>,
    /// Whether the end of the process is reported by [`Event::Ended`]. Otherwise it lives as long as its connection.
    pub is_watched: bool,
    /// Whether the process belongs to the pod of the socket, as far as that can be examined.
    pub is_of_pod: bool,
}

/// Record of a process with pages, which the next agent finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Process ID in the agent's PID namespace.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start: u64,
    /// Share of the SMs, in hundredths of a percent.
    pub sm_hundredths: u32,
}
