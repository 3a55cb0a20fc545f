//! Checks of the pods' GPU use by the device's ledger, for the time in which an agent governs them.

use std::collections::HashMap;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::pods::{PODS, Pods};
use softgpu_harness::node::Node;

/// Span over which a pod gets at most its limit, in ns, as the agent is configured.
pub(crate) const HORIZON: u64 = 1_000_000_000;
/// Largest delay of the agent's closes over a horizon, in ns: it shares two cores with everything else.
const LATE: u64 = 50_000_000;
/// Share of its request that a pod must get, of the time in which the device was busy at all: the machine may not run all of
/// these processes all the time.
const PART: f64 = 0.7;

type Stretch = (u64, u64);

/// State of the checks: see the [module](self).
#[derive(Debug)]
pub(crate) struct Checks {
    /// Begin of the current agent's governing, in ns of `CLOCK_MONOTONIC`; `None` without an agent.
    since: Option<u64>,
    /// Time up to which everything is checked.
    checked_to: u64,
    /// Number of tokens of each pod that the current agent had revoked by then because the process did not answer.
    revoked: [u64; PODS.len()],
    /// Times of death by PID: work in flight ends when the driver notices.
    died: HashMap<u32, u64>,
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

fn length(stretches: &[Stretch], (from, to): Stretch) -> u64 {
    let cut = |&(begin, end): &Stretch| end.min(to).saturating_sub(begin.max(from));
    stretches.iter().map(cut).sum()
}

/// Sorts stretches and merges those which touch.
fn union(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_unstable();
    let mut all: Vec<Stretch> = Vec::new();
    for (from, to) in stretches {
        match all.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => all.push((from, to)),
        }
    }
    all
}

impl Checks {
    pub(crate) fn new() -> Self {
        Self {
            since: None,
            checked_to: 0,
            revoked: [0; PODS.len()],
            died: HashMap::new(),
        }
    }

    /// Marks the begin of an agent's governing, if none governs.
    pub(crate) fn governed(&mut self) {
        self.since.get_or_insert_with(now);
    }

    /// Marks the end of governing. The time before must have been checked.
    pub(crate) fn ungoverned(&mut self) {
        self.since = None;
    }

    /// Returns how many tokens of each pod were revoked since the last check because the process did not answer.
    fn revoked_since(&mut self, node: &Node) -> [u64; PODS.len()] {
        let counted = PODS.map(|pod| {
            let token = &node.instance(pod.name)["token"];
            token["revoked"]["unresponsive"]
                .as_u64()
                .unwrap_or_default()
        });
        let before = std::mem::replace(&mut self.revoked, counted);
        // Another agent counts from 0.
        std::array::from_fn(|pod| match counted[pod].checked_sub(before[pod]) {
            Some(more) => more,
            None => counted[pod],
        })
    }

    /// Records the death of a process.
    pub(crate) fn dies(&mut self, pid: u32) {
        self.died.insert(pid, now());
    }

    /// Returns the stretches in which each pod computed, from a time on.
    fn computed(&self, node: &Node, pods: &Pods, from: u64) -> Vec<Vec<Stretch>> {
        let pod_of: HashMap<u32, usize> = pods.pids.iter().copied().collect();
        let mut all = vec![Vec::new(); PODS.len()];
        for run in node.softgpu.ledger().runs {
            let end = self.died.get(&run.pid).copied().unwrap_or(u64::MAX);
            let (begin, end) = (run.from.0.max(from), run.to.0.min(end));
            if let Some(&pod) = pod_of.get(&run.pid)
                && begin < end
            {
                all[pod].push((begin, end));
            }
        }
        all.into_iter().map(union).collect()
    }

    /// Checks the upper bounds of invariants 2 and 5 for governed, unchecked time.
    ///
    /// The machine may suspend a thread between the gate and its launch for so long that the agent revokes the token of the process,
    /// which does not answer: one launch by each such token may begin late, beside others.
    pub(crate) fn limits_and_sms(&mut self, node: &Node, pods: &Pods) {
        let Some(since) = self.since else {
            return;
        };
        let from = since.max(self.checked_to.saturating_sub(HORIZON));
        let to = now();
        self.checked_to = to;
        let computed = self.computed(node, pods, from);
        let mut changes: Vec<(u64, bool, usize)> = Vec::new();
        for (pod, stretches) in computed.iter().enumerate() {
            for &(begin, end) in stretches {
                // At equal times ends sort before begins, as they free the SMs.
                changes.extend([(begin, true, pod), (end, false, pod)]);
            }
        }
        changes.sort_unstable();
        let revoked = self.revoked_since(node);
        let mut excused = revoked;
        let mut computing = [false; PODS.len()];
        for (at, begins, pod) in changes {
            computing[pod] = begins;
            let pods = || (0..PODS.len()).filter(|&pod| computing[pod]);
            let sum: u32 = pods().map(|pod| PODS[pod].sm_percent).sum();
            if !begins || sum <= 100 {
                continue;
            }
            if let Some(late) = pods().find(|&pod| excused[pod] > 0) {
                // Not counted until it ends.
                excused[late] -= 1;
                computing[late] = false;
                continue;
            }
            panic!(
                "{sum} % of the SMs at {at}, {} ms after {from}, when {} began; tokens of silent processes revoked: {revoked:?}",
                (at - from) / 1_000_000,
                PODS[pod].name
            );
        }
        for (pod, stretches) in PODS.iter().zip(&computed) {
            let mut begin = from;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "far below 2^53 ns"
            )]
            let allowed = (pod.limit * HORIZON as f64) as u64 + pod.launch + LATE;
            while begin + HORIZON <= to {
                let used = length(stretches, (begin, begin + HORIZON));
                assert!(
                    used <= allowed,
                    "{}: {used} ns within {HORIZON} ns from {begin} on, {} ms after an agent governs; allowed: {allowed}",
                    pod.name,
                    (begin - since) / 1_000_000
                );
                begin += HORIZON / 20;
            }
        }
    }

    /// Checks invariant 6: without an agent, all pods have computed within the past span.
    pub(crate) fn all_computed(&self, node: &Node, pods: &Pods, span: Duration) {
        let from = now() - u64::try_from(span.as_nanos()).unwrap();
        for (pod, stretches) in PODS.iter().zip(self.computed(node, pods, from)) {
            assert!(!stretches.is_empty(), "{} waits without an agent", pod.name);
        }
    }

    /// Checks the lower bound of invariant 5: over the past span each pod has had its request.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
    pub(crate) fn shares(&self, node: &Node, pods: &Pods, span: Duration) {
        let to = now();
        let from = to - u64::try_from(span.as_nanos()).unwrap();
        let computed = self.computed(node, pods, from);
        let busy = length(&union(computed.concat()), (from, to));
        let shares: Vec<f64> = computed
            .iter()
            .map(|stretches| length(stretches, (from, to)) as f64 / busy.max(1) as f64)
            .collect();
        let all: u64 = PODS.iter().map(|pod| pod.launch).sum();
        for (pod, share) in PODS.iter().zip(&shares) {
            let launches = (all - pod.launch) as f64 / busy.max(1) as f64;
            assert!(
                *share >= pod.request * PART - launches,
                "{}: {share:.3}, requested: {}; all: {shares:.3?}, of {} ms in {span:?}",
                pod.name,
                pod.request,
                busy / 1_000_000
            );
        }
    }
}
