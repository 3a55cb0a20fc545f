//! Elastic quotas, limits and changes on the machine (M4.8, invariant 5).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

mod tokens_machine;

use policy::tokens::{PodId, ProcessId, Quota, Rule, Settings, Share, Tokens};
use policy::{Span, Time};
use tokens_machine::{MS, SECOND, Simulation, Work};

const US20: u64 = 20_000;
const WHOLE: u32 = 1_000_000;

/// Each pod takes the surplus of the other within a slice; a pod that resumes gets its request at once.
#[test]
fn elastic_pairs_borrow_and_give_back() {
    let mut simulation = Simulation::new(Settings::default());
    // Six seconds of work, then three of pause.
    let small = simulation.pod(100_000, WHOLE, 10_000, &[Work::always(US20)]);
    let work = Work::pausing(US20, 3 * SECOND, 3 * SECOND);
    let large = simulation.pod(500_000, WHOLE, 10_000, &[work]);
    simulation.run(60 * SECOND);
    let pauses: Vec<(u64, u64)> = simulation.ledgers[large]
        .busy
        .windows(2)
        .map(|pair| (pair[0].1, pair[1].0))
        .filter(|(from, to)| to - from > 2 * SECOND && *to < 55 * SECOND)
        .collect();
    assert!(pauses.len() > 4, "{pauses:?}");
    for (from, to) in pauses {
        let back = from + 3 * SECOND;
        let alone = simulation.ledgers[small].within(from + 100 * MS, back);
        let first = to - back;
        let shares: Vec<u64> = [200, 500, 1_000, 2_000, 4_000]
            .iter()
            .map(|&ms| simulation.ledgers[small].within(back, back + ms * MS) * 1_000 / (ms * MS))
            .collect();
        println!(
            "idle at {} ms: the other had {} of {} ms, then {} µs until its return, small's shares {shares:?}",
            from / MS,
            alone / MS,
            2_900,
            first / 1_000,
        );
        assert!(alone >= 2_899 * MS);
        assert!(first <= 5 * MS);
        let large_share = simulation.ledgers[large].within(back, back + SECOND);
        assert!(large_share >= 500 * MS, "{large_share}");
        let small_share = simulation.ledgers[small].within(back, back + 2 * SECOND);
        assert!(small_share >= 200 * MS, "{small_share}");
    }
}

#[test]
fn surplus_is_shared_evenly_and_reaches_pods_without_a_request() {
    let mut simulation = Simulation::new(Settings::default());
    let pods = [0, 100_000, 300_000]
        .map(|request| simulation.pod(request, WHOLE, 10_000, &[Work::always(US20)]));
    simulation.run(30 * SECOND);
    let shares = pods
        .map(|pod| simulation.ledgers[pod].within(2 * SECOND, 30 * SECOND) * 1_000 / (28 * SECOND));
    println!("requests 0, 0.1, 0.3: shares {shares:?} ‰");
    // 0.6 is left: 0.2 for each.
    for (share, expected) in shares.iter().zip([200_u64, 300, 500]) {
        assert!(share.abs_diff(expected) <= 20, "{shares:?}");
    }
}

#[test]
fn surplus_of_two_is_shared_evenly() {
    let mut simulation = Simulation::new(Settings::default());
    let pods = [100_000, 500_000]
        .map(|request| simulation.pod(request, WHOLE, 10_000, &[Work::always(US20)]));
    simulation.run(30 * SECOND);
    let shares = pods
        .map(|pod| simulation.ledgers[pod].within(2 * SECOND, 30 * SECOND) * 1_000 / (28 * SECOND));
    println!("requests 0.1, 0.5: shares {shares:?} ‰");
    for (share, expected) in shares.iter().zip([300_u64, 700]) {
        assert!(share.abs_diff(expected) <= 20, "{shares:?}");
    }
}

#[test]
fn a_launch_of_five_seconds_at_a_limit_of_a_tenth_stops_its_pod_for_fifty() {
    let mut simulation = Simulation::new(Settings::default());
    let pod = simulation.pod(0, 100_000, 10_000, &[Work::always(5 * SECOND)]);
    simulation.run(160 * SECOND);
    let busy = &simulation.ledgers[pod].busy;
    println!("{busy:?}");
    for pair in busy.windows(2) {
        let (begin, next) = (pair[0].0, pair[1].0);
        assert!(
            (48 * SECOND..=51 * SECOND).contains(&(next - begin)),
            "{busy:?}"
        );
    }
    assert!(busy.len() >= 3);
}

/// Over any 10 s a pod gets at most its limit plus one launch, however its demand varies; and not much less if it
/// always wants more.
#[test]
fn limits_hold_over_any_ten_seconds() {
    for (limit, kernel) in [
        (10, US20),
        (10, 50 * MS),
        (50, US20),
        (50, 5 * MS),
        (90, US20),
        (99, US20),
    ] {
        for (name, work) in [
            ("always", Work::always(kernel)),
            ("2 s of 5 s", Work::pausing(kernel, 2 * SECOND, 3 * SECOND)),
            ("10 ms of 20 ms", Work::pausing(kernel, 10 * MS, 10 * MS)),
            (
                "12 s of 30 s",
                Work::pausing(kernel, 12 * SECOND, 18 * SECOND),
            ),
        ] {
            let mut simulation = Simulation::new(Settings::default());
            let ppm = limit * 10_000;
            let pod = simulation.pod(ppm / 2, ppm, 5_000, &[work]);
            simulation.pod(
                100_000,
                WHOLE,
                5_000,
                &[Work::pausing(US20, 3 * MS, 2 * MS)],
            );
            let end = 100 * SECOND;
            simulation.run(end);
            let ledger = &simulation.ledgers[pod];
            let due = u64::from(limit) * 10 * SECOND / 100;
            let most = (0..(end - 10 * SECOND) / (10 * MS))
                .map(|at| ledger.within(at * 10 * MS, at * 10 * MS + 10 * SECOND))
                .max()
                .unwrap();
            let share = ledger.within(20 * SECOND, end) * 1_000 / (end - 20 * SECOND);
            println!(
                "limit {limit} %, kernels of {} µs, {name}: worst excess {} µs over 10 s, share {share} ‰",
                kernel / 1_000,
                (most.cast_signed() - due.cast_signed()) / 1_000
            );
            assert!(most <= due + kernel + MS, "{most}");
            if name == "always" {
                assert!(share >= u64::from(limit) * 98 / 10, "{share}");
            }
        }
    }
}

#[test]
fn a_limit_of_one_never_closes() {
    let mut simulation = Simulation::new(Settings::default());
    let pod = simulation.pod(0, WHOLE, 5_000, &[Work::always(US20)]);
    simulation.pod(500_000, 500_000, 5_000, &[Work::always(US20)]);
    simulation.run(60 * SECOND);
    assert_eq!(simulation.ledgers[pod].busy.len(), 1);
    assert!(simulation.ledgers[pod].within(0, 60 * SECOND) > 60 * SECOND - MS);
}

#[test]
fn a_quota_change_takes_effect_within_a_cycle_or_two() {
    let mut simulation = Simulation::new(Settings::default());
    let one = simulation.pod(200_000, WHOLE, 10_000, &[Work::always(US20)]);
    let other = simulation.pod(800_000, WHOLE, 10_000, &[Work::always(US20)]);
    let percent = Share::from_percent;
    simulation.quota_at(20 * SECOND, one, percent(80), percent(100));
    simulation.quota_at(20 * SECOND, other, percent(20), percent(100));
    simulation.run(40 * SECOND);
    let share = |from: u64, to: u64| simulation.ledgers[one].within(from, to) * 1_000 / (to - from);
    let (before, after) = (
        share(10 * SECOND, 20 * SECOND),
        share(20 * SECOND + 500 * MS, 40 * SECOND),
    );
    println!("before {before} ‰, after {after} ‰");
    assert!(before.abs_diff(200) <= 4 && after.abs_diff(800) <= 16);
}

/// The second process of a pod adds no time but occupies its SMs, so both take turns.
#[test]
fn a_pod_with_two_processes_counts_twice() {
    let mut simulation = Simulation::new(Settings::default());
    let twins = simulation.pod(
        500_000,
        WHOLE,
        5_000,
        &[Work::always(US20), Work::always(US20)],
    );
    let single = simulation.pod(500_000, WHOLE, 6_000, &[Work::always(US20)]);
    simulation.run(30 * SECOND);
    let share = |pod: usize| {
        simulation.ledgers[pod].within(2 * SECOND, 30 * SECOND) * 1_000 / (28 * SECOND)
    };
    let (twins, single) = (share(twins), share(single));
    println!("two processes of 50 %: {twins} ‰, one of 60 %: {single} ‰");
    assert!(twins.abs_diff(500) <= 20 && single.abs_diff(500) <= 20);
}

#[test]
fn two_processes_of_one_pod_take_turns() {
    let mut simulation = Simulation::new(Settings::default());
    simulation.pod(
        500_000,
        WHOLE,
        10_000,
        &[Work::always(US20), Work::always(US20)],
    );
    simulation.run(10 * SECOND);
    println!("{} grants", simulation.grants);
    assert!(simulation.grants > 100);
}

/// The gate of a pod that always wants more than its limit is shut often and briefly, not rarely and for long: a
/// request that waits for a shut gate is as late as the gate is shut.
#[test]
fn a_gate_at_its_limit_is_never_shut_for_longer_than_usual() {
    let cycle = Settings::default().cycle.0;
    for percent in [5_u32, 10, 24, 50, 80, 95, 99] {
        for kernel in [US20, 5 * MS, 8 * MS, 13 * MS, 15 * MS, 16 * MS, 18 * MS] {
            let mut simulation = Simulation::new(Settings::default());
            let ppm = percent * 10_000;
            let pod = simulation.pod(0, ppm, 2_400, &[Work::always(kernel)]);
            let end = 120 * SECOND;
            simulation.run(end);
            let ledger = &simulation.ledgers[pod];
            let busy = ledger.busy.windows(2);
            let mut gaps: Vec<_> = busy.map(|pair| pair[1].0 - pair[0].1).collect();
            gaps.sort_unstable();
            let (usual, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
            let of_limit = ledger.within(20 * SECOND, end) / u64::from(percent) / (SECOND / 1_000);
            println!(
                "limit {percent} %, kernels of {} µs: shut for {} ms at most, {} ms usually; {of_limit} ‰ of the limit",
                kernel / 1_000,
                longest / MS,
                usual / MS
            );
            assert!(usual >= cycle && longest <= usual + 2 * MS, "{longest}");
            assert!((988..=1_000).contains(&of_limit), "{of_limit}");
        }
    }
}

/// The cost of even pauses: at limits with turns hardly longer than the work in flight, a few percent of the limit.
#[test]
fn small_limits_are_used_except_for_a_few_percent() {
    for (ppm, least) in [(10_000_u32, 978), (4_000, 948), (1_000, 948)] {
        let mut simulation = Simulation::new(Settings::default());
        let pod = simulation.pod(0, ppm, 10_000, &[Work::always(US20)]);
        let end = 1_000 * SECOND;
        simulation.run(end);
        let used = simulation.ledgers[pod].within(20 * SECOND, end);
        let of_limit = used * 1_000 / (u64::from(ppm) * 980 * 1_000);
        println!("limit {ppm} ppm: {of_limit} ‰ of it");
        assert!((least..=1_000).contains(&of_limit), "{of_limit}");
    }
}

#[test]
fn work_in_flight_is_bounded_at_limits_and_for_a_window_after_a_wait() {
    let settings = Settings::default();
    let (bound, alone) = (settings.in_flight, settings.in_flight_alone);
    let mut tokens = Tokens::new(settings).unwrap();
    let mut actions = Vec::new();
    let now = Time(SECOND);
    let limited = Quota::new(Share::NONE, Share::from_percent(99)).unwrap();
    let free = Quota::new(Share::NONE, Share::WHOLE).unwrap();
    for (pod, quota) in [(0, free), (1, limited), (2, free)] {
        let (pod, process) = (PodId(pod), ProcessId(pod));
        tokens.add_pod(now, pod, quota).unwrap();
        tokens
            .add_process(now, process, pod, 10_000, false, &mut actions)
            .unwrap();
    }
    let of = |tokens: &Tokens, at: Time| [0, 1, 7].map(|pod| tokens.in_flight(at, PodId(pod)));
    assert_eq!(of(&tokens, now), [alone, bound, bound]);
    tokens.ask(now, ProcessId(0), &mut actions);
    assert_eq!(of(&tokens, now), [alone, bound, bound]);
    tokens.ask(now, ProcessId(2), &mut actions);
    assert_eq!(of(&tokens, now), [bound; 3]);
    // It still waits, and then no longer.
    let then = now.after(settings.window);
    tokens.wake(then, &mut actions);
    assert_eq!(of(&tokens, then), [bound; 3]);
    tokens.closed(then, ProcessId(2), &mut actions);
    let over = then.after(settings.window);
    assert_eq!(of(&tokens, over.before(Span(1))), [bound; 3]);
    assert_eq!(of(&tokens, over), [alone, bound, bound]);
    // A pod that is never closed needs no bound.
    let racing = Settings {
        rule: Rule::Racing,
        ..settings
    };
    let mut tokens = Tokens::new(racing).unwrap();
    tokens.add_pod(now, PodId(1), limited).unwrap();
    assert_eq!(tokens.in_flight(now, PodId(1)), alone);
}
