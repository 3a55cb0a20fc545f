//! What is known of the node's slots, for everybody who asks: placement, control API, metrics.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::config::PLAN_PERCENT;
use crate::nvml::Driver;
use crate::state::{Slot, SlotKey, SlotKind};

/// Slots that are remembered, those that are lost included. A MIG instance that is made anew is another slot.
pub(crate) const SLOTS_MAX: usize = 1_024;

/// How MPS stands on a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub(crate) enum MpsState {
    /// It is not wanted there.
    None,
    /// The daemon does not answer yet.
    Starting,
    /// It answers.
    Up {
        /// The daemon, where it is known.
        pid: Option<u32>,
        /// Who is connected.
        clients: Vec<u32>,
        /// It was started by a former agent.
        adopted: bool,
    },
    /// It does not answer; it is tried again.
    Down {
        /// Why.
        reason: String,
    },
    /// It cannot run there.
    Unable {
        /// Why.
        reason: String,
    },
}

impl MpsState {
    /// As metrics name it.
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

/// A slot, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotState {
    pub(crate) slot: Arc<Slot>,
    /// The GPU's number at the last survey.
    pub(crate) gpu: u32,
    /// Why it is lost, if it is.
    pub(crate) lost: Option<String>,
    /// Times it was.
    pub(crate) losses: u64,
    pub(crate) mps: MpsState,
    /// Times its daemon was started after the first time.
    pub(crate) mps_restarts: u64,
    /// Memory that NVML names, over all processes.
    pub(crate) memory_used: u64,
}

/// Everything that is known of the node.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeState {
    /// `None`: NVML has not answered.
    pub(crate) driver: Option<Driver>,
    /// Why NVML does not answer.
    pub(crate) nvml_problem: Option<String>,
    /// NVML was asked at least once.
    is_surveyed: bool,
    /// In the order of their keys, which are their places.
    pub(crate) slots: Vec<SlotState>,
    /// What part of an mps slot may be asked for.
    pub(crate) plan: Plan,
}

/// A part of a slot's SMs and time, in per cent, that requests may take together.
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

    /// Adds a slot that is not known; `None`: so many are that no more are remembered.
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

/// The same, shared.
#[derive(Debug, Default)]
pub(crate) struct Node {
    state: Mutex<NodeState>,
    changed: Condvar,
}

impl Node {
    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy, for who takes its time.
    pub(crate) fn snapshot(&self) -> NodeState {
        self.lock().clone()
    }

    /// NVML was asked, whatever it said.
    pub(crate) fn set_surveyed(&self) {
        self.lock().is_surveyed = true;
        self.changed.notify_all();
    }

    /// Waits until it was, for up to so long.
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

    /// Notes how MPS stands on a slot; whether that is news.
    pub(crate) fn set_mps(&self, key: SlotKey, mps: MpsState) -> bool {
        let mut state = self.lock();
        let Some(own) = state.slot_mut(key) else {
            return false;
        };
        let is_news = own.mps != mps;
        own.mps = mps;
        is_news
    }
}
