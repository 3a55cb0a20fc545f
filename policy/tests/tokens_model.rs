//! The token scheduler compared with a naive model of tokens, over random operations.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

mod tokens_machine;

use policy::tokens::{
    Action, Activity, CloseReason, PodId, ProcessId, ProcessUsage, Quota, Refusal, Rule, Settings,
    Share, Tokens, Usage,
};
use policy::{Span, Time};
use testing::Random;
use tokens_machine::{MS, SECOND};

/// Reports the use of a token by one process of pod 0, which is not looked at without used time.
fn report(tokens: &mut Tokens, at: Time, process: ProcessUsage) {
    let usage = Usage {
        pod: PodId(0),
        used: Span::ZERO,
        processes: &[process],
    };
    tokens.report(at, &usage);
}

const PODS: u32 = 8;
const PROCESSES: u32 = 16;
const RULES: [Rule; 6] = [
    Rule::Weir,
    Rule::Paper,
    Rule::ReactiveBucket,
    Rule::TimeOnly,
    Rule::Exclusive,
    Rule::Racing,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Waiting(u64),
    Holding(u64),
    Closing,
}

#[derive(Clone, Debug)]
struct Process {
    pod: usize,
    sm: u32,
    phase: Phase,
    asks_again: bool,
    contended: bool,
    /// Whether the process was probed while waiting, and has neither answered nor got a token since.
    is_probed: bool,
    /// Whether `is_probed` was true at any time since the scheduler's last decision.
    is_passed_over: bool,
}

#[derive(Clone, Debug)]
struct Pod {
    quota: Quota,
    /// Largest limit that the pod ever had.
    limit_max: u64,
    stopped: bool,
    used: u64,
    reported: Vec<(u64, u64)>,
    since: u64,
    /// Time in which one of its processes held a token.
    held: u64,
    /// Time of the last revocation of one of its tokens.
    revoked_at: Option<u64>,
}

/// A model of the documented behaviour.
#[derive(Default)]
struct Model {
    pods: Vec<Option<Pod>>,
    processes: Vec<Option<Process>>,
    rule: Option<Rule>,
    grants: u64,
    revoked: u64,
    probes: u64,
    probes_of_waiting: u64,
}

/// Shortest time to a wake requested by the scheduler.
const WAKE_STEP: u64 = 20_000;
/// Longest wait of a pod after unused tokens: from a debt of 5 ms to a credit of 5 ms at 2 %.
const BACK_OFF_MAX: u64 = 501 * MS;
/// Time after a revocation in which a process that has not answered gets no token while others hold one.
const DOUBTED: u64 = 10 * SECOND;

impl Model {
    fn occupied(&self) -> u64 {
        let holds = |p: &&Process| matches!(p.phase, Phase::Holding(_) | Phase::Closing);
        let sms = self.processes.iter().flatten().filter(holds);
        sms.map(|p| u64::from(p.sm)).sum()
    }

    fn carry_out(&mut self, now: u64, actions: &[Action], context: &str) {
        let rule = self.rule.unwrap();
        for &action in actions {
            match action {
                Action::Grant { process, until, .. } => {
                    let nobody_holds = self.occupied() == 0;
                    let p = self.processes[process.0 as usize].as_mut().unwrap();
                    assert!(
                        matches!(p.phase, Phase::Waiting(_)),
                        "{context}: {action:?} to {p:?}"
                    );
                    p.phase = Phase::Holding(until.0);
                    p.contended = false;
                    let pod = self.pods[p.pod].as_ref().unwrap();
                    assert!(!pod.stopped, "{context}: {action:?} to a stopped pod");
                    let is_doubted = pod.revoked_at.is_some_and(|at| now - at < DOUBTED);
                    assert!(
                        nobody_holds || !(is_doubted && p.is_probed),
                        "{context}: {action:?} to {p:?}, which has not answered"
                    );
                    (p.is_probed, p.is_passed_over) = (false, false);
                    assert!(until.0 >= now, "{context}: {action:?}");
                    if rule == Rule::Weir {
                        pod.assert_within_limit(now, context);
                    }
                    self.grants += 1;
                    let occupied = self.occupied();
                    assert!(
                        !rule.counts_sms() || occupied <= 10_000,
                        "{context}: {action:?}, {occupied} occupied"
                    );
                }
                Action::Extend { process, until } => {
                    let p = self.processes[process.0 as usize].as_mut().unwrap();
                    let Phase::Holding(before) = p.phase else {
                        panic!("{context}: {action:?} to {p:?}");
                    };
                    assert!(until.0 > before, "{context}: {action:?}");
                    p.phase = Phase::Holding(until.0);
                }
                Action::Close { process, .. } => {
                    let p = self.processes[process.0 as usize].as_mut().unwrap();
                    assert!(
                        matches!(p.phase, Phase::Holding(_)),
                        "{context}: {action:?} to {p:?}"
                    );
                    p.phase = Phase::Closing;
                }
                Action::Contended { process, contended } => {
                    let p = self.processes[process.0 as usize].as_mut().unwrap();
                    assert!(
                        matches!(p.phase, Phase::Holding(_)) && p.contended != contended,
                        "{context}: {action:?} to {p:?}"
                    );
                    p.contended = contended;
                }
                Action::Probe { process } => {
                    let p = self.processes[process.0 as usize].as_mut().unwrap();
                    let waits = matches!(p.phase, Phase::Waiting(_));
                    assert!(
                        rule == Rule::Weir && p.phase != Phase::Idle && !(waits && p.is_probed),
                        "{context}: {action:?} to {p:?}"
                    );
                    p.is_probed |= waits;
                    p.is_passed_over |= waits;
                    self.probes_of_waiting += u64::from(waits);
                    self.probes += 1;
                }
                Action::Revoke { process, .. } => {
                    let p = self.processes[process.0 as usize].as_mut().unwrap();
                    assert!(
                        matches!(p.phase, Phase::Holding(_) | Phase::Closing) && rule == Rule::Weir,
                        "{context}: {action:?} to {p:?}"
                    );
                    let again = std::mem::take(&mut p.asks_again);
                    p.phase = if again {
                        Phase::Waiting(now)
                    } else {
                        Phase::Idle
                    };
                    self.revoked += 1;
                    let pod = p.pod;
                    match &mut self.pods[pod] {
                        Some(pod) => pod.revoked_at = Some(now),
                        None => self.processes[process.0 as usize] = None,
                    }
                }
            }
        }
    }

    /// Adds to the time in which pods held tokens.
    fn pass(&mut self, span: u64) {
        for (at, pod) in self.pods.iter_mut().enumerate() {
            let holds =
                |p: &Process| p.pod == at && matches!(p.phase, Phase::Holding(_) | Phase::Closing);
            if let Some(pod) = pod
                && self.processes.iter().flatten().any(holds)
            {
                pod.held += span;
            }
        }
    }

    fn any_pod_holds_and_waits(&self) -> bool {
        let processes = || self.processes.iter().flatten();
        processes().any(|p| {
            let other = |o: &Process| o.pod == p.pod && matches!(o.phase, Phase::Waiting(_));
            matches!(p.phase, Phase::Holding(_) | Phase::Closing) && processes().any(other)
        })
    }

    /// Asserts that no runnable process that fits waits, unless another has been overtaken for long enough, or tokens
    /// that are closing leave enough for it.
    fn assert_work_conserved(&self, now: u64, overtaking_max: u64, context: &str) {
        let free = 10_000_u64.saturating_sub(self.occupied());
        let may_run = |p: &Process| {
            let pod = self.pods[p.pod].as_ref().unwrap();
            // Only for the sake of other pods.
            let held_back = self.occupied() > 0
                && (p.is_passed_over || pod.revoked_at.is_some_and(|at| now - at <= BACK_OFF_MAX));
            !pod.stopped && pod.quota.limit().is_whole() && !held_back
        };
        let waiting: Vec<_> = (self.processes.iter().flatten())
            .filter_map(|p| match p.phase {
                Phase::Waiting(since) => Some((p, since)),
                _ => None,
            })
            .collect();
        let closing = (self.processes.iter().flatten()).filter(|p| p.phase == Phase::Closing);
        let soon = free + closing.map(|p| u64::from(p.sm)).sum::<u64>();
        let kept_free = waiting.iter().any(|&(p, since)| {
            let sm = u64::from(p.sm);
            sm > free
                && (now - since >= overtaking_max || sm <= soon)
                && !self.pods[p.pod].as_ref().unwrap().stopped
        });
        let fits = waiting
            .iter()
            .find(|(p, _)| may_run(p) && u64::from(p.sm) <= free);
        assert!(
            kept_free || fits.is_none(),
            "{context}: {fits:?} waits with {free} free"
        );
    }
}

impl Pod {
    fn assert_within_limit(&self, now: u64, context: &str) {
        let limit = self.limit_max;
        let ever = u128::from(now - self.since + SECOND) * u128::from(limit) / 1_000_000;
        assert!(u128::from(self.used) <= ever, "{context}: {self:?}");
        let from = now.saturating_sub(10 * SECOND);
        let recent = self.reported.iter().filter(|&&(at, _)| at > from);
        let recent: u64 = recent.clone().map(|&(_, delta)| delta).sum::<u64>()
            - recent.map(|&(_, delta)| delta).next().unwrap_or(0);
        assert!(
            recent <= 10_000 * limit,
            "{context}: {recent} in 10 s, {self:?}"
        );
    }
}

/// Two schedulers with the same calls, which must return the same actions; a copy is woken early.
struct Pair {
    one: Tokens,
    other: Tokens,
}

impl Pair {
    fn call(&mut self, context: &str, body: impl Fn(&mut Tokens, &mut Vec<Action>)) -> Vec<Action> {
        let (mut actions, mut same) = (Vec::new(), Vec::new());
        body(&mut self.one, &mut actions);
        body(&mut self.other, &mut same);
        assert_eq!(actions, same, "{context}");
        assert_eq!(self.one.next_wake(), self.other.next_wake(), "{context}");
        actions
    }

    fn wake_a_copy_early(&self, now: u64, random: &mut Random, context: &str) {
        let wake = self.one.next_wake().map_or(now + SECOND, |wake| wake.0);
        // No wake is requested earlier than that, even if it is due.
        if wake > now + WAKE_STEP {
            let mut copy = self.one.clone();
            let mut actions = Vec::new();
            let early = now + random.below(wake - now);
            copy.wake(Time(early), &mut actions);
            // The end of a turn is an estimate, and a token that is cut by a limit may last longer by then.
            let turns = |action: &Action| match action {
                Action::Close { reason, .. } => *reason == CloseReason::Turn,
                Action::Extend { .. } => true,
                // Reports since the last decision make them due at once.
                Action::Probe { .. } | Action::Revoke { .. } => true,
                _ => false,
            };
            // A probe removes a waiting process from the order.
            let is_probe = |action: &Action| matches!(action, Action::Probe { .. });
            let early = format!("{context}: {actions:?} at {early}, before {wake}");
            let expected = actions.iter().any(is_probe) || actions.iter().all(turns);
            assert!(expected, "{early}");
        }
    }
}

fn random_quota(random: &mut Random) -> Quota {
    let limit = match random.below(4) {
        0 => u32::try_from(random.below(1_000_001)).unwrap(),
        _ => 1_000_000,
    };
    let request = u32::try_from(random.below(u64::from(limit) / 2 + 1)).unwrap();
    let share = |ppm| Share::from_parts_per_million(ppm).unwrap();
    Quota::new(share(request), share(limit)).unwrap()
}

/// Runs random operations. With `reports` holders report their work in flight, so that tokens are revoked.
fn random_operations(rule: Rule, seed: u64, steps: u64, reports: bool) {
    let settings = Settings {
        rule,
        ..Settings::default()
    };
    let mut random = Random(seed);
    let mut pair = Pair {
        one: Tokens::new(settings).unwrap(),
        other: Tokens::new(settings).unwrap(),
    };
    let mut model = Model {
        pods: vec![None; PODS as usize],
        processes: vec![None; PROCESSES as usize],
        rule: Some(rule),
        ..Model::default()
    };
    let mut now = 0_u64;
    let mut counted_to = 0;
    let mut decided = true;
    for step in 0..steps {
        let text = format!("{rule:?}, seed {seed}, step {step}, {now} ns");
        let context = text.as_str();
        // Usage reported since then changes the order, and a pod that both holds and waits falls back in it while it
        // runs.
        if decided && !model.any_pod_holds_and_waits() {
            pair.wake_a_copy_early(now, &mut random, context);
        }
        now += match random.below(10) {
            0..4 => 0,
            4..9 => random.below(3 * MS),
            _ => random.below(100 * MS),
        };
        model.pass(now - counted_to);
        counted_to = now;
        let at = Time(now);
        let pod_at = u32::try_from(random.below(u64::from(PODS))).unwrap();
        let (pod, pod_at) = (PodId(pod_at), pod_at as usize);
        let process_at = u32::try_from(random.below(u64::from(PROCESSES))).unwrap();
        let (process, process_at) = (ProcessId(process_at), process_at as usize);
        let mut decides = true;
        let actions = match random.below(100) {
            0..3 => {
                let quota = random_quota(&mut random);
                let taken = model.pods[pod_at].is_some()
                    || model.processes.iter().flatten().any(|p| p.pod == pod_at);
                pair.call(context, |tokens, _| {
                    let expected = if taken {
                        Err(Refusal::PodTaken { pod })
                    } else {
                        Ok(())
                    };
                    assert_eq!(tokens.add_pod(at, pod, quota), expected, "{context}");
                });
                if !taken {
                    model.pods[pod_at] = Some(Pod {
                        quota,
                        limit_max: u64::from(quota.limit().parts_per_million()),
                        stopped: false,
                        used: 0,
                        reported: Vec::new(),
                        since: now,
                        held: 0,
                        revoked_at: None,
                    });
                }
                decides = false;
                Vec::new()
            }
            3 => {
                // Its holders remain until they are closed.
                let actions = pair.call(context, |tokens, actions| {
                    tokens.remove_pod(at, pod, actions);
                });
                if model.pods[pod_at].is_some() {
                    for p in &mut model.processes {
                        if p.as_ref().is_some_and(|p| {
                            p.pod == pod_at && matches!(p.phase, Phase::Idle | Phase::Waiting(_))
                        }) {
                            *p = None;
                        }
                    }
                }
                model.pods[pod_at] = None;
                model.carry_out(now, &actions, context);
                Vec::new()
            }
            4..9 => {
                let (sm, open) = (
                    500 + u32::try_from(random.below(9_600)).unwrap(),
                    random.below(20) == 0 && model.occupied() == 0,
                );
                let exists = model.processes[process_at].is_some();
                let has_pod = model.pods[pod_at].is_some();
                let good = !exists && has_pod && sm <= 10_000;
                let actions = pair.call(context, |tokens, actions| {
                    let added = tokens.add_process(at, process, pod, sm, open, actions);
                    assert_eq!(added.is_ok(), good, "{context}: {added:?}");
                });
                if good {
                    model.processes[process_at] = Some(Process {
                        pod: pod_at,
                        sm,
                        phase: if open {
                            Phase::Holding(now)
                        } else {
                            Phase::Idle
                        },
                        asks_again: false,
                        contended: false,
                        is_probed: false,
                        is_passed_over: false,
                    });
                }
                actions
            }
            9..40 => {
                if let Some(p) = &mut model.processes[process_at] {
                    match p.phase {
                        Phase::Idle => p.phase = Phase::Waiting(now),
                        Phase::Closing => p.asks_again = true,
                        _ => {}
                    }
                    decides = p.phase != Phase::Closing;
                }
                pair.call(context, |tokens, actions| tokens.ask(at, process, actions))
            }
            40..60 => {
                // Mostly one that has a token to close.
                let occupying = |p: &Process| matches!(p.phase, Phase::Holding(_) | Phase::Closing);
                let found = (process_at..model.processes.len())
                    .find(|&at| model.processes[at].as_ref().is_some_and(occupying));
                let process_at = found.unwrap_or(process_at);
                let process = ProcessId(u32::try_from(process_at).unwrap());
                let mut gone = false;
                if let Some(p) = &mut model.processes[process_at] {
                    gone = model.pods[p.pod].is_none();
                    p.phase = if std::mem::take(&mut p.asks_again) {
                        Phase::Waiting(now)
                    } else {
                        Phase::Idle
                    };
                }
                if gone {
                    model.processes[process_at] = None;
                }
                pair.call(context, |tokens, actions| {
                    tokens.closed(at, process, actions)
                })
            }
            60..63 => {
                model.processes[process_at] = None;
                pair.call(context, |tokens, actions| {
                    tokens.remove_process(at, process, actions);
                })
            }
            63..66 => {
                let stopped = random.below(3) == 0;
                if let Some(pod) = &mut model.pods[pod_at] {
                    pod.stopped = stopped;
                }
                pair.call(context, |tokens, actions| {
                    tokens.hard_stop(at, pod, stopped, actions);
                })
            }
            66..68 => {
                let quota = random_quota(&mut random);
                if let Some(pod) = &mut model.pods[pod_at] {
                    pod.quota = quota;
                    let limit = u64::from(quota.limit().parts_per_million());
                    pod.limit_max = pod.limit_max.max(limit);
                }
                let known = model.pods[pod_at].is_some();
                pair.call(context, |tokens, actions| {
                    let set = tokens.set_quota(at, pod, quota, actions);
                    assert_eq!(set.is_ok(), known, "{context}");
                })
            }
            68..86 => {
                (decides, decided) = (false, false);
                let delta = random.below(5 * MS);
                if let Some(pod) = &mut model.pods[pod_at] {
                    pod.used += delta;
                    pod.reported.push((now, delta));
                }
                pair.call(context, |tokens, _| {
                    let usage = Usage {
                        pod,
                        used: Span(delta),
                        processes: &[],
                    };
                    tokens.report(at, &usage);
                })
            }
            86..90 => {
                (decides, decided) = (false, false);
                let since = (random.below(2) == 0).then(|| at.before(Span(random.below(MS))));
                let sign = random.below(4);
                if sign == 2
                    && reports
                    && let Some(p) = &mut model.processes[process_at]
                {
                    p.is_probed = false;
                }
                pair.call(context, |tokens, _| {
                    let work = match sign {
                        0 if reports => Activity::Idle {
                            since: at.before(Span(MS)),
                        },
                        1 if reports => Activity::Busy {
                            since: at,
                            expected: Some(Span(MS)),
                        },
                        _ => Activity::Unknown,
                    };
                    report(
                        tokens,
                        at,
                        ProcessUsage {
                            process,
                            is_active: sign < 2 || !reports,
                            unfinished_since: since,
                            activity: work,
                        },
                    );
                    match sign {
                        2 if reports => tokens.responds(at, process),
                        3 if reports => tokens.stopped(at, process),
                        _ => {}
                    }
                })
            }
            _ => {
                // As its caller would, on time.
                decided = true;
                for p in model.processes.iter_mut().flatten() {
                    p.is_passed_over = p.is_probed;
                }
                if let Some(wake) = pair.one.next_wake() {
                    // A request of a millionth waits for its turn for years.
                    now = now.max(wake.0.min(now + 1_000 * SECOND));
                }
                model.pass(now - counted_to);
                counted_to = now;
                if reports {
                    let looks: Vec<_> = (0..PROCESSES).map(|_| random.below(10)).collect();
                    pair.call(context, |tokens, _| {
                        for (process, look) in (0..PROCESSES).map(ProcessId).zip(&looks) {
                            let now = Time(now);
                            let own = |is_active, unfinished_since, activity| ProcessUsage {
                                process,
                                is_active,
                                unfinished_since,
                                activity,
                            };
                            let earlier = |span| now.before(Span(span));
                            match look {
                                0..5 => {
                                    let since = earlier(look * MS);
                                    report(tokens, now, own(false, None, Activity::Idle { since }));
                                }
                                5..8 => {
                                    let work = Activity::Busy {
                                        since: earlier(3 * MS),
                                        expected: Some(Span(look * MS / 4)),
                                    };
                                    let unfinished = Some(earlier(look * MS));
                                    report(tokens, now, own(false, unfinished, work));
                                }
                                8 => report(tokens, now, own(true, None, Activity::Unknown)),
                                _ => {}
                            }
                        }
                    });
                }
                pair.call(context, |tokens, actions| tokens.wake(Time(now), actions))
            }
        };
        model.carry_out(now, &actions, context);
        if decides && rule == Rule::Weir {
            model.assert_work_conserved(now, settings.overtaking_max.0, context);
        }
        assert_eq!(pair.one.occupied(), model.occupied(), "{context}");
        for (at, pod) in (0_u32..).zip(&model.pods) {
            let Some(pod) = pod else { continue };
            let account = pair.one.account(PodId(at)).unwrap();
            assert_eq!(account.used.0, pod.used, "{context}");
            assert!(
                account.held_idle.0 <= pod.held,
                "{context}: {account:?}, {pod:?}"
            );
            if rule == Rule::Weir && !reports {
                assert_eq!(
                    account.guaranteed.0 + account.surplus.0,
                    pod.used,
                    "{context}"
                );
            }
        }
    }
    println!(
        "{rule:?}, seed {seed}: {} grants, {} revoked, {} probes, {} of them before a grant",
        model.grants, model.revoked, model.probes, model.probes_of_waiting
    );
    assert_eq!(model.revoked > 0, reports && rule == Rule::Weir);
    assert_eq!(model.probes > 0, reports && rule == Rule::Weir);
    assert_eq!(model.probes_of_waiting > 0, reports && rule == Rule::Weir);
    assert!(
        model.grants * 100 > steps,
        "{rule:?}: {} grants",
        model.grants
    );
}

#[test]
fn invariants_hold_over_random_operations() {
    for rule in RULES {
        let steps = if rule == Rule::Weir { 40_000 } else { 10_000 };
        for seed in 1..=3 {
            random_operations(rule, seed, steps, false);
            random_operations(rule, seed + 100, steps, true);
        }
    }
}
