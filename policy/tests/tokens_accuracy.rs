//! Accuracy of quotas on a machine whose hand-overs take time (docs/spec/targets.md: token accuracy).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

mod tokens_machine;

use policy::tokens::Settings;
use tokens_machine::{Ledger, MS, SECOND, Simulation, Work};

const WINDOW: u64 = 10 * SECOND;
const US20: u64 = 20_000;

/// Returns the worst error of each pod over all windows of 10 s, in parts per thousand of its quota, and whether it is
/// within 2 % of the quota or one launch.
fn worst_errors(
    simulation: &Simulation,
    from: u64,
    to: u64,
    launches: &[u64],
    only_short: bool,
) -> Vec<(i64, bool)> {
    simulation
        .ledgers
        .iter()
        .enumerate()
        .map(|(pod, ledger)| {
            let request = u64::from(simulation.quotas[pod].request().parts_per_million());
            let due = WINDOW / 1_000_000 * request;
            let mut worst = 0_i64;
            let mut start = from;
            while start + WINDOW <= to {
                let used = ledger.within(start, start + WINDOW);
                let error = used.cast_signed() - due.cast_signed();
                if error.abs() > worst.abs() && !(only_short && error > 0) {
                    worst = error;
                }
                start += 50 * MS;
            }
            let good = worst.unsigned_abs() <= (due / 50).max(launches[pod]);
            (worst * 1_000 / due.cast_signed().max(1), good)
        })
        .collect()
}

/// Runs pods with a request and work on all SMs each. If the requests leave a surplus, only shortfalls are errors.
fn check(name: &str, pods: &[(u32, Work)]) {
    let (errors, idle) = run(name, pods);
    assert!(errors.iter().all(|&(_, good)| good), "{name}: {errors:?}");
    assert!(idle <= 20, "{name}: idle {idle} ‰");
}

/// Returns the worst errors, and the idle time in parts per thousand.
fn run(name: &str, pods: &[(u32, Work)]) -> (Vec<(i64, bool)>, u64) {
    let mut simulation = Simulation::new(Settings::default());
    for &(percent, work) in pods {
        simulation.pod(percent * 10_000, 1_000_000, 10_000, &[work]);
    }
    let (from, end) = (2 * SECOND, 60 * SECOND);
    simulation.run(end);
    let whole = pods.iter().map(|&(percent, _)| percent).sum::<u32>() == 100;
    let launches: Vec<u64> = pods.iter().map(|(_, work)| work.launch()).collect();
    let errors = worst_errors(&simulation, from, end, &launches, !whole);
    let idle = simulation.idle_while_waiting * 1_000 / end;
    let share = |ledger: &Ledger| ledger.within(from, end) * 1_000 / (end - from);
    let shares: Vec<u64> = simulation.ledgers.iter().map(share).collect();
    println!(
        "{name}: worst errors over 10 s {errors:?} ‰, shares {shares:?} ‰, idle while waiting {idle} ‰, {} tokens",
        simulation.grants
    );
    (errors, idle)
}

#[test]
fn continuous_callers_get_their_quotas() {
    for (what, kernel) in [
        ("kernels of 20 µs", US20),
        ("graphs of 5 ms", 5 * MS),
        ("kernels of 50 ms", 50 * MS),
    ] {
        for shares in [&[10, 90][..], &[30, 70], &[20, 30, 50], &[5, 15, 30, 40]] {
            let pods: Vec<_> = shares
                .iter()
                .map(|&percent| (percent, Work::always(kernel)))
                .collect();
            check(&format!("{what}, {shares:?}"), &pods);
        }
    }
    let (long, short) = (Work::always(50 * MS), Work::always(US20));
    check("10 % with kernels of 50 ms", &[(10, long), (90, short)]);
    check("90 % with kernels of 50 ms", &[(10, short), (90, long)]);
}

#[test]
fn callers_that_pause_get_their_quotas() {
    for (percent, burst, pause) in [
        (10, 5, 5),
        (15, 5, 5),
        (20, 5, 5),
        (10, 20, 20),
        (30, 20, 20),
        (40, 20, 20),
    ] {
        let pods = [
            (percent, Work::pausing(US20, burst * MS, pause * MS)),
            (100 - percent, Work::always(US20)),
        ];
        check(&format!("{percent} % pausing {burst}/{pause} ms"), &pods);
    }
}

/// Each burst costs two hand-overs: 0.5 ms per 5 ms of a pod with 30 % is 3 % of the time in any order. Both pods lose
/// in proportion.
#[test]
fn unavoidable_losses_are_shared_in_proportion() {
    let pods = [
        (30, Work::pausing(US20, 5 * MS, 5 * MS)),
        (70, Work::always(US20)),
    ];
    let (errors, idle) = run("30 % pausing 5/5 ms", &pods);
    assert!(errors.iter().all(|&(error, _)| (-35..=0).contains(&error)));
    assert!(errors[0].0.abs_diff(errors[1].0) <= 5, "{errors:?}");
    assert!(idle <= 31);
}
