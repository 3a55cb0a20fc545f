//! Actions: what the caller carries out, in the order in which they are returned.

use policy::tokens::ProcessId;
use protocol::message::{FromAgent, MoveRefusal, Transfer};
use protocol::page::{Residency, Streaming};
use protocol::queue::ToQueue;

use crate::event::ProcessRecord;
use crate::event_kind::EventKind;
use crate::pods::PodKey;

/// Output of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Keep the connection of the last [`Event::Connected`](crate::Event::Connected) under this number.
    Admit(ProcessId),
    /// Accept connections of a pod from now on, or let them wait.
    Accept {
        /// Pod of the socket.
        pod: PodKey,
        /// Whether connections are accepted.
        accepts: bool,
    },
    /// Send a message. A failure is reported by [`Event::NotSent`](crate::Event::NotSent).
    Send {
        /// Receiver of the message.
        process: ProcessId,
        /// The message.
        message: FromAgent,
    },
    /// Create the two pages of a process and send them. A failure is reported by
    /// [`Event::PagesFailed`](crate::Event::PagesFailed).
    CreatePages {
        /// Process of the pages.
        process: ProcessId,
        /// First values of the pages.
        pages: NewPages,
    },
    /// Write to the page of orders of a process.
    Order {
        /// Process of the page.
        process: ProcessId,
        /// Values to write.
        order: Order,
    },
    /// Close the connection of a process, and keep its pages.
    Disconnect(ProcessId),
    /// Close the connection of a process, and release its pages and its number.
    Forget(ProcessId),
    /// Kill a process.
    Kill(ProcessId),
    /// Examine whether a process is stopped; if so, report it by [`Event::Stopped`](crate::Event::Stopped).
    Examine(ProcessId),
    /// Examine whether a process of an earlier agent has ended; if so, report it by
    /// [`Event::SurvivorEnded`](crate::Event::SurvivorEnded).
    ExamineSurvivor {
        /// Pod of the process.
        pod: PodKey,
        /// The process.
        record: ProcessRecord,
    },
    /// Replace the record of a pod's processes, for the next agent.
    Roster {
        /// Pod of the processes.
        pod: PodKey,
        /// All its live processes with pages.
        records: Vec<ProcessRecord>,
    },
    /// Append an entry to the event log.
    Record {
        /// Kind of the entry.
        kind: EventKind,
        /// Name of the slot; empty where it is unknown.
        slot: String,
        /// `namespace/name` of the pod.
        pod: String,
        /// Description for operators.
        text: String,
    },
    /// Write a line to the agent's own log.
    Log {
        /// Severity of the line.
        level: Level,
        /// Slot, pod or process concerned.
        subject: String,
        /// What has happened.
        text: String,
    },
    /// Create host memory and send it to a process, which may register it with the driver if it is pinned. A failure is reported by
    /// [`Event::WindowFailed`](crate::Event::WindowFailed).
    SendWindow {
        /// Receiver of the memory.
        process: ProcessId,
        /// Size in bytes.
        bytes: u64,
        /// Whether it may be registered.
        is_pinned: bool,
        /// NUMA nodes on which its pages are to be.
        nodes: Vec<u32>,
    },
    /// Keep the connection of the last [`Event::QueueConnected`](crate::Event::QueueConnected) as that of the pod's queue.
    AdmitQueue(PodKey),
    /// Send a message to the queue of a pod. After a failure the connection is closed and reported by
    /// [`Event::QueueDisconnected`](crate::Event::QueueDisconnected).
    SendQueue {
        /// Pod of the queue.
        pod: PodKey,
        /// The message.
        message: ToQueue,
    },
    /// Close the connection of a pod's queue.
    DisconnectQueue(PodKey),
    /// Answer an order of an operator.
    Answer {
        /// Number of the order.
        number: u64,
        /// The answer.
        answer: OrderAnswer,
    },
    /// Publish the figures, which are settled up to now.
    Publish,
}

/// Answer to an order of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderAnswer {
    /// The move has begun.
    Accepted {
        /// Number of the move.
        seq: u64,
    },
    /// The model is where the order wants it.
    Done {
        /// Number of the move.
        seq: u64,
        /// Location of the model.
        residency: Residency,
        /// What was moved.
        transfer: Transfer,
    },
    /// The model stays where it is.
    Refused(MoveRefusal),
}

/// Severity of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something outside of the service has failed.
    Warning,
    /// Something has happened which the code rules out.
    Error,
}

/// First values of a process's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPages {
    /// Epoch of the gate: even, if the gate was open already.
    pub epoch: u64,
    /// Limit of the pod's device memory, in bytes; 0: none.
    pub memory_limit: u64,
    /// Memory that the process may hold, in bytes.
    pub memory_claim: u64,
    /// Bound of the work in flight, in microseconds.
    pub inflight_us_max: u32,
    /// Time without a launch or touch after which the process copies ahead of an eviction, in milliseconds; 0: never.
    pub seal_after_ms: u32,
    /// Whether the program may compute amid a restore.
    pub streaming: Streaming,
    /// Host memory of its windows which the process may register with the driver, in bytes.
    pub pinned_bytes: u64,
}

/// Values to write to a page of orders, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Open the gate, and wake the threads parked at it.
    Open {
        /// Even epoch of the gate.
        epoch: u64,
        /// Time until which the gate is meant to stay open, in nanoseconds.
        until: u64,
        /// Bound of the work in flight, in microseconds.
        inflight_us_max: u32,
    },
    /// Shut the gate, and wake the process's own thread, which reports when nothing is in flight.
    Shut {
        /// Odd epoch of the gate.
        epoch: u64,
    },
    /// Shut the gate which the process has shut from inside.
    Acknowledge {
        /// Odd epoch of the gate.
        epoch: u64,
    },
    /// Extend the time for which the gate is meant to stay open.
    Extend {
        /// New end, in nanoseconds.
        until: u64,
        /// Bound of the work in flight, in microseconds.
        inflight_us_max: u32,
    },
    /// Publish whether other processes wait for the SMs of this one; if so, wake the process's own thread.
    Contended {
        /// Whether they wait.
        contended: bool,
        /// Bound of the work in flight, in microseconds.
        inflight_us_max: u32,
    },
    /// Publish the limits of the pod.
    Limits {
        /// Limit of the pod's device memory, in bytes; 0: none.
        memory_limit: u64,
        /// Bound of the work in flight, in microseconds.
        inflight_us_max: u32,
    },
    /// Publish the device memory of the pod's other processes, in bytes.
    MemoryOfOthers(u64),
    /// Answer a claim, and wake the threads that wait for the answer.
    Claim {
        /// Sequence number of the claim.
        seq: u32,
        /// Memory that the process may hold, in bytes.
        bytes: u64,
    },
    /// Order a move of the process's memory, and wake the process's own thread.
    Move {
        /// Number of the order; not 0.
        seq: u32,
        /// Whether the memory is to leave the device; otherwise it is to return.
        to_host: bool,
        /// Time for which work in flight is waited for, in milliseconds.
        drain_ms: u32,
    },
    /// Order the process to copy what changed of its memory to the host, and wake the process's own thread.
    Seal {
        /// Number of the order, of the same sequence as those of moves; not 0.
        seq: u32,
    },
    /// State that account has been taken of a sticky error, and wake the threads that wait for it.
    NoteError {
        /// Code of the error; not 0.
        code: u32,
    },
    /// Publish the device memory that a context of the slot takes by itself, for a process that does not count its own yet.
    ContextResidue {
        /// Size in bytes.
        bytes: u64,
    },
    /// Publish how much of its windows the process may register with the driver, and wake its own thread, which releases what is beyond it.
    Pinned {
        /// Size in bytes.
        bytes: u64,
    },
    /// Show that the agent is alive.
    Heartbeat,
}
