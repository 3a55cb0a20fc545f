//! Figures: counters and gauges which the service publishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::tokens::RevokeReason;
use protocol::message::Transfer;
use protocol::page::FIXED_REASONS;
use serde::{Serialize, Serializer};

use crate::pods::Pod;
use crate::slots::SlotKey;

/// Histogram of durations, with the bucket bounds [`WAIT_BOUNDS_NS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Histogram {
    /// Number of observations in each bucket: at most the bound of the same index and more than the previous bound; the last
    /// bucket: more than all bounds.
    pub counts: [u64; WAIT_BOUNDS_NS.len() + 1],
    /// Sum of all observations, in nanoseconds.
    pub sum_ns: u64,
}

/// Upper bounds of the buckets of token waits, in nanoseconds: 100 µs to 30 s.
pub const WAIT_BOUNDS_NS: [u64; 17] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

impl Histogram {
    /// Counts an observation of `ns` nanoseconds.
    pub fn observe(&mut self, ns: u64) {
        let place = WAIT_BOUNDS_NS.partition_point(|bound| *bound < ns);
        if let Some(count) = self.counts.get_mut(place) {
            *count = count.saturating_add(1);
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Returns the number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds the observations of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (own, others) in self.counts.iter_mut().zip(other.counts) {
            *own = own.saturating_add(others);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

/// Counters of a pod since it was added. All values are monotonic, also when a process ends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PodCounters {
    /// Wall time during which at least one kernel of the pod ran, in nanoseconds.
    pub used_wall_ns: u64,
    /// SM time: Σ SMs × time over its processes, in nanoseconds of one SM.
    pub used_sm_ns: u64,
    /// Wall time during which the pod held a token, in nanoseconds.
    pub given_ns: u64,
    /// Wall time of demand, in nanoseconds: time spent waiting for a token without holding one, and kernel time.
    pub asked_ns: u64,
    /// Number of tokens granted.
    pub grants: u64,
    /// Times from the request for a token to its grant.
    pub waits: Histogram,
    /// Number of tokens with work still in flight after their end.
    pub overruns: u64,
    /// Total time for which work was in flight after the end of its token, in nanoseconds.
    pub overrun_ns: u64,
    /// Number of tokens revoked because nothing was in flight while other pods waited.
    pub revoked_idle: u64,
    /// Number of tokens revoked because the process did not answer a probe when its work should have ended.
    pub revoked_unresponsive: u64,
    /// Charged time of a held token with nothing in flight while other pods waited, in nanoseconds.
    pub held_idle_ns: u64,
    /// Time charged against the quota, in nanoseconds: kernel time, [`PodCounters::held_idle_ns`], and work in flight of processes
    /// which ended or did not answer.
    pub charged_ns: u64,
    /// Number of launches of kernels, graphs and cooperative kernels.
    pub launches: u64,
    /// Number of looked-up driver functions unknown to the preload library.
    pub unknown_symbols: u64,
    /// Time for which gates were open without an agent, in nanoseconds.
    pub ungated_ns: u64,
    /// Number of allocations refused because of the memory limit.
    pub refused_allocations: u64,
    /// Number of times that the bound of work in flight could not be kept.
    pub bound_exceeded: u64,
    /// Number of refused connections, by the names of [`protocol_refusal`].
    pub refused_connections: BTreeMap<&'static str, u64>,
    /// Number of processes that were ended since they computed no more, by the names of [`policy::faults::Fault`].
    pub faults: BTreeMap<&'static str, u64>,
    /// Moves of the pod's model between device and host.
    pub moves: MoveCounters,
}

impl PodCounters {
    /// Counts a revoked token by its reason.
    pub(crate) const fn revoked(&mut self, reason: RevokeReason) {
        match reason {
            RevokeReason::Idle => self.revoked_idle += 1,
            RevokeReason::Unresponsive => self.revoked_unresponsive += 1,
        }
    }
}

/// Counters of the moves of a pod's model since the pod was added.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct MoveCounters {
    /// Number of evictions which were carried out.
    pub evictions: u64,
    /// Number of them by cause: an order, a waiting thread, or why another instance's lease needed the memory.
    pub evicted_for: BTreeMap<&'static str, u64>,
    /// Number of refused evictions, by the name of the reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Number of restores which were carried out.
    pub restores: u64,
    /// Number of restores that were begun because a thread waited.
    pub restores_on_demand: u64,
    /// Number of failed restores.
    pub restores_failed: u64,
    /// Times from the orders to the ends of evictions.
    pub evict_times: Histogram,
    /// Times from the orders to the ends of restores.
    pub restore_times: Histogram,
    /// Bytes that were copied to the host.
    pub evicted_copied_bytes: u64,
    /// Bytes that were released without a copy, since the host had them.
    pub evicted_clean_bytes: u64,
    /// Bytes that were copied to the device.
    pub restored_bytes: u64,
    /// Number of waits of threads for the memory of their processes; threads of a process which wait at the same time count once.
    pub demand_waits: u64,
}

impl MoveCounters {
    /// Adds the counters of another pod.
    pub fn add(&mut self, own: &Self) {
        for (cause, count) in &own.evicted_for {
            *self.evicted_for.entry(cause).or_default() += count;
        }
        for (sum, own) in [
            (&mut self.evictions, own.evictions),
            (&mut self.restores, own.restores),
            (&mut self.restores_on_demand, own.restores_on_demand),
            (&mut self.restores_failed, own.restores_failed),
            (&mut self.evicted_copied_bytes, own.evicted_copied_bytes),
            (&mut self.evicted_clean_bytes, own.evicted_clean_bytes),
            (&mut self.restored_bytes, own.restored_bytes),
            (&mut self.demand_waits, own.demand_waits),
        ] {
            *sum = sum.saturating_add(own);
        }
        self.evict_times.add(&own.evict_times);
        self.restore_times.add(&own.restore_times);
        for (reason, count) in &own.refused {
            let sum = self.refused.entry(reason).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// Counts a move.
    pub(crate) fn done(&mut self, to_host: bool, cause: &'static str, transfer: &Transfer) {
        if to_host {
            self.evictions += 1;
            *self.evicted_for.entry(cause).or_default() += 1;
            self.evict_times.observe(transfer.total_ns);
            let clean = transfer.bytes.saturating_sub(transfer.copied_bytes);
            self.evicted_copied_bytes = self
                .evicted_copied_bytes
                .saturating_add(transfer.copied_bytes);
            self.evicted_clean_bytes = self.evicted_clean_bytes.saturating_add(clean);
        } else {
            self.restores += 1;
            self.restores_on_demand += u64::from(cause == "demand");
            self.restore_times.observe(transfer.total_ns);
            self.restored_bytes = self.restored_bytes.saturating_add(transfer.copied_bytes);
        }
    }
}

/// State of the lease of a pod on an exclusive slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LeaseFigures {
    /// Whether the queue of the pod's requests is connected.
    pub has_queue: bool,
    /// Whether the pod holds the lease of its slot, and is not recalled.
    pub is_holder: bool,
    /// Mean time in which the function's model has returned to a slot, with all that left for it, in nanoseconds; 0: it never did.
    pub load_ns: u64,
    /// Mean execution time of the function's requests, in nanoseconds; 0: none is known.
    pub execution_ns: u64,
    /// Number of requests of its queue for which the lease went to another instance of the function, to which the queue was to forward them.
    pub siblings_named: u64,
    /// Number of those which the other instance did not serve.
    pub siblings_returned: u64,
}

/// State, counters and device memory of one connected process of a pod, at the time of [`Figures::at_ns`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ProcessFigures {
    /// Process ID in the agent's PID namespace.
    pub pid: u32,
    /// Program name, as reported by the process.
    pub program: String,
    /// Share of the SMs after the driver's rounding, in hundredths of a percent.
    pub sm_hundredths: u32,
    /// Whether the gate of the process is open.
    pub is_open: bool,
    /// Number of threads parked at the gate.
    pub parked: u32,
    /// Number of launches of kernels, graphs and cooperative kernels.
    pub launches: u64,
    /// Time during which at least one of its kernels ran, in nanoseconds.
    pub busy_ns: u64,
    /// Device memory that counts against the pod's limit, in bytes.
    pub bytes_used: u64,
    /// Part of `bytes_used` that cannot be moved, in bytes.
    pub bytes_fixed: u64,
    /// Device memory that stays when the model leaves, in bytes, by [`FIXED_REASONS`]. In JSON an object with these keys.
    #[serde(serialize_with = "by_reason")]
    pub fixed: [u64; FIXED_REASONS.len()],
    /// Device memory reported by NVML minus `bytes_used`, in bytes: the memory of its context. `None` when NVML does not list
    /// the process.
    pub context_residue: Option<u64>,
    /// Whether the process is a client of an MPS server; `None` when unknown.
    pub is_mps: Option<bool>,
    /// Number of looked-up driver functions unknown to the preload library.
    pub unknown_symbols: u64,
    /// Time for which the gate of the process was open without an agent, in nanoseconds.
    pub ungated_ns: u64,
    /// Sticky error code of the driver; 0: none.
    pub last_error: u32,
    /// Name of the location of its memory.
    pub residency: &'static str,
    /// Whether its memory is not on the device, wherever it is stated to be: that of a faulted process may be there.
    #[serde(skip)]
    pub is_away: bool,
    /// Whether the host has every byte of the memory on the device, so that an eviction copies nothing.
    pub is_sealed: bool,
    /// Host memory for its copy, in bytes.
    pub host_bytes: u64,
    /// Part of `host_bytes` that may be registered with the driver, in bytes.
    pub pinned_bytes: u64,
}

fn by_reason<S: Serializer>(
    fixed: &[u64; FIXED_REASONS.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(FIXED_REASONS.into_iter().zip(fixed))
}

/// State, counters and device memory of one pod with its processes, at the time of [`Figures::at_ns`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFigures {
    /// Pod with its slot and settings.
    pub pod: Arc<Pod>,
    /// State and counters of each connected process of the pod.
    pub processes: Vec<ProcessFigures>,
    /// Monotonic counters since the pod was added.
    pub counters: PodCounters,
    /// Time used beyond its quota and not paid back yet, in nanoseconds.
    pub debt_ns: u64,
    /// Device memory of all its processes, in bytes.
    pub memory_used: u64,
    /// Limit of the pod's device memory, in bytes, where there is one.
    pub memory_limit: Option<u64>,
    /// Whether at least one of its processes holds a token or has unfinished work.
    pub has_token: bool,
    /// Whether at least one of its processes waits for a token.
    pub is_waiting: bool,
    /// Number of the pod's processes which an earlier agent served and which have not sent `Hello` to this one.
    pub silent_processes: u32,
    /// State of its lease.
    pub lease: LeaseFigures,
}

/// Tokens, waiting pods and busy time of one slot, at the time of [`Figures::at_ns`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotFigures {
    /// Key of the slot.
    pub slot: SlotKey,
    /// Whether the slot is lost: nothing is granted on it.
    pub is_lost: bool,
    /// SMs under tokens or with unfinished work, in hundredths of a percent of the slot's SMs.
    pub held_hundredths: u32,
    /// Number of pods with a token.
    pub holders: u32,
    /// Number of pods waiting for a token.
    pub waiters: u32,
    /// Number of tokens granted on the slot.
    pub grants: u64,
    /// Time during which a runnable pod waited while SMs were free, in nanoseconds.
    pub idle_while_waiting_ns: u64,
    /// Wall time during which at least one kernel of any pod ran, in nanoseconds.
    pub busy_ns: u64,
    /// Number of connected processes of its pods.
    pub processes: u32,
    /// Device memory that a context takes by itself, in bytes, as configured or measured; `None`: nothing, or not known.
    pub context_residue: Option<u64>,
}

/// Counters of the token service itself since the start of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct AgentFigures {
    /// Number of tokens granted on the node.
    pub grants: u64,
    /// CPU time of the service's thread, in nanoseconds.
    pub service_cpu_ns: u64,
    /// Number of wake-ups of the service's thread.
    pub wakeups: u64,
    /// Number of received messages that could not be parsed.
    pub malformed_messages: u64,
}

/// State and counters of the token service with all slots and pods, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Time at which the service published this, in nanoseconds of `CLOCK_MONOTONIC`; 0 before the first publication.
    pub at_ns: u64,
    /// State and counters of all slots, ordered by key.
    pub slots: Vec<SlotFigures>,
    /// State and counters of all pods, ordered by key.
    pub pods: Vec<PodFigures>,
    /// Counters of the service itself.
    pub agent: AgentFigures,
}

impl Figures {
    /// Returns the figures before the first publication: no slots and no pods.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            at_ns: 0,
            slots: Vec::new(),
            pods: Vec::new(),
            agent: AgentFigures {
                grants: 0,
                service_cpu_ns: 0,
                wakeups: 0,
                malformed_messages: 0,
            },
        }
    }

    /// Returns the figures of the pod with this serial number.
    #[must_use]
    pub fn pod(&self, serial: u64) -> Option<&PodFigures> {
        self.pods.iter().find(|own| own.pod.serial == serial)
    }

    /// Returns the figures of the slot with this key.
    #[must_use]
    pub fn slot(&self, key: SlotKey) -> Option<&SlotFigures> {
        self.slots.iter().find(|own| own.slot == key)
    }
}

/// Returns the name of a refusal reason in figures and metric labels.
#[must_use]
pub const fn protocol_refusal(reason: protocol::message::Refusal) -> &'static str {
    use protocol::message::Refusal;
    match reason {
        Refusal::Version => "version",
        Refusal::NotOfThisPod => "not-of-this-pod",
        Refusal::WrongDevice => "wrong-device",
        Refusal::SlotLost => "slot-lost",
        Refusal::TooManySms => "too-many-sms",
        Refusal::TooMany => "too-many",
        Refusal::NoMps => "no-mps",
        Refusal::Protocol => "protocol",
    }
}

/// Device memory of a process, as reported by NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// Slot on which the memory is allocated.
    pub slot: SlotKey,
    /// Device memory, in bytes.
    pub bytes: u64,
    /// Whether the process is a client of an MPS server.
    pub is_mps: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_equal_to_a_bound_is_in_its_bucket() {
        let mut histogram = Histogram::default();
        for ns in [0, 100_000, 100_001, 30_000_000_000, 30_000_000_001] {
            histogram.observe(ns);
        }
        assert_eq!(histogram.counts[..2], [2, 1]);
        assert_eq!(histogram.counts[16..], [1, 1]);
        assert_eq!((histogram.count(), histogram.sum_ns), (5, 60_000_200_002));
        let mut twice = histogram;
        twice.add(&histogram);
        assert_eq!(twice.count(), 10);
    }
}
