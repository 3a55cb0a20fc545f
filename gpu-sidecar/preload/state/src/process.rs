//! All state of a process but its device memory, which has locks that must not survive a fork.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::message::OnLoss;

use crate::captures::Captures;
use crate::claims::ClaimRequests;
use crate::divisions::Divisions;
use crate::events::EventPool;
use crate::functions::Functions;
use crate::gate::{Gate, Threads};
use crate::graphs::Graphs;
use crate::link::{Status, Terms};
use crate::memory_gate::MemoryGate;
use crate::restoring::Restoring;
use crate::streams::Streams;
use crate::tensor_maps::TensorMaps;
use crate::waiters::Waiters;

/// State of one process, created before its first call.
#[derive(Debug, Default)]
pub struct Process {
    /// Gate at each launch.
    pub gate: Gate,
    /// Gate at each touch of device memory.
    pub memory_gate: MemoryGate,
    /// What is there of memory whose gate is ajar.
    pub restoring: Restoring,
    /// Futex word that changes whenever the mover thread may have something to do.
    pub mover_word: AtomicU32,
    /// Requests to the mover thread that blocks which share memory get their own.
    pub divisions: Divisions,
    /// Host memory for copies of device memory, in bytes.
    pub host_bytes: AtomicU64,
    /// Part of `host_bytes` that may be registered with the driver, in bytes.
    pub pinned_bytes: AtomicU64,
    /// Launches and touches in progress, by thread.
    pub threads: Threads,
    /// Run time of functions.
    pub functions: Functions,
    /// What executable graphs use.
    pub graphs: Graphs,
    /// Descriptors of tensors which the program has encoded last.
    pub tensor_maps: TensorMaps,
    /// Work in flight and its streams.
    pub streams: Streams,
    /// Events for its measurement.
    pub events: EventPool,
    /// Stream captures in progress.
    pub captures: Captures,
    /// What the thread of the link shares with others.
    pub status: Status,
    /// Threads that wait on the agent's page.
    pub waiters: Waiters,
    claims: Mutex<ClaimRequests>,
    /// Whether Weir controls the process: the agent's socket exists and the driver is initialised.
    is_active: AtomicBool,
    /// Device memory limit of the pod in bytes; 0 without one.
    memory_limit: AtomicU64,
    /// Bytes that stay allocated with a context; 0 if they have to be measured.
    context_residue: AtomicU64,
    /// Whether other processes leave the slot for memory that this one claims: all that it does not use is theirs.
    has_exclusive_slot: AtomicBool,
    /// Whether a refused collective was reported.
    is_collective_reported: AtomicBool,
    /// Whether memory was bound to something whose references to it are not known.
    has_bound_memory: AtomicBool,
    /// Whether the program has put a function of its own into a stream.
    has_host_functions: AtomicBool,
    /// Whether the agent has left a sticky error without an answer.
    is_error_unanswered: AtomicBool,
}

impl Process {
    /// Creates the state of a process that has not initialised the driver.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            gate: Gate::new(),
            memory_gate: MemoryGate::new(),
            restoring: Restoring::new(),
            mover_word: AtomicU32::new(0),
            divisions: Divisions::new(),
            host_bytes: AtomicU64::new(0),
            pinned_bytes: AtomicU64::new(0),
            threads: Threads::new(),
            functions: Functions::new(),
            graphs: Graphs::new(),
            tensor_maps: TensorMaps::new(),
            streams: Streams::new(),
            events: EventPool::new(),
            captures: Captures::new(),
            status: Status::new(),
            waiters: Waiters::new(),
            claims: Mutex::new(ClaimRequests::new()),
            is_active: AtomicBool::new(false),
            memory_limit: AtomicU64::new(0),
            context_residue: AtomicU64::new(0),
            has_exclusive_slot: AtomicBool::new(false),
            is_collective_reported: AtomicBool::new(false),
            has_bound_memory: AtomicBool::new(false),
            has_host_functions: AtomicBool::new(false),
            is_error_unanswered: AtomicBool::new(false),
        }
    }

    /// Returns whether Weir controls the process.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Sets whether Weir controls the process.
    pub fn set_active(&self, is_active: bool) {
        self.is_active.store(is_active, Ordering::Release);
    }

    /// Applies the limits of the agent's terms.
    pub fn set_limits(&self, terms: &Terms) {
        self.memory_limit
            .store(terms.memory_limit, Ordering::Release);
        self.context_residue
            .store(terms.context_residue, Ordering::Release);
        self.has_exclusive_slot
            .store(terms.on_loss == OnLoss::Keep, Ordering::Release);
    }

    /// Returns whether no other pod computes on the slot while this one does.
    #[must_use]
    pub fn has_exclusive_slot(&self) -> bool {
        self.has_exclusive_slot.load(Ordering::Acquire)
    }

    /// Returns the pod's memory limit on the device in bytes; 0 if there is none.
    #[must_use]
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit.load(Ordering::Acquire)
    }

    /// Returns the bytes that stay allocated with a context, charged once; 0 if they have to be measured.
    #[must_use]
    pub fn context_residue(&self) -> u64 {
        self.context_residue.load(Ordering::Acquire)
    }

    /// Takes the lock of the claims, under which a claim is sent.
    pub fn claims(&self) -> MutexGuard<'_, ClaimRequests> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that memory was bound to a multicast object or a sparse array.
    pub fn note_bound_memory(&self) {
        self.has_bound_memory.store(true, Ordering::Release);
    }

    /// Returns whether memory was bound to a multicast object or a sparse array.
    #[must_use]
    pub fn has_bound_memory(&self) -> bool {
        self.has_bound_memory.load(Ordering::Acquire)
    }

    /// Notes that the program puts a function of its own into a stream.
    pub fn note_host_function(&self) {
        self.has_host_functions.store(true, Ordering::Release);
    }

    /// Returns whether the program has put a function of its own into a stream, so that host memory may change between a call and its work.
    #[must_use]
    pub fn has_host_functions(&self) -> bool {
        self.has_host_functions.load(Ordering::Acquire)
    }

    /// Notes that the agent has left a sticky error without an answer.
    pub fn note_error_unanswered(&self) {
        self.is_error_unanswered.store(true, Ordering::Release);
    }

    /// Returns whether the agent has left a sticky error without an answer.
    #[must_use]
    pub fn is_error_unanswered(&self) -> bool {
        self.is_error_unanswered.load(Ordering::Acquire)
    }

    /// Returns whether a refused collective is yet to be reported, and notes the report.
    #[must_use]
    pub fn reports_collective(&self) -> bool {
        !self.is_collective_reported.swap(true, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_limits_are_those_of_the_terms() {
        let process = Process::new();
        assert_eq!((process.memory_limit(), process.context_residue()), (0, 0));
        process.set_limits(&Terms {
            on_loss: OnLoss::Open,
            visible_devices: String::new(),
            mps_pipe_directory: String::new(),
            active_thread_hundredths: 10_000,
            mps_memory_limit: 0,
            memory_limit: 7,
            context_residue: 9,
        });
        assert_eq!((process.memory_limit(), process.context_residue()), (7, 9));
    }

    #[test]
    fn a_collective_is_reported_once() {
        let process = Process::new();
        assert!(process.reports_collective());
        assert!(!process.reports_collective());
        assert!(!process.is_active());
        process.set_active(true);
        assert!(process.is_active());
    }
}
