//! A pod: its socket, its memory, what is counted of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use policy::tokens::{PodId, ProcessId, Quota, Share};
use protocol::message::Refusal;

use super::connections::Door;
use super::memory::Claims;
use super::roster::Known;
use super::settle::PodTime;
use crate::state::{Pod, PodCounters, protocol_refusal};

/// A pod that is served.
#[derive(Debug)]
pub(super) struct Served {
    /// What is known of it.
    pub(super) pod: Arc<Pod>,
    /// Where its processes connect.
    pub(super) listener: OwnedFd,
    /// How fast they may.
    pub(super) door: Door,
    /// What only grows.
    pub(super) counters: PodCounters,
    /// How its processes share its memory.
    pub(super) claims: Claims,
    /// How their kernel time adds up.
    pub(super) time: PodTime,
    /// Its processes.
    pub(super) processes: Vec<ProcessId>,
    /// Processes that had pages from an agent before this one and have not said hello, and the number under which the
    /// scheduler counts them once it counts them.
    pub(super) silent: Vec<(Known, Option<ProcessId>)>,
    /// Processes with a token or with unfinished work.
    pub(super) holders: u32,
    /// Processes that wait.
    pub(super) waiters: u32,
    /// Until when `given_ns` and `asked_ns` are counted.
    pub(super) counted_to: u64,
}

impl Served {
    /// The scheduler's number of it: the same as everybody's.
    pub(super) fn id(&self) -> PodId {
        PodId(self.pod.key.0)
    }

    /// Its quota. The annotations were checked; a contradiction is none to compute by.
    pub(super) fn quota(&self) -> Quota {
        quota(&self.pod)
    }

    /// Counts the time until now as that of the state in which it was.
    pub(super) fn count_time(&mut self, now: u64) {
        let passed = now.saturating_sub(self.counted_to);
        self.counted_to = self.counted_to.max(now);
        if self.holders > 0 {
            self.counters.given_ns = self.counters.given_ns.saturating_add(passed);
        } else if self.waiters > 0 {
            self.counters.asked_ns = self.counters.asked_ns.saturating_add(passed);
        }
    }

    /// Counts a connection that was refused.
    pub(super) fn refused(&mut self, reason: Refusal) {
        let name = protocol_refusal(reason);
        *self.counters.refused_connections.entry(name).or_default() += 1;
    }

    /// Its memory limit; 0: none.
    pub(super) fn memory_limit(&self) -> u64 {
        self.pod.settings.gpu_memory.unwrap_or(0)
    }
}

/// The quota that a pod's annotations state.
pub(super) fn quota(pod: &Pod) -> Quota {
    let share = |ppm| Share::from_parts_per_million(ppm).unwrap_or(Share::WHOLE);
    let limit = share(pod.settings.quota_limit_ppm);
    let request = share(pod.settings.quota_request_ppm).min(limit);
    Quota::new(request, limit).unwrap_or_else(|_| {
        Quota::new(Share::NONE, limit)
            .unwrap_or_else(|_| unreachable!("nothing is below every limit"))
    })
}

/// Whether a process may speak for a pod: it is of the pod's cgroup, where both are known. Who connects to the socket has it
/// mounted, so where there are no cgroups of pods the socket alone says who it is.
pub(super) fn belongs(pod: &Pod, pid: u32) -> bool {
    let Some(uid) = &pod.uid else { return true };
    match crate::identity::pod_uid_of(pid) {
        Ok(Some(own)) => own == *uid,
        Ok(None) => true,
        // It is gone, or cannot be looked at.
        Err(_) => false,
    }
}
