//! A pod that holds tokens without computing loses its own time, not that of its neighbours, and the device does not
//! idle.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

mod tokens_machine;

use policy::tokens::{
    Action, Activity, PodId, ProcessId, ProcessUsage, Quota, RevokeReason, SM_WHOLE, Settings,
    Share, Tokens, Usage,
};
use policy::{Span, Time};
use tokens_machine::{MS, Manner, SECOND, Simulation, Work};

const SPAN: u64 = 20 * SECOND;
/// Share of the undisturbed neighbour: its request, less hand-overs.
const SHARE: f64 = 0.697;

struct Shares {
    /// As shares of the time.
    other: f64,
    neighbour: f64,
    idle: f64,
    held_idle: f64,
    revoked: u64,
}

/// Runs one pod with a request of 30 % and this manner beside a neighbour with 70 % which always computes, both with
/// kernels of `kernel`.
fn beside_a_neighbour(manner: Manner, kernel: u64) -> Shares {
    let mut simulation = Simulation::new(Settings::default());
    let reporting = Work::always(kernel).with(Manner::Reporting);
    let other = simulation.pod(
        300_000,
        1_000_000,
        SM_WHOLE,
        &[Work::always(kernel).with(manner)],
    );
    let neighbour = simulation.pod(700_000, 1_000_000, SM_WHOLE, &[reporting]);
    simulation.run(SPAN);
    #[expect(clippy::cast_precision_loss, reason = "seconds, in ns")]
    let part = |time: u64| time as f64 / SPAN as f64;
    let account = simulation.tokens.account(PodId(0)).unwrap();
    let seen = Shares {
        other: part(simulation.ledgers[other].within(0, SPAN)),
        neighbour: part(simulation.ledgers[neighbour].within(0, SPAN)),
        idle: part(simulation.idle_while_waiting),
        held_idle: part(account.held_idle.0),
        revoked: simulation.revoked,
    };
    println!(
        "{manner:?}, {kernel} ns: {:.2} : {:.2} %, idle {:.2} %, charged {:.2} %, {} revoked",
        seen.other * 100.0,
        seen.neighbour * 100.0,
        seen.idle * 100.0,
        seen.held_idle * 100.0,
        seen.revoked
    );
    seen
}

fn assert_neighbour_keeps_its_share(manner: Manner) {
    for kernel in [100_000, 5 * MS] {
        let seen = beside_a_neighbour(manner, kernel);
        assert!(
            seen.neighbour >= 0.98 * SHARE,
            "{manner:?}: {:.4} of the time",
            seen.neighbour
        );
        assert!(
            seen.idle <= 0.03,
            "{manner:?}: idle for {:.4} of the time",
            seen.idle
        );
    }
}

#[test]
fn processes_that_compute_keep_their_tokens() {
    for kernel in [20_000, 100_000, 5 * MS, 50 * MS] {
        let seen = beside_a_neighbour(Manner::Reporting, kernel);
        assert_eq!(seen.revoked, 0);
        assert!((seen.other - 0.3).abs() < 0.006, "{:.4}", seen.other);
        assert!(seen.held_idle < 0.001, "{:.4}", seen.held_idle);
    }
}

#[test]
fn a_pod_that_is_stopped_and_continued_costs_its_neighbour_nothing() {
    for (runs, stands) in [(300, 400), (200, 300), (37, 411)] {
        for seen in [true, false] {
            assert_neighbour_keeps_its_share(Manner::Stops {
                runs: runs * MS,
                stands: stands * MS,
                seen,
            });
        }
    }
}

#[test]
fn a_throttled_pod_costs_its_neighbour_nothing() {
    for (runs, stands) in [(40, 60), (10, 90), (80, 20), (7, 13)] {
        assert_neighbour_keeps_its_share(Manner::Stops {
            runs: runs * MS,
            stands: stands * MS,
            seen: false,
        });
    }
}

#[test]
fn a_throttled_pod_gets_its_share_while_it_runs_for_longer() {
    // 40 of 100 ms, of which it may compute in 30.
    let seen = beside_a_neighbour(
        Manner::Stops {
            runs: 40 * MS,
            stands: 60 * MS,
            seen: false,
        },
        100_000,
    );
    assert!(seen.other > 0.2, "{:.4}", seen.other);
}

#[test]
fn a_pod_that_never_launches_costs_its_neighbour_nothing() {
    let seen = beside_a_neighbour(Manner::NeverLaunches, 100_000);
    assert!(seen.neighbour > 0.97, "{:.4}", seen.neighbour);
    assert!(seen.idle <= 0.03, "{:.4}", seen.idle);
}

#[test]
fn a_pod_that_claims_work_and_does_none_pays_for_it() {
    for claim in [5 * MS, 20 * MS, 100 * MS] {
        let seen = beside_a_neighbour(Manner::Claims(claim), 100_000);
        assert!(seen.neighbour >= 0.98 * SHARE, "{:.4}", seen.neighbour);
        // It has lost one token, and answers no probe.
        assert!(seen.idle <= 0.03, "{claim}: {:.4}", seen.idle);
    }
}

#[test]
fn a_suspended_process_gets_one_token_and_then_none_until_it_answers() {
    let manner = Manner::Stops {
        runs: 300 * MS,
        stands: 400 * MS,
        seen: false,
    };
    let seen = beside_a_neighbour(manner, 100_000);
    // It is suspended 28 times, and waits for a token each time.
    assert!(seen.revoked < 10, "{}", seen.revoked);
    assert!(seen.idle < 0.01, "{:.4}", seen.idle);
    assert!(seen.other > 0.29, "{:.4}", seen.other);
}

/// Returns a scheduler of two pods, in which process 0 holds a token for all SMs and process 1 waits for one.
fn held_and_waited_for(settings: Settings) -> Tokens {
    let mut tokens = Tokens::new(settings).unwrap();
    let quota = Quota::new(Share::NONE, Share::WHOLE).unwrap();
    let mut actions = Vec::new();
    for id in [0, 1] {
        tokens.add_pod(Time(0), PodId(id), quota).unwrap();
        let process = ProcessId(id);
        tokens
            .add_process(Time(0), process, PodId(id), SM_WHOLE, false, &mut actions)
            .unwrap();
        tokens.ask(Time(0), process, &mut actions);
    }
    assert!(tokens.occupies(ProcessId(0)) && !tokens.occupies(ProcessId(1)));
    tokens
}

/// Kernels may take longer than they did before.
#[test]
fn a_process_that_answers_keeps_its_token_for_as_long_as_its_work_takes() {
    let settings = Settings::default();
    let (holder, waiter) = (ProcessId(0), ProcessId(1));
    let mut tokens = held_and_waited_for(settings);
    let mut actions = Vec::new();
    // It has launched work which should take 1 ms and takes longer than its turn.
    let mut now = Time(0);
    let (mut probes, mut revoked_at) = (0, None);
    let mut asked_at = None;
    while now.0 < SECOND && revoked_at.is_none() {
        now = tokens.next_wake().unwrap();
        let work = ProcessUsage {
            process: holder,
            is_active: false,
            unfinished_since: Some(Time(0)),
            activity: Activity::Busy {
                since: Time(0),
                expected: Some(Span(MS)),
            },
        };
        let usage = Usage {
            pod: PodId(0),
            used: Span::ZERO,
            processes: &[work],
        };
        tokens.report(now, &usage);
        actions.clear();
        tokens.wake(now, &mut actions);
        for action in &actions {
            match action {
                Action::Probe { process } => {
                    assert_eq!(*process, holder);
                    probes += 1;
                    asked_at = Some(now);
                    // At the last moment, for half a second.
                    if now.0 < SECOND / 2 {
                        tokens.responds(now.after(Span(settings.answer_max.0 - 1)), holder);
                    }
                }
                Action::Revoke { process, reason } => {
                    assert_eq!((*process, *reason), (holder, RevokeReason::Unresponsive));
                    revoked_at = Some(now);
                }
                _ => {}
            }
        }
    }
    // Probes become less frequent, and once it has answered, it gets more time for the next answer.
    assert!((10..30).contains(&probes), "{probes}");
    let waited = revoked_at.unwrap().since(asked_at.unwrap());
    assert!(waited >= Span(10 * MS), "{waited:?}");
    assert!(tokens.occupies(waiter));
}

/// The charge ends where the work should have ended, however late the death is noticed.
#[test]
fn work_in_flight_at_a_death_is_charged() {
    let mut tokens = Tokens::new(Settings::default()).unwrap();
    let limit = Share::from_percent(10);
    let quota = Quota::new(Share::NONE, limit).unwrap();
    let (pod, process) = (PodId(0), ProcessId(0));
    let mut actions = Vec::new();
    let start = SECOND;
    tokens.add_pod(Time(start), pod, quota).unwrap();
    tokens
        .add_process(Time(start), process, pod, SM_WHOLE, false, &mut actions)
        .unwrap();
    tokens.ask(Time(start), process, &mut actions);
    assert!(tokens.occupies(process));
    let work = ProcessUsage {
        process,
        is_active: true,
        unfinished_since: Some(Time(start + 2 * MS)),
        activity: Activity::Busy {
            since: Time(start + 2 * MS),
            expected: Some(Span(30 * MS)),
        },
    };
    let usage = Usage {
        pod,
        used: Span::ZERO,
        processes: &[work],
    };
    tokens.report(Time(start + 3 * MS), &usage);
    tokens.remove_process(Time(start + SECOND), process, &mut actions);
    let account = tokens.account(pod).unwrap();
    assert_eq!((account.used, account.charged), (Span::ZERO, Span(30 * MS)));
    assert!(tokens.debt(pod) < Span(30 * MS));
}

/// Returns the time charged to a pod of which a process dies at 80 ms with work in flight since `since` ms that likely takes `likely` ms. `reports`: end of
/// each report in ms, and what was used since the last one. With `has_other`, another process of the pod had a token until the last report.
fn charged_at_a_death(since: u64, likely: u64, reports: &[(u64, u64)], has_other: bool) -> u64 {
    let mut tokens = Tokens::new(Settings::default()).unwrap();
    let quota = Quota::new(Share::NONE, Share::WHOLE).unwrap();
    let (pod, long, other) = (PodId(0), ProcessId(0), ProcessId(1));
    let mut actions = Vec::new();
    tokens.add_pod(Time(0), pod, quota).unwrap();
    for process in [long, other] {
        tokens
            .add_process(Time(0), process, pod, SM_WHOLE / 2, false, &mut actions)
            .unwrap();
        if process == long || has_other {
            tokens.ask(Time(0), process, &mut actions);
            assert!(tokens.occupies(process));
        }
    }
    let work = ProcessUsage {
        process: long,
        is_active: true,
        unfinished_since: Some(Time(since * MS)),
        activity: Activity::Busy {
            since: Time(since * MS),
            expected: Some(Span(likely * MS)),
        },
    };
    for &(at, used) in reports {
        let usage = Usage {
            pod,
            used: Span(used * MS),
            processes: &[work],
        };
        tokens.report(Time(at * MS), &usage);
        if at == 60 {
            tokens.closed(Time(at * MS), other, &mut actions);
        }
    }
    assert!(tokens.occupies(long) && !tokens.occupies(other));
    tokens.remove_process(Time(80 * MS), long, &mut actions);
    let account = tokens.account(pod).unwrap();
    let used: u64 = reports.iter().map(|(_, used)| used).sum();
    assert_eq!(account.used, Span(used * MS));
    account.charged.0 / MS
}

/// Another process of the pod computed beside it and was reported, and has no token any more.
#[test]
fn work_in_flight_at_a_death_is_not_charged_where_other_work_was_reported_beside_it() {
    let reports = [(3, 0), (30, 20), (60, 20)];
    assert_eq!(charged_at_a_death(2, 200, &reports, true), 80);
    assert_eq!(charged_at_a_death(0, 200, &reports, true), 80);
    // What was reported may have run after the likely end.
    assert_eq!(charged_at_a_death(0, 30, &[(3, 0), (60, 30)], true), 60);
}

/// The report of what ran before states when the next work has begun.
#[test]
fn work_in_flight_at_a_death_is_charged_beside_what_was_reported_before_it() {
    assert_eq!(charged_at_a_death(50, 200, &[(60, 50)], false), 80);
    assert_eq!(charged_at_a_death(40, 200, &[(60, 20)], false), 60);
}

/// Returns a scheduler which has revoked the token of a process that answers no probe, and what that process reports: work of 30 ms in flight.
fn revoked_amid_work() -> (Tokens, ProcessUsage) {
    let holder = ProcessId(0);
    let mut tokens = held_and_waited_for(Settings::default());
    let mut actions = Vec::new();
    let work = ProcessUsage {
        process: holder,
        is_active: false,
        unfinished_since: Some(Time(0)),
        activity: Activity::Busy {
            since: Time(0),
            expected: Some(Span(30 * MS)),
        },
    };
    let usage = Usage {
        pod: PodId(0),
        used: Span::ZERO,
        processes: &[work],
    };
    // It answers no probe.
    while tokens.occupies(holder) {
        let now = tokens.next_wake().unwrap();
        assert!(now.0 < SECOND);
        tokens.report(now, &usage);
        tokens.wake(now, &mut actions);
    }
    (tokens, work)
}

#[test]
fn work_charged_at_a_revocation_is_not_charged_again_when_it_is_reported() {
    let (mut tokens, _) = revoked_amid_work();
    let at_revocation = tokens.account(PodId(0)).unwrap().charged;
    assert!(at_revocation >= Span(30 * MS), "{at_revocation:?}");
    // It continues, and reports more than was expected.
    let now = tokens.next_wake().unwrap_or(Time(SECOND));
    let usage = Usage {
        pod: PodId(0),
        used: Span(34 * MS),
        processes: &[],
    };
    tokens.report(now, &usage);
    let account = tokens.account(PodId(0)).unwrap();
    assert_eq!(account.used, Span(34 * MS));
    let charged = account.charged;
    assert_eq!(charged.less(at_revocation), Span(4 * MS));
    // What it reports next is other work.
    tokens.report(now.after(Span(50 * MS)), &usage);
    let account = tokens.account(PodId(0)).unwrap();
    assert_eq!(account.charged.less(charged), Span(34 * MS));
}

/// A process that was stopped amid its work has its next token while that work is still in flight, and dies.
#[test]
fn work_charged_at_a_revocation_is_not_charged_again_at_a_death() {
    let (holder, waiter) = (ProcessId(0), ProcessId(1));
    let (mut tokens, work) = revoked_amid_work();
    let mut actions = Vec::new();
    let usage = Usage {
        pod: PodId(0),
        used: Span::ZERO,
        processes: &[work],
    };
    let charged = tokens.account(PodId(0)).unwrap().charged;
    assert!(charged >= Span(30 * MS), "{charged:?}");
    let mut now = Time(60 * MS);
    tokens.remove_process(now, waiter, &mut actions);
    tokens.ask(now, holder, &mut actions);
    while !tokens.occupies(holder) {
        actions.clear();
        tokens.wake(now, &mut actions);
        for action in &actions {
            if let Action::Probe { process } = action {
                tokens.responds(now, *process);
            }
        }
        now = now.after(Span(MS));
        assert!(now.0 < SECOND);
    }
    tokens.report(now, &usage);
    let death = now.after(Span(10 * MS));
    tokens.report(death, &usage);
    tokens.remove_process(death, holder, &mut actions);
    let account = tokens.account(PodId(0)).unwrap();
    assert_eq!(account.used, Span::ZERO);
    assert_eq!(account.charged, charged);
}
