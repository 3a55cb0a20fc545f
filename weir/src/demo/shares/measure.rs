//! What pods got, from the device's ledger and from the loads' own stamps; nothing here asks Weir.
//!
//! **Idle while waiting** is the time in which no kernel ran on the device although a pod that had quota left was kept in a
//! launch. That it was kept is what its load has stamped. What quota it had left is an account of its own: from the begin of
//! the measured span it grows by the pod's limit per unit of time, up to what one window saves, and falls while a kernel of
//! the pod runs. When it holds a whole token, the shortest there is, the pod could have run; time in which nothing ran
//! although it could have is counted, and paid from the account as if it had run, until nothing is left in it. So pods that
//! have had all they may have do not count, and a shortfall counts once.

use super::ask::{Ask, Pod, Rule};

/// The shortest token, before it is scaled.
pub(crate) const TOKEN_NS: u64 = 2_000_000;
/// What a pod can save up, likewise.
const WINDOW_NS: u64 = 1_000_000_000;

/// From a time to a later one, in ns of CLOCK_MONOTONIC.
pub(crate) type Stretch = (u64, u64);

/// What is known of a pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Track {
    /// When its kernels ran, each for itself.
    pub(crate) kernels: Vec<Stretch>,
    /// Thousandths of SMs times ns.
    pub(crate) millisms_ns: u128,
    /// When it was kept in a launch.
    pub(crate) asked: Vec<Stretch>,
    /// From a batch's first launch until its end is seen.
    pub(crate) batches: Vec<Stretch>,
}

/// What a pod got.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Got {
    /// Share of the span in which at least one of its kernels ran.
    pub(crate) share: f64,
    pub(crate) longest_ns: u64,
    pub(crate) sm_seconds: f64,
    /// Batches that ended within the span.
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

/// Cut to a span, put in order, what touches made one.
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

/// What a pod got within a span; times are divided by the scale.
pub(crate) fn got(track: &Track, span: Stretch, time: u32) -> Got {
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
    Got {
        share: float(length(&union(&track.kernels, span))) / whole,
        longest_ns: longest.unwrap_or(0),
        sm_seconds: softgpu::summary::sm_seconds(track.millisms_ns) / f64::from(time),
        requests: took.len() as u64,
        p95_ms: ms(95),
        p99_ms: ms(99),
    }
}

/// When kernels of pods ran, in order, and whose they were.
fn in_order(tracks: &[Track], span: Stretch) -> Vec<(Stretch, usize)> {
    let mut all: Vec<(Stretch, usize)> = Vec::new();
    for (pod, track) in tracks.iter().enumerate() {
        all.extend(union(&track.kernels, span).iter().map(|own| (*own, pod)));
    }
    all.sort_unstable();
    all
}

/// How often the device went from one pod's kernels to another's.
pub(crate) fn hand_overs(tracks: &[Track], span: Stretch) -> u64 {
    let all = in_order(tracks, span);
    let changes = all.windows(2).filter(|two| two[0].1 != two[1].1);
    changes.count() as u64
}

/// Median of the times in which nothing ran while the device went from one pod's kernels to another's.
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
    /// It has begun to be paid from.
    is_open: bool,
    running: bool,
    asking: bool,
}

impl Account {
    fn pass(&mut self, ns: f64, uses: bool) {
        let used = if uses { ns } else { 0.0 };
        self.balance = (self.balance + self.limit * ns - used).min(self.max);
    }
}

/// Share of the span in which nothing ran although a pod that had quota left was kept waiting.
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
            asking: false,
        })
        .collect();
    // (when, pod, whether it is about kernels, whether they begin)
    let mut changes: Vec<(u64, usize, bool, bool)> = Vec::new();
    for (pod, track) in tracks.iter().enumerate().take(accounts.len()) {
        for (stretches, is_kernel) in [(&track.kernels, true), (&track.asked, false)] {
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
                account.asking = begins;
            }
        }
    }
    wasted / float(span.1 - span.0)
}

/// Lets time pass in which nothing changes; how much of it was wasted.
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
            // A rounding's difference is no token.
            if account.balance >= token - 1.0 {
                account.is_open = true;
            } else if account.balance <= 0.0 {
                account.is_open = false;
            }
        }
        let could = accounts
            .iter()
            .position(|account| account.asking && account.is_open);
        let until = |account: &Account| (token - account.balance) / account.limit;
        let step = match could {
            Some(pod) => {
                let account = &accounts[pod];
                account.balance / (1.0 - account.limit).max(1e-9)
            }
            None => accounts
                .iter()
                .filter(|account| account.asking)
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

/// What each pod is entitled to, as a share of the measured span.
///
/// Requests first, each up to the pod's limit and what it wants at all; what is left is given out in equal parts, up to the
/// same bound. Kernels of pods run side by side as far as their SMs together are no more than the slot's, where the rule has
/// space. A pod that is idle for a while wants nothing then; what the others have from that counts. By Weir's rule it has
/// saved its request of that time, one window's at most, and has it before anything else is given out.
pub(crate) fn asked(ask: &Ask) -> Vec<f64> {
    let end = ask.seconds;
    let bounds = ask
        .pods
        .iter()
        .filter(|pod| pod.idle_for > 0.0)
        .flat_map(|pod| [pod.idle_from, pod.idle_from + pod.idle_for]);
    let mut times: Vec<f64> = bounds.map(|time| time.min(end)).chain([0.0, end]).collect();
    times.sort_unstable_by(f64::total_cmp);
    let mut shares = vec![0.0; ask.pods.len()];
    for two in times.windows(2) {
        let (from, to) = (two[0], two[1]);
        let middle = f64::midpoint(from, to);
        let is_idle =
            |pod: &Pod, at: f64| (pod.idle_from..pod.idle_from + pod.idle_for).contains(&at);
        let wants = |pod: &Pod| {
            let bound = pod.limit.min(pod.demand());
            if is_idle(pod, middle) { 0.0 } else { bound }
        };
        let caps: Vec<f64> = ask.pods.iter().map(wants).collect();
        let requests: Vec<f64> = ask.pods.iter().map(|pod| pod.request).collect();
        let mut left = (to - from) / end;
        let back = |pod: &Pod| {
            ask.rule == Rule::Weir && pod.idle_for > 0.0 && pod.idle_from + pod.idle_for == from
        };
        if let Some(at) = ask.pods.iter().position(back) {
            let saved = requests[at] * ask.pods[at].idle_for.min(float(WINDOW_NS) / 1e9);
            let mut first = requests.clone();
            // As if all that the others have not asked for were its own.
            first[at] = most(|share| {
                let mut own = requests.clone();
                own[at] = share;
                fits(ask, &level(&caps, &own, 1.0, 0.0))
            });
            let rich = filled(ask, &caps, &first);
            let ahead = rich[at] - requests[at];
            if ahead > 0.0 {
                let part = (saved / ahead / end).min(left);
                left -= part;
                for (sum, share) in shares.iter_mut().zip(rich) {
                    *sum += share * part;
                }
            }
        }
        for (sum, share) in shares.iter_mut().zip(filled(ask, &caps, &requests)) {
            *sum += share * left;
        }
    }
    shares
}

/// Each pod's request, scaled, and something more; no more than it wants.
fn level(caps: &[f64], requests: &[f64], scale: f64, more: f64) -> Vec<f64> {
    let each = requests.iter().zip(caps);
    each.map(|(request, cap)| (request.min(*cap) * scale + more).min(*cap))
        .collect()
}

/// Whether so much can be had at the same time.
fn fits(ask: &Ask, shares: &[f64]) -> bool {
    let each = ask.pods.iter().zip(shares);
    let area = each.map(|(pod, share)| {
        let sms = if ask.rule.has_space() {
            pod.sm_percent / 100.0
        } else {
            1.0
        };
        share * sms
    });
    area.sum::<f64>() <= 1.0 + 1e-9
}

/// Shares at once, for pods that want and request so much.
fn filled(ask: &Ask, caps: &[f64], requests: &[f64]) -> Vec<f64> {
    let level = |scale: f64, more: f64| level(caps, requests, scale, more);
    // Requests that do not fit shrink in proportion; else there may be something to give out.
    if !fits(ask, &level(1.0, 0.0)) {
        return level(most(|scale| fits(ask, &level(scale, 0.0))), 0.0);
    }
    level(1.0, most(|more| fits(ask, &level(1.0, more))))
}

/// The largest number from 0 to 1 for which something holds.
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
    use super::super::ask::{Work, pods};
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

    fn ask(text: &str, rule: Rule) -> Ask {
        Ask {
            pods: pods(text, Work::Kernels).unwrap(),
            rule,
            seconds: 10.0,
            time: 1,
            part: "H100",
        }
    }

    #[test]
    fn entitlements_are_requests_then_equal_parts_of_the_rest() {
        let of = |text, rule| asked(&ask(text, rule));
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
    fn stretches_are_cut_and_made_one() {
        let cut = union(&[(5, 8), (1, 3), (2, 4), (8, 20)], (2, 10));
        assert_eq!(cut, [(2, 4), (5, 10)]);
        let track = Track {
            kernels: vec![(0, 30 * MS), (10 * MS, 50 * MS)],
            batches: vec![(0, 40 * MS), (40 * MS, 200 * MS)],
            ..Track::default()
        };
        let got = got(&track, (0, 100 * MS), 2);
        assert!((got.share - 0.5).abs() < 1e-9);
        assert_eq!((got.longest_ns, got.requests), (40 * MS, 1));
        assert_eq!(got.p99_ms, Some(20.0));
    }

    fn idle(tracks: &[Track], limits: &[f64], ms: u64) -> f64 {
        idle_while_waiting(tracks, limits, (0, ms * MS), 1)
    }

    #[test]
    fn only_idle_time_in_which_somebody_with_quota_waits_counts() {
        let waits = |from, to| Track {
            asked: vec![(from * MS, to * MS)],
            ..Track::default()
        };
        // From the first whole token on.
        near(&[idle(&[waits(0, 100)], &[1.0], 1_000)], &[0.098]);
        // Nobody waits.
        near(&[idle(&[Track::default()], &[1.0], 1_000)], &[0.0]);
        // Somebody runs meanwhile.
        let runs = Track {
            kernels: vec![(0, 1_000 * MS)],
            ..Track::default()
        };
        near(&[idle(&[waits(0, 100), runs], &[1.0, 1.0], 1_000)], &[0.0]);
        // A limit is all that it could have had.
        near(&[idle(&[waits(0, 1_000)], &[0.1], 1_000)], &[0.1]);
    }

    #[test]
    fn who_has_had_its_limit_wastes_nothing_and_a_shortfall_counts_once() {
        // 2 ms of each 10 ms, and waiting in between.
        let steady = |used: u64| Track {
            kernels: (0..1_000)
                .map(|n| (n * 10 * MS, n * 10 * MS + used))
                .collect(),
            asked: vec![(0, 10_000 * MS)],
            ..Track::default()
        };
        near(&[idle(&[steady(2 * MS)], &[0.2], 10_000)], &[0.0]);
        near(&[idle(&[steady(19 * MS / 10)], &[0.2], 10_000)], &[0.01]);
        // One launch of 500 ms is paid for over 5 s.
        let long = Track {
            kernels: vec![(0, 500 * MS)],
            asked: vec![(500 * MS, 4_900 * MS)],
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
        // One idle time of one, one of one.
        assert_eq!(passing_ns(&tracks, (0, 10)), Some(1));
        assert_eq!(passing_ns(&tracks[..1], (0, 10)), None);
    }
}
