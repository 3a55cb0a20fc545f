//! What a machine refuses.

use super::{EventId, StreamId};
use crate::ledger::ProcessId;
use crate::memory::MemoryError;
use crate::mig::LayoutError;
use crate::node::NodeError;
use crate::part::PartError;

/// Why a node or a process cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A GPU cannot be sliced so.
    #[error("GPU {gpu}: {error}")]
    Slices {
        /// Which, by its place in [`Node::gpus`](crate::node::Node::gpus).
        gpu: usize,
        /// Why.
        error: LayoutError,
    },
    /// A GPU has no slices.
    #[error("GPU {gpu}: a {part} cannot be sliced")]
    NoMig {
        /// Which, by its place in [`Node::gpus`](crate::node::Node::gpus).
        gpu: usize,
        /// What it is.
        part: String,
    },
    /// A GPU's figures are out of range.
    #[error("GPU {gpu}: {error}")]
    Part {
        /// Which, by its place in [`Node::gpus`](crate::node::Node::gpus).
        gpu: usize,
        /// Why.
        error: PartError,
    },
    /// The node cannot be as it is said to be.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// There is no such GPU or slice.
    #[error("there is no GPU or slice {0}")]
    NoUnit(u32),
    /// MPS takes no further client.
    #[error("{clients} MPS clients are there already, and no more are taken")]
    TooManyClients {
        /// How many there are.
        clients: u32,
    },
    /// There is no memory for the context.
    #[error("no memory for a context: {0}")]
    Memory(#[from] MemoryError),
}

/// Why a command is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// There is no such stream, or no more.
    #[error("there is no stream {}", .0.0)]
    NoStream(StreamId),
    /// There is no such event, or no more.
    #[error("there is no event {}", .0.0)]
    NoEvent(EventId),
    /// It copies to a GPU or slice that there is not.
    #[error("there is no GPU or slice {0} to copy to")]
    NoPeer(u32),
    /// It copies to its own GPU or slice as to another.
    #[error("GPU or slice {0} is the process's own: a copy there is one within")]
    OwnPeer(u32),
}

/// Why a process cannot be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuspendError {
    /// There is no such process.
    #[error("there is no process {}", .0.0)]
    NoProcess(ProcessId),
    /// Work of it is under way.
    #[error("commands of {streams} streams of process {} are under way", .process.0)]
    Running {
        /// The process.
        process: ProcessId,
        /// How many of its streams are at work.
        streams: usize,
    },
    /// It is suspended already.
    #[error("process {} is suspended already", .0.0)]
    Suspended(ProcessId),
}
