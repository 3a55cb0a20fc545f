//! A served pod: its memory, counters and processes.

use std::sync::Arc;

use policy::claims::Claims;
use policy::tokens::{PodId, ProcessId, Quota, Share};
use protocol::message::Refusal;
use protocol::union::Union;

use crate::event::ProcessRecord;
use crate::figures::{PodCounters, protocol_refusal};
use crate::pods::{Pod, PodKey};

/// Maximum number of processes of one pod.
pub(crate) const PROCESSES_OF_POD_MAX: usize = 256;
/// Maximum number of connections of one pod accepted per second: as many as it may have at once. More wait in the kernel's
/// backlog, so that a pod which connects in a loop costs the other pods nothing.
const CONNECTIONS_PER_SECOND: u32 = 256;
const SECOND_NS: u64 = 1_000_000_000;

/// Rate limit of the connections accepted from one pod.
#[derive(Debug, Default)]
pub(crate) struct AcceptLimiter {
    /// Start of the current second, in nanoseconds.
    second: u64,
    /// Number of connections accepted within the current second.
    taken: u32,
    /// Time until which accepting is paused, in nanoseconds.
    paused_until: Option<u64>,
}

impl AcceptLimiter {
    /// Counts an accepted connection. When it is the last one allowed within its second, accepting pauses until the next;
    /// returns whether it does.
    pub(crate) fn count(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.second) >= SECOND_NS {
            (self.second, self.taken) = (now, 0);
        }
        self.taken += 1;
        let is_last = self.taken >= CONNECTIONS_PER_SECOND;
        if is_last {
            self.pause(self.second.saturating_add(SECOND_NS));
        }
        is_last
    }

    /// Pauses accepting until this time.
    pub(crate) const fn pause(&mut self, until: u64) {
        self.paused_until = Some(until);
    }

    /// Returns the time at which accepting resumes, if it is paused.
    pub(crate) const fn resumes_at(&self) -> Option<u64> {
        self.paused_until
    }

    /// Ends a pause which is over. Returns whether it does.
    pub(crate) fn resume(&mut self, now: u64) -> bool {
        self.paused_until.take_if(|until| *until <= now).is_some()
    }
}

/// A process which had pages from an earlier agent and has not greeted this one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Survivor {
    pub(crate) record: ProcessRecord,
    /// Number in the scheduler, once it counts as a holder.
    pub(crate) stand_in: Option<ProcessId>,
}

/// A pod with its processes.
#[derive(Debug)]
pub(crate) struct ServedPod {
    pub(crate) pod: Arc<Pod>,
    pub(crate) accept_limiter: AcceptLimiter,
    pub(crate) counters: PodCounters,
    /// Claims of the pod's processes on its limit of device memory.
    pub(crate) claims: Claims,
    /// Union of the stretches of the pod's processes.
    pub(crate) union: Union,
    /// Kernel time which the scheduler was not charged for yet, in nanoseconds.
    pub(crate) unreported_ns: u64,
    /// Connected processes, in order of connection.
    pub(crate) processes: Vec<ProcessId>,
    /// Number of processes with pages.
    pub(crate) attached: u32,
    pub(crate) survivors: Vec<Survivor>,
    /// Number of processes with a token or with unfinished work.
    holders: u32,
    /// Number of processes waiting for a token.
    waiters: u32,
    /// Time up to which `given_ns` and `asked_ns` are counted, in nanoseconds.
    counted_to: u64,
    /// Time since which the pod is served, in nanoseconds.
    since: u64,
}

impl ServedPod {
    pub(crate) fn new(pod: Arc<Pod>, survivors: &[ProcessRecord], now: u64) -> Self {
        let survivors = survivors.iter().map(|record| Survivor {
            record: *record,
            stand_in: None,
        });
        Self {
            pod,
            accept_limiter: AcceptLimiter::default(),
            counters: PodCounters::default(),
            claims: Claims::default(),
            union: Union::new(),
            unreported_ns: 0,
            processes: Vec::new(),
            attached: 0,
            survivors: survivors.collect(),
            holders: 0,
            waiters: 0,
            counted_to: now,
            since: now,
        }
    }

    pub(crate) fn key(&self) -> PodKey {
        self.pod.key
    }

    /// Returns the number of the pod in the scheduler, which is its key.
    pub(crate) fn id(&self) -> PodId {
        PodId(self.pod.key.0)
    }

    pub(crate) const fn holders(&self) -> u32 {
        self.holders
    }

    pub(crate) const fn waiters(&self) -> u32 {
        self.waiters
    }

    /// Returns the quota from the annotations; a request above the limit is lowered to it.
    pub(crate) fn quota(&self) -> Quota {
        let share = |ppm| Share::from_parts_per_million(ppm).unwrap_or(Share::WHOLE);
        let limit = share(self.pod.settings.quota_limit_ppm);
        let request = share(self.pod.settings.quota_request_ppm).min(limit);
        Quota::new(request, limit).unwrap_or_else(|_| {
            Quota::new(Share::NONE, limit)
                .unwrap_or_else(|_| unreachable!("a request of zero is below every limit"))
        })
    }

    /// Returns the limit of device memory of the pod, in bytes; 0: none.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.pod.settings.gpu_memory.unwrap_or(0)
    }

    /// Returns the largest sum of claims, in bytes.
    pub(crate) fn claims_max(&self) -> u64 {
        match self.memory_limit() {
            0 => u64::MAX,
            limit => limit,
        }
    }

    /// Adds the time since the last call to the counter of the current state: held, waiting or neither.
    pub(crate) fn count_time(&mut self, now: u64) {
        let passed = now.saturating_sub(self.counted_to);
        self.counted_to = self.counted_to.max(now);
        if self.holders > 0 {
            self.counters.given_ns = self.counters.given_ns.saturating_add(passed);
        } else if self.waiters > 0 {
            self.counters.asked_ns = self.counters.asked_ns.saturating_add(passed);
        }
    }

    /// Adds kernel time of the pod, which the scheduler is charged with later: in all, no more than the time that has passed.
    /// Stretches of several processes that arrive long after each other would add up to more.
    pub(crate) fn add_used(&mut self, ns: u64, now: u64) {
        let passed = now.saturating_sub(self.since);
        let ns = ns.min(passed.saturating_sub(self.counters.used_wall_ns));
        let sum = |counter: &mut u64| *counter = counter.saturating_add(ns);
        sum(&mut self.counters.used_wall_ns);
        sum(&mut self.counters.asked_ns);
        sum(&mut self.unreported_ns);
    }

    pub(crate) fn add_holder(&mut self, now: u64) {
        self.count_time(now);
        self.holders += 1;
    }

    pub(crate) fn remove_holder(&mut self, now: u64) {
        self.count_time(now);
        self.holders = self.holders.saturating_sub(1);
    }

    pub(crate) fn add_waiter(&mut self, now: u64) {
        self.count_time(now);
        self.waiters += 1;
    }

    pub(crate) fn remove_waiter(&mut self, now: u64) {
        self.count_time(now);
        self.waiters = self.waiters.saturating_sub(1);
    }

    /// Counts a refused connection by its reason.
    pub(crate) fn count_refused(&mut self, reason: Refusal) {
        let name = protocol_refusal(reason);
        *self.counters.refused_connections.entry(name).or_default() += 1;
    }
}
