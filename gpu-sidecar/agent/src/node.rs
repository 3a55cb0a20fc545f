//! State of the node's slots, shared by placement, control API and metrics.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::config::PLAN_PERCENT;
use crate::nvml::Driver;
use crate::state::{Slot, SlotKey, SlotKind};

/// Maximum number of remembered slots, lost ones included. A recreated MIG instance is another slot.
pub(crate) const SLOTS_MAX: usize = 1_024;

/// State of MPS on a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub(crate) enum MpsState {
    /// Not used on this slot.
    None,
    /// The daemon is starting and does not answer yet.
    Starting,
    /// The daemon answers its health checks.
    Up {
        /// Process ID of the daemon, where it is known.
        pid: Option<u32>,
        /// Process IDs of the connected clients.
        clients: Vec<u32>,
        /// Whether another process than this agent started the daemon.
        adopted: bool,
    },
    /// The daemon does not answer; it is restarted.
    Down {
        /// Cause of the state, shown to operators.
        reason: String,
    },
    /// MPS cannot run on this slot.
    Unable {
        /// Cause of the state, shown to operators.
        reason: String,
    },
}

impl MpsState {
    /// Returns the value of the metric label `state`.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Starting => "starting",
            Self::Up { .. } => "up",
            Self::Down { .. } => "down",
            Self::Unable { .. } => "unable",
        }
    }
}

/// A slot and its current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotState {
    pub(crate) slot: Arc<Slot>,
    /// NVML index of the GPU at the last survey.
    pub(crate) gpu: u32,
    /// Reason why the slot is lost; `None` while it is usable.
    pub(crate) lost: Option<String>,
    /// Number of times that the slot was lost.
    pub(crate) losses: u64,
    pub(crate) mps: MpsState,
    /// Number of starts of the slot's MPS daemon after the first.
    pub(crate) mps_restarts: u64,
    /// Device memory used by all processes, in bytes, as reported by NVML.
    pub(crate) memory_used: u64,
}

/// Snapshot of the node: driver, slots and plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeState {
    /// `None` until NVML has answered once.
    pub(crate) driver: Option<Driver>,
    /// Reason why NVML does not answer; `None` while it does.
    pub(crate) nvml_problem: Option<String>,
    /// Whether NVML was queried at least once, successfully or not.
    is_surveyed: bool,
    /// Slots ordered by key; a slot's key is its index.
    pub(crate) slots: Vec<SlotState>,
    /// Largest part of an mps slot that requests may take together.
    pub(crate) plan: Plan,
    /// Order in which slots that have room for a pod are preferred.
    pub(crate) placement: policy::placement::Rule,
}

/// Part of a slot's SMs × time, in percent, that requests may take together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan(pub(crate) u32);

impl Default for Plan {
    fn default() -> Self {
        Self(PLAN_PERCENT)
    }
}

impl NodeState {
    pub(crate) fn slot(&self, key: SlotKey) -> Option<&SlotState> {
        self.slots.get(usize::try_from(key.0).ok()?)
    }

    pub(crate) fn slot_mut(&mut self, key: SlotKey) -> Option<&mut SlotState> {
        self.slots.get_mut(usize::try_from(key.0).ok()?)
    }

    /// Adds a slot with the next free key and returns it; `None` when [`SLOTS_MAX`] slots are remembered already.
    pub(crate) fn add(
        &mut self,
        gpu: u32,
        slot: impl FnOnce(SlotKey) -> Slot,
    ) -> Option<Arc<Slot>> {
        if self.slots.len() >= SLOTS_MAX {
            return None;
        }
        let key = SlotKey(u32::try_from(self.slots.len()).ok()?);
        let slot = Arc::new(slot(key));
        self.slots.push(SlotState {
            slot: Arc::clone(&slot),
            gpu,
            lost: None,
            losses: 0,
            mps: match slot.kind {
                SlotKind::Mps => MpsState::Starting,
                SlotKind::Exclusive => MpsState::None,
            },
            mps_restarts: 0,
            memory_used: 0,
        });
        Some(slot)
    }
}

/// [`NodeState`] behind a lock, with a signal for the first survey.
#[derive(Debug, Default)]
pub(crate) struct Node {
    state: Mutex<NodeState>,
    changed: Condvar,
}

impl Node {
    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy, for long-running readers.
    pub(crate) fn snapshot(&self) -> NodeState {
        self.lock().clone()
    }

    /// Records that NVML was queried, successfully or not, and wakes the threads in [`Node::wait_surveyed`].
    pub(crate) fn set_surveyed(&self) {
        self.lock().is_surveyed = true;
        self.changed.notify_all();
    }

    /// Blocks until NVML was queried once, at most for `span`.
    pub(crate) fn wait_surveyed(&self, span: Duration) {
        let until = Instant::now() + span;
        let mut state = self.lock();
        while !state.is_surveyed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sets the state of MPS on a slot and returns whether it has changed.
    pub(crate) fn set_mps(&self, key: SlotKey, mps: MpsState) -> bool {
        let mut state = self.lock();
        let Some(own) = state.slot_mut(key) else {
            return false;
        };
        let has_changed = own.mps != mps;
        own.mps = mps;
        has_changed
    }
}
