//! Evaluates the pods' use of the GPU from the device's ledger and the loads' own stamps, independent of Weir.
//!
//! **Idle while waiting** is the time in which no kernel ran on the device although a pod with quota left was blocked in a
//! launch. The blocking is stamped by its load. Its remaining quota is accounted for here: from the begin of the measured span
//! the account grows by the pod's limit per unit of time, up to what one window saves, and falls while a kernel of the pod runs.
//! When it holds a whole token, the shortest there is, the pod could have run; time in which nothing ran although it could have
//! is counted, and paid from the account as if it had run, until the account is empty. So pods which have used up their limits do
//! not count, and a shortfall counts once.

use super::plan::{Plan, Pod, Rule};

/// Length of the shortest token, in ns, unscaled.
pub(crate) const TOKEN_NS: u64 = 2_000_000;
/// Window over which a pod saves quota, in ns, unscaled.
const WINDOW_NS: u64 = 1_000_000_000;

/// Begin and end of a stretch of time, in ns of CLOCK_MONOTONIC.
pub(crate) type Stretch = (u64, u64);

/// Observations of a pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Track {
    /// Run times of the pod's kernels, one stretch for each.
    pub(crate) kernels: Vec<Stretch>,
    /// SM usage, in thousandths of an SM times ns.
    pub(crate) millisms_ns: u128,
    /// Times in which the pod was blocked in a launch.
    pub(crate) waits: Vec<Stretch>,
    /// Stretches from a batch's first launch until its end is seen.
    pub(crate) batches: Vec<Stretch>,
}

/// GPU use which a pod achieved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Achieved {
    /// Share of the span in which at least one of its kernels ran.
    pub(crate) share: f64,
    pub(crate) longest_ns: u64,
    pub(crate) sm_seconds: f64,
    /// Number of batches that ended within the span.
    pub(crate) requests: u64,
    pub(crate) p95_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
pub(crate) const fn float(ns: u64) -> f64 {
    ns as f64
}

fn length(stretches: &[Stretch]) -> u64 {
    stretches.iter().map(|(from, to)| to - from).sum()
}

/// Clips stretches to a span, sorts them, and merges those which touch.
pub(crate) fn union(stretches: &[Stretch], (begin, end): Stretch) -> Vec<Stretch> {
    let mut cut: Vec<Stretch> = stretches
        .iter()
        .map(|&(from, to)| (from.max(begin), to.min(end)))
        .filter(|(from, to)| from < to)
        .collect();
    cut.sort_unstable();
    let mut merged: Vec<Stretch> = Vec::with_capacity(cut.len());
    for (from, to) in cut {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// Returns the GPU use of a pod within a span; times are divided by the scale `time`.
pub(crate) fn achieved(track: &Track, span: Stretch, time: u32) -> Achieved {
    let whole = float(span.1 - span.0);
    let longest = track.kernels.iter().map(|(from, to)| to - from).max();
    let mut took: Vec<u64> = track
        .batches
        .iter()
        .filter(|(_, to)| (span.0..span.1).contains(to))
        .map(|(from, to)| to - from)
        .collect();
    took.sort_unstable();
    let ms = |percent: usize| {
        let rank = (took.len() * percent).div_ceil(100).max(1);
        let ns = took.get(rank - 1);
        ns.map(|&ns| float(ns) / 1e6 / f64::from(time))
    };
    Achieved {
        share: float(length(&union(&track.kernels, span))) / whole,
        longest_ns: longest.unwrap_or(0),
        sm_seconds: softgpu::summary::sm_seconds(track.millisms_ns) / f64::from(time),
        requests: took.len() as u64,
        p95_ms: ms(95),
        p99_ms: ms(99),
    }
}

/// Returns the pods' run times in order, each with its pod's index.
fn in_order(tracks: &[Track], span: Stretch) -> Vec<(Stretch, usize)> {
    let mut all: Vec<(Stretch, usize)> = Vec::new();
    for (pod, track) in tracks.iter().enumerate() {
        all.extend(union(&track.kernels, span).iter().map(|own| (*own, pod)));
    }
    all.sort_unstable();
    all
}

/// Returns how often the device switched from one pod's kernels to another's.
pub(crate) fn hand_overs(tracks: &[Track], span: Stretch) -> u64 {
    let all = in_order(tracks, span);
    let changes = all.windows(2).filter(|two| two[0].1 != two[1].1);
    changes.count() as u64
}

/// Returns the median idle time of the device between one pod's kernels and another's; `None` if it never switched.
pub(crate) fn passing_ns(tracks: &[Track], span: Stretch) -> Option<u64> {
    let all = in_order(tracks, span);
    let changes = all.windows(2).filter(|two| two[0].1 != two[1].1);
    let mut idle: Vec<u64> = changes
        .filter_map(|two| two[1].0.0.checked_sub(two[0].0.1))
        .collect();
    idle.sort_unstable();
    idle.get(idle.len() / 2).copied()
}

/// A pod's account of quota: see the [module](self).
#[derive(Debug, Clone, Copy)]
struct Account {
    limit: f64,
    balance: f64,
    max: f64,
    /// Whether the account has reached a whole token and not been emptied since.
    is_open: bool,
    running: bool,
    waiting: bool,
}

impl Account {
    fn pass(&mut self, ns: f64, uses: bool) {
        let used = if uses { ns } else { 0.0 };
        self.balance = (self.balance + self.limit * ns - used).min(self.max);
    }
}

/// Returns the share of the span in which nothing ran although a pod with quota left was blocked.
pub(crate) fn idle_while_waiting(
    tracks: &[Track],
    limits: &[f64],
    span: Stretch,
    time: u32,
) -> f64 {
    let (token, window) = (
        float(TOKEN_NS * u64::from(time)),
        float(WINDOW_NS * u64::from(time)),
    );
    let mut accounts: Vec<Account> = limits
        .iter()
        .map(|&limit| Account {
            limit,
            balance: 0.0,
            max: (limit * window).max(token),
            is_open: false,
            running: false,
            waiting: false,
        })
        .collect();
    // (time, pod, whether it concerns kernels, whether they begin)
    let mut changes: Vec<(u64, usize, bool, bool)> = Vec::new();
    for (pod, track) in tracks.iter().enumerate().take(accounts.len()) {
        for (stretches, is_kernel) in [(&track.kernels, true), (&track.waits, false)] {
            for (from, to) in union(stretches, span) {
                changes.push((from, pod, is_kernel, true));
                changes.push((to, pod, is_kernel, false));
            }
        }
    }
    changes.push((span.1, 0, false, false));
    changes.sort_unstable();
    let (mut at, mut wasted) = (span.0, 0.0);
    for (when, pod, is_kernel, begins) in changes {
        wasted += pass(&mut accounts, float(when - at), token);
        at = when;
        if let Some(account) = accounts.get_mut(pod) {
            if is_kernel {
                account.running = begins;
            } else {
                account.waiting = begins;
            }
        }
    }
    wasted / float(span.1 - span.0)
}

/// Advances the accounts over a time without changes; returns how much of it was wasted, in ns.
fn pass(accounts: &mut [Account], ns: f64, token: f64) -> f64 {
    if accounts.iter().any(|account| account.running) {
        for account in accounts {
            account.pass(ns, account.running);
        }
        return 0.0;
    }
    let (mut left, mut wasted) = (ns, 0.0);
    while left >= 1.0 {
        for account in accounts.iter_mut() {
            // Less than a token by no more than the rounding error.
            if account.balance >= token - 1.0 {
                account.is_open = true;
            } else if account.balance <= 0.0 {
                account.is_open = false;
            }
        }
        let could = accounts
            .iter()
            .position(|account| account.waiting && account.is_open);
        let until = |account: &Account| (token - account.balance) / account.limit;
        let step = match could {
            Some(pod) => {
                let account = &accounts[pod];
                account.balance / (1.0 - account.limit).max(1e-9)
            }
            None => accounts
                .iter()
                .filter(|account| account.waiting)
                .map(until)
                .fold(left, f64::min),
        };
        let step = step.max(1.0).min(left);
        for (pod, account) in accounts.iter_mut().enumerate() {
            account.pass(step, could == Some(pod));
        }
        if could.is_some() {
            wasted += step;
        }
        left -= step;
    }
    wasted
}

/// Returns each pod's entitlement as a share of the measured span.
///
/// Requests first, each up to the pod's limit and its demand; the rest is distributed in equal parts, up to the same bound.
/// Kernels of pods run concurrently as far as their SMs together are no more than the slot's, where the rule has space. A pod
/// that is idle for a while has no demand then; the other pods' gain counts. By Weir's rule it has saved its request of that
/// time, one window's at most, and gets it before anything else is distributed.
pub(crate) fn entitlements(plan: &Plan) -> Vec<f64> {
    let end = plan.seconds;
    let bounds = plan
        .pods
        .iter()
        .filter(|pod| pod.idle_for > 0.0)
        .flat_map(|pod| [pod.idle_from, pod.idle_from + pod.idle_for]);
    let mut times: Vec<f64> = bounds.map(|time| time.min(end)).chain([0.0, end]).collect();
    times.sort_unstable_by(f64::total_cmp);
    let mut shares = vec![0.0; plan.pods.len()];
    for two in times.windows(2) {
        let (from, to) = (two[0], two[1]);
        let middle = f64::midpoint(from, to);
        let is_idle =
            |pod: &Pod, at: f64| (pod.idle_from..pod.idle_from + pod.idle_for).contains(&at);
        let wants = |pod: &Pod| {
            let bound = pod.limit.min(pod.demand());
            if is_idle(pod, middle) { 0.0 } else { bound }
        };
        let caps: Vec<f64> = plan.pods.iter().map(wants).collect();
        let requests: Vec<f64> = plan.pods.iter().map(|pod| pod.request).collect();
        let mut left = (to - from) / end;
        let back = |pod: &Pod| {
            plan.rule == Rule::Weir && pod.idle_for > 0.0 && pod.idle_from + pod.idle_for == from
        };
        if let Some(at) = plan.pods.iter().position(back) {
            let saved = requests[at] * plan.pods[at].idle_for.min(float(WINDOW_NS) / 1e9);
            let mut first = requests.clone();
            // As if it owned everything that the other pods have not requested.
            first[at] = most(|share| {
                let mut own = requests.clone();
                own[at] = share;
                fits(plan, &level(&caps, &own, 1.0, 0.0))
            });
            let rich = filled(plan, &caps, &first);
            let ahead = rich[at] - requests[at];
            if ahead > 0.0 {
                let part = (saved / ahead / end).min(left);
                left -= part;
                for (sum, share) in shares.iter_mut().zip(rich) {
                    *sum += share * part;
                }
            }
        }
        for (sum, share) in shares.iter_mut().zip(filled(plan, &caps, &requests)) {
            *sum += share * left;
        }
    }
    shares
}

/// Returns a share for each pod: its request, at most its cap, times `scale`, plus `more`; the result is again at most the cap.
fn level(caps: &[f64], requests: &[f64], scale: f64, more: f64) -> Vec<f64> {
    let each = requests.iter().zip(caps);
    each.map(|(request, cap)| (request.min(*cap) * scale + more).min(*cap))
        .collect()
}

/// Returns whether these shares fit on the device at the same time.
fn fits(plan: &Plan, shares: &[f64]) -> bool {
    let each = plan.pods.iter().zip(shares);
    let area = each.map(|(pod, share)| {
        let sms = if plan.rule.has_space() {
            pod.sm_percent / 100.0
        } else {
            1.0
        };
        share * sms
    });
    area.sum::<f64>() <= 1.0 + 1e-9
}

/// Returns the shares of wall time of pods that run concurrently: each pod's request plus an equal part of the rest, at most its
/// cap. Requests that do not fit on the device together are all reduced by the same factor.
fn filled(plan: &Plan, caps: &[f64], requests: &[f64]) -> Vec<f64> {
    let level = |scale: f64, more: f64| level(caps, requests, scale, more);
    // Requests that do not fit shrink in proportion; otherwise the rest is distributed.
    if !fits(plan, &level(1.0, 0.0)) {
        return level(most(|scale| fits(plan, &level(scale, 0.0))), 0.0);
    }
    level(1.0, most(|more| fits(plan, &level(1.0, more))))
}

/// Returns the largest number from 0 to 1 for which `holds` is true, by bisection.
fn most(holds: impl Fn(f64) -> bool) -> f64 {
    if holds(1.0) {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Work, pods};
    use super::*;

    const MS: u64 = 1_000_000;

    fn near(one: &[f64], other: &[f64]) {
        let all = one.len() == other.len()
            && one
                .iter()
                .zip(other)
                .all(|(one, other)| (one - other).abs() < 1e-3);
        assert!(all, "{one:?} {other:?}");
    }

    fn plan(text: &str, rule: Rule) -> Plan {
        Plan {
            pods: pods(text, Work::Kernels).unwrap(),
            rule,
            seconds: 10.0,
            time: 1,
            part: "H100",
        }
    }

    #[test]
    fn entitlements_are_requests_plus_equal_parts_of_the_rest() {
        let of = |text, rule| entitlements(&plan(text, rule));
        near(&of("10:90", Rule::Weir), &[0.1, 0.9]);
        near(&of("20:30", Rule::Weir), &[0.2, 0.3]);
        near(
            &of("request=0.1,limit=1:request=0.5,limit=1", Rule::Weir),
            &[0.3, 0.7],
        );
        near(
            &of("request=0.1,limit=0.2:request=0.5,limit=1", Rule::Weir),
            &[0.2, 0.8],
        );
        near(
            &of("limit=0.9,work=pauses:limit=1", Rule::Weir),
            &[0.5, 0.5],
        );
        near(&of("sm=12,24,50", Rule::Weir), &[1.0, 1.0, 1.0]);
        near(&of("sm=50,50", Rule::TimeOnly), &[0.5, 0.5]);
        near(
            &of(
                "request=0.1,limit=1,idle-from=2,idle-for=3:request=0.5,limit=1",
                Rule::Weir,
            ),
            &[0.215, 0.785],
        );
        near(
            &of(
                "request=0.1,limit=1:request=0.5,limit=1,idle-from=2,idle-for=3",
                Rule::Weir,
            ),
            &[0.485, 0.515],
        );
        near(
            &of(
                "request=0.1,limit=1,idle-from=2,idle-for=3:request=0.5,limit=1",
                Rule::TimeOnly,
            ),
            &[0.21, 0.79],
        );
    }

    #[test]
    fn stretches_are_clipped_and_merged() {
        let cut = union(&[(5, 8), (1, 3), (2, 4), (8, 20)], (2, 10));
        assert_eq!(cut, [(2, 4), (5, 10)]);
        let track = Track {
            kernels: vec![(0, 30 * MS), (10 * MS, 50 * MS)],
            batches: vec![(0, 40 * MS), (40 * MS, 200 * MS)],
            ..Track::default()
        };
        let achieved = achieved(&track, (0, 100 * MS), 2);
        assert!((achieved.share - 0.5).abs() < 1e-9);
        assert_eq!((achieved.longest_ns, achieved.requests), (40 * MS, 1));
        assert_eq!(achieved.p99_ms, Some(20.0));
    }

    fn idle(tracks: &[Track], limits: &[f64], ms: u64) -> f64 {
        idle_while_waiting(tracks, limits, (0, ms * MS), 1)
    }

    #[test]
    fn only_idle_time_while_a_pod_with_quota_waits_counts() {
        let waits = |from, to| Track {
            waits: vec![(from * MS, to * MS)],
            ..Track::default()
        };
        // From the first whole token on.
        near(&[idle(&[waits(0, 100)], &[1.0], 1_000)], &[0.098]);
        // No pod waits.
        near(&[idle(&[Track::default()], &[1.0], 1_000)], &[0.0]);
        // Another kernel runs meanwhile.
        let runs = Track {
            kernels: vec![(0, 1_000 * MS)],
            ..Track::default()
        };
        near(&[idle(&[waits(0, 100), runs], &[1.0, 1.0], 1_000)], &[0.0]);
        // The limit bounds what it could have had.
        near(&[idle(&[waits(0, 1_000)], &[0.1], 1_000)], &[0.1]);
    }

    #[test]
    fn a_pod_at_its_limit_wastes_nothing_and_a_shortfall_counts_once() {
        // 2 ms of each 10 ms, blocked in between.
        let steady = |used: u64| Track {
            kernels: (0..1_000)
                .map(|n| (n * 10 * MS, n * 10 * MS + used))
                .collect(),
            waits: vec![(0, 10_000 * MS)],
            ..Track::default()
        };
        near(&[idle(&[steady(2 * MS)], &[0.2], 10_000)], &[0.0]);
        near(&[idle(&[steady(19 * MS / 10)], &[0.2], 10_000)], &[0.01]);
        // One launch of 500 ms is paid for over 5 s.
        let long = Track {
            kernels: vec![(0, 500 * MS)],
            waits: vec![(500 * MS, 4_900 * MS)],
            ..Track::default()
        };
        near(&[idle(&[long], &[0.1], 4_900)], &[0.0]);
    }

    #[test]
    fn hand_overs_are_changes_from_one_pod_to_another() {
        let track = |kernels: &[Stretch]| Track {
            kernels: kernels.to_vec(),
            ..Track::default()
        };
        let tracks = [track(&[(0, 1), (1, 2), (5, 6)]), track(&[(3, 4)])];
        assert_eq!(hand_overs(&tracks, (0, 10)), 2);
        // Two switches: one with an idle time of 1 and one without.
        assert_eq!(passing_ns(&tracks, (0, 10)), Some(1));
        assert_eq!(passing_ns(&tracks[..1], (0, 10)), None);
    }
}
