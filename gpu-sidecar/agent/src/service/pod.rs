//! A served pod: its socket, memory and counters.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use policy::tokens::{PodId, ProcessId, Quota, Share};
use protocol::message::Refusal;

use super::connections::AcceptLimiter;
use super::memory::Claims;
use super::roster::ProcessRecord;
use super::settle::PodTime;
use crate::state::{Pod, PodCounters, protocol_refusal};

/// A pod with its listener and its processes.
#[derive(Debug)]
pub(super) struct ServedPod {
    /// Identity and settings of the pod.
    pub(super) pod: Arc<Pod>,
    /// Listening socket to which the processes of the pod connect.
    pub(super) listener: OwnedFd,
    /// Rate limit of connections to the listener.
    pub(super) accept_limiter: AcceptLimiter,
    /// Monotonic counters since the pod was added.
    pub(super) counters: PodCounters,
    /// Claims of the pod's processes on its limit of device memory.
    pub(super) claims: Claims,
    /// Union of the kernel times of the pod's processes.
    pub(super) time: PodTime,
    /// Numbers of the pod's connected processes in the scheduler.
    pub(super) processes: Vec<ProcessId>,
    /// Processes which had pages from an earlier agent and have not greeted, each with its scheduler number once the scheduler
    /// counts it.
    pub(super) silent: Vec<(ProcessRecord, Option<ProcessId>)>,
    /// Number of processes with a token or with unfinished work.
    pub(super) holders: u32,
    /// Number of processes waiting for a token.
    pub(super) waiters: u32,
    /// Time up to which `given_ns` and `asked_ns` are counted, in nanoseconds.
    pub(super) counted_to: u64,
}

impl ServedPod {
    /// Returns the number of the pod in the scheduler, which is its key.
    pub(super) fn id(&self) -> PodId {
        PodId(self.pod.key.0)
    }

    /// Returns the quota of the pod from its validated annotations.
    pub(super) fn quota(&self) -> Quota {
        quota(&self.pod)
    }

    /// Adds the time since the last call to the counter of the current state: held, waiting or neither.
    pub(super) fn count_time(&mut self, now: u64) {
        let passed = now.saturating_sub(self.counted_to);
        self.counted_to = self.counted_to.max(now);
        if self.holders > 0 {
            self.counters.given_ns = self.counters.given_ns.saturating_add(passed);
        } else if self.waiters > 0 {
            self.counters.asked_ns = self.counters.asked_ns.saturating_add(passed);
        }
    }

    /// Counts a refused connection by its reason.
    pub(super) fn count_refused(&mut self, reason: Refusal) {
        let name = protocol_refusal(reason);
        *self.counters.refused_connections.entry(name).or_default() += 1;
    }

    /// Returns the limit of device memory of the pod, in bytes; 0: none.
    pub(super) fn memory_limit(&self) -> u64 {
        self.pod.settings.gpu_memory.unwrap_or(0)
    }
}

/// Returns the quota from a pod's annotations; a request above the limit is lowered to it.
pub(super) fn quota(pod: &Pod) -> Quota {
    let share = |ppm| Share::from_parts_per_million(ppm).unwrap_or(Share::WHOLE);
    let limit = share(pod.settings.quota_limit_ppm);
    let request = share(pod.settings.quota_request_ppm).min(limit);
    Quota::new(request, limit).unwrap_or_else(|_| {
        Quota::new(Share::NONE, limit)
            .unwrap_or_else(|_| unreachable!("a request of zero is below every limit"))
    })
}

/// Returns whether a process belongs to a pod: it does when it is in the pod's cgroup, as far as both are known. The peer has
/// the pod's socket mounted, so without pod cgroups the socket alone identifies the pod.
pub(super) fn belongs(pod: &Pod, pid: u32) -> bool {
    let Some(uid) = &pod.uid else { return true };
    match crate::identity::pod_uid_of(pid) {
        Ok(Some(own)) => own == *uid,
        Ok(None) => true,
        // The process has ended, or its cgroup is unreadable.
        Err(_) => false,
    }
}
