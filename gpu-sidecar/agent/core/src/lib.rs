//! The agent's token service as a state machine without sockets, clock or files.
//!
//! [`Agent::handle`] takes the time, one [`Event`] and a list to which it appends [`Action`]s; [`Agent::next_wake`] returns when
//! it must be called next if nothing happens. The caller owns the sockets, the pages shared with processes and the clock, and
//! decides nothing: it passes on what happens and carries out what is returned. So the same code serves a node
//! (`gpu_sidecar::service`), runs in virtual time under faults (`gpu-sidecar/agent/tests/vopr`), models the shared GPUs of
//! `weir simulate`, and replays what an agent has recorded ([`record`]).
//!
//! Values that a process publishes in its page of facts are not events of their own. Before an event the caller reads the pages
//! of the processes that [`Agent::observes`] returns and passes each as [`Event::Facts`], with the same time.
//!
//! | module | contents |
//! |---|---|
//! | [`slots`], [`pods`], [`environment`] | slots and pods as the other parts of the agent find them |
//! | [`event`], [`action`], [`facts`] | what comes in, what goes out; values of a page |
//! | [`agent`] | dispatch to the slots; process numbers; wake-ups |
//! | `slot` | one slot: its scheduler, pods and processes |
//! | `process`, `gate`, `pod`, `accept` | one process, its gate, one pod, the rate of its connections |
//! | `leases` | queues of pods, and the leases of slots |
//! | `lease_policy` | the two policies of leases, of exclusive and of shared slots |
//! | [`figures`] | counters and gauges |
//! | [`local`] | a caller with pages in its own memory, for processes in virtual time |
//! | [`record`] | events and actions as text, and their replay |
//!
//! Decisions on turns and memory are `policy`'s ([`policy::tokens`], [`policy::claims`]); this crate keeps the protocol with the
//! processes around them. Memory grows with the number of pods and processes, which are bounded ([`pods::PODS_MAX`],
//! [`agent::PROCESSES_MAX`]).
//!
//! Deliberately absent: reading and writing of sockets and pages. Start reading in [`agent`].
#![forbid(unsafe_code)]

mod accept;
pub mod action;
pub mod agent;
pub mod environment;
pub mod event;
pub mod event_kind;
pub mod facts;
pub mod figures;
mod gate;
mod kind;
mod lease_decisions;
mod lease_policy;
mod leases;
pub mod local;
mod pod;
pub mod pods;
mod process;
pub mod record;
mod residency;
mod slot;
pub mod slots;

pub use action::{Action, Level, NewPages, Order, OrderAnswer};
pub use agent::Agent;
pub use environment::MpsEnvironment;
pub use event::{Event, MoveOrder, Peer, PodOrder, ProcessRecord};
pub use event_kind::EventKind;
pub use facts::Facts;
pub use figures::{
    AgentFigures, Figures, Histogram, LeaseFigures, MoveCounters, PodCounters, PodFigures,
    ProcessFigures, ProcessMemory, SlotFigures, WAIT_BOUNDS_NS, protocol_refusal,
};
pub use kind::SlotKind;
pub use pods::{PODS_MAX, Pod, PodKey, PodSettings};
pub use residency::{DRAIN_MS, DRAIN_MS_MAX, MOVE_MAX, MemorySettings};
pub use slots::{MigInstance, SLICES_OF_GPU, Slot, SlotKey};
