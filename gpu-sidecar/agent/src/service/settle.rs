//! Settlement of kernel time, from what processes publish to what the scheduler is charged.
//!
//! A process is believed about itself alone, and only within what is possible: no time before its pages were created, and no
//! more than has passed since. A pod with one process is charged its sum, a pod with several the union of their stretches.

use std::sync::atomic::Ordering;

use protocol::union::Union;

use super::process::Process;

/// Union of the stretches of a pod's processes that were charged already.
#[derive(Debug, Default)]
pub(super) struct PodTime {
    union: Union,
    stretches: Vec<(u64, u64)>,
}

/// Kernel time and work of one process since its last settlement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Settlement {
    /// New kernel time of the pod, in nanoseconds.
    pub(super) pod_ns: u64,
    /// New kernel time of the process, in nanoseconds.
    pub(super) own_ns: u64,
    /// Whether the process has launched since the last settlement.
    pub(super) is_active: bool,
    /// Time since which the process reports work in flight, in nanoseconds.
    pub(super) unfinished_since: Option<u64>,
}

impl PodTime {
    /// Reads the page of facts of a process and returns its kernel time and launches since the last call, within what is
    /// possible. `alone`: no other process of the pod has pages.
    pub(super) fn settle(&mut self, process: &mut Process, alone: bool, now: u64) -> Settlement {
        let Some(attached) = &mut process.attached else {
            return Settlement::default();
        };
        let facts = attached.facts();
        let begun = attached.at;
        let launches = facts.launches.0.load(Ordering::Acquire);
        let busy_since = facts.busy_since.load(Ordering::Acquire);
        let busy_ns = facts.busy_ns.load(Ordering::Acquire);
        self.stretches.clear();
        let stretches = facts.stretches(attached.observed.stretches, &mut self.stretches);
        let observed = &mut attached.observed;
        // At most the time that has passed, and never less than before.
        let since = busy_ns.saturating_sub(observed.busy_before_ns);
        let believed = since.min(now.saturating_sub(begun)).max(observed.busy_ns);
        let own_ns = believed - observed.busy_ns;
        observed.busy_ns = believed;
        observed.stretches = stretches;
        let is_active = launches != observed.launches_at_settle;
        observed.launches_at_settle = launches;
        let mut fresh = 0_u64;
        let mut length = 0_u64;
        for &(begin, end) in &self.stretches {
            let (begin, end) = (begin.max(begun), end.min(now));
            if begin < end {
                length += end - begin;
                fresh += self.union.add(begin, end);
                observed.busy_until = observed.busy_until.max(end);
            }
        }
        let pod_ns = if alone {
            observed.unmatched_ns = 0;
            own_ns
        } else {
            // Stretches are published later than the sum, and contain gaps that it does not.
            let unmatched = observed.unmatched_ns.saturating_add(own_ns);
            let matched = unmatched.min(length);
            observed.unmatched_ns = unmatched - matched;
            scaled(fresh, matched, length)
        };
        Settlement {
            pod_ns,
            own_ns,
            is_active,
            unfinished_since: (busy_since != 0).then(|| busy_since.clamp(begun, now)),
        }
    }
}

fn scaled(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
