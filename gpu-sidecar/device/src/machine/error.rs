//! Errors of a machine.

use super::{EventId, StreamId};
use crate::ledger::ProcessId;
use crate::memory::MemoryError;
use crate::mig::LayoutError;
use crate::node::NodeError;
use crate::part::PartError;

/// Reason for which a node or a process cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The slices of a GPU do not fit.
    #[error("GPU {gpu}: {error}")]
    Slices {
        /// Index of the GPU in [`Node::gpus`](crate::node::Node::gpus).
        gpu: usize,
        /// Reason for which the slices do not fit.
        error: LayoutError,
    },
    /// The GPU model does not support MIG.
    #[error("GPU {gpu}: {part} does not support MIG")]
    NoMig {
        /// Index of the GPU in [`Node::gpus`](crate::node::Node::gpus).
        gpu: usize,
        /// Name of the GPU model.
        part: String,
    },
    /// A property of a GPU is out of range.
    #[error("GPU {gpu}: {error}")]
    Part {
        /// Index of the GPU in [`Node::gpus`](crate::node::Node::gpus).
        gpu: usize,
        /// The property and its range.
        error: PartError,
    },
    /// The topology of the node is invalid.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// No GPU or slice has this number.
    #[error("no GPU or slice {0}")]
    NoUnit(u32),
    /// The largest number of MPS clients is reached.
    #[error("limit of {clients} MPS clients reached")]
    TooManyClients {
        /// Number of clients, which is the limit.
        clients: u32,
    },
    /// The device memory has no room for the context.
    #[error("no memory for a context: {0}")]
    Memory(#[from] MemoryError),
}

/// Reason for which a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The stream does not exist, or was destroyed.
    #[error("no stream {}", .0.0)]
    NoStream(StreamId),
    /// The event does not exist, or was destroyed.
    #[error("no event {}", .0.0)]
    NoEvent(EventId),
    /// The destination of a copy does not exist.
    #[error("copy to GPU or slice {0}, which does not exist")]
    NoPeer(u32),
    /// A copy to a peer names the process's own GPU or slice.
    #[error("GPU or slice {0} is the process's own: use a copy within the device")]
    OwnPeer(u32),
}

/// Reason for which a process cannot be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuspendError {
    /// The process does not exist.
    #[error("no process {}", .0.0)]
    NoProcess(ProcessId),
    /// The process has commands in progress.
    #[error("process {} has commands in progress in {streams} streams", .process.0)]
    Running {
        /// Process that was to be suspended.
        process: ProcessId,
        /// Number of the process's streams with a command in progress.
        streams: usize,
    },
    /// The process is already suspended.
    #[error("process {} is already suspended", .0.0)]
    Suspended(ProcessId),
}
