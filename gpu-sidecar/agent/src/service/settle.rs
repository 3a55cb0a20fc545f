//! Kernel time: from what processes publish to what the scheduler is told.
//!
//! A process is believed about itself alone, and within what can be: it has not computed before it had its pages, nor for longer
//! than it has had them. Of a pod with one process its sum counts; of several the union of their stretches.

use std::sync::atomic::Ordering;

use protocol::union::Union;

use super::process::Process;

/// What of several processes' time was counted once.
#[derive(Debug, Default)]
pub(super) struct PodTime {
    union: Union,
    stretches: Vec<(u64, u64)>,
}

/// What a settlement has found of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// New kernel time of the pod.
    pub(super) pod_ns: u64,
    /// New kernel time of the process.
    pub(super) own_ns: u64,
    /// It has launched since the last time.
    pub(super) is_active: bool,
    /// Since when something of it is in flight.
    pub(super) unfinished_since: Option<u64>,
}

impl PodTime {
    /// Looks what is new of a process. `alone`: no other process of the pod has pages.
    pub(super) fn settle(&mut self, process: &mut Process, alone: bool, now: u64) -> Found {
        let Some(attached) = &mut process.attached else {
            return Found::default();
        };
        let facts = attached.facts();
        let begun = attached.at;
        let launches = facts.launches.0.load(Ordering::Acquire);
        let busy_since = facts.busy_since.load(Ordering::Acquire);
        let busy_ns = facts.busy_ns.load(Ordering::Acquire);
        self.stretches.clear();
        let stretches = facts.stretches(attached.seen.stretches, &mut self.stretches);
        let seen = &mut attached.seen;
        // Not more than the time that there was, and never less than before.
        let since = busy_ns.saturating_sub(seen.busy_before_ns);
        let believed = since.min(now.saturating_sub(begun)).max(seen.busy_ns);
        let own_ns = believed - seen.busy_ns;
        seen.busy_ns = believed;
        seen.stretches = stretches;
        let is_active = launches != seen.launches_at_settle;
        seen.launches_at_settle = launches;
        let mut fresh = 0_u64;
        let mut length = 0_u64;
        for &(begin, end) in &self.stretches {
            let (begin, end) = (begin.max(begun), end.min(now));
            if begin < end {
                length += end - begin;
                fresh += self.union.add(begin, end);
                seen.busy_until = seen.busy_until.max(end);
            }
        }
        let pod_ns = if alone {
            seen.unmatched_ns = 0;
            own_ns
        } else {
            // Stretches come later than the sum, and contain gaps that it does not.
            let unmatched = seen.unmatched_ns.saturating_add(own_ns);
            let matched = unmatched.min(length);
            seen.unmatched_ns = unmatched - matched;
            scaled(fresh, matched, length)
        };
        Found {
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
