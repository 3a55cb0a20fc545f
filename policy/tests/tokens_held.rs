//! A pod that holds tokens and does not compute costs itself, not its neighbours, and the device is not idle for it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

mod tokens_machine;

use policy::tokens::{SM_WHOLE, Settings};
use tokens_machine::{MS, Manner, SECOND, Simulation, Work};

const SPAN: u64 = 20 * SECOND;
/// What the neighbour gets undisturbed: its request, less hand-overs.
const SHARE: f64 = 0.697;

struct Seen {
    /// Of the time.
    other: f64,
    neighbour: f64,
    idle: f64,
    held_idle: f64,
    revoked: u64,
}

/// One pod with a request of 30 % and this manner beside a neighbour with 70 % which always computes, both with kernels of `kernel`.
fn beside_a_neighbour(manner: Manner, kernel: u64) -> Seen {
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
    let account = simulation.tokens.account(policy::tokens::PodId(0)).unwrap();
    let seen = Seen {
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
fn a_pod_that_asks_and_never_launches_costs_its_neighbour_nothing() {
    let seen = beside_a_neighbour(Manner::NeverLaunches, 100_000);
    assert!(seen.neighbour > 0.97, "{:.4}", seen.neighbour);
    assert!(seen.idle <= 0.03, "{:.4}", seen.idle);
}

#[test]
fn a_pod_that_claims_work_and_does_none_pays_for_it() {
    for claim in [5 * MS, 20 * MS, 100 * MS] {
        let seen = beside_a_neighbour(Manner::Claims(claim), 100_000);
        assert!(seen.neighbour >= 0.98 * SHARE, "{:.4}", seen.neighbour);
    }
}
