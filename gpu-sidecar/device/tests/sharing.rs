//! Sharing of the SMs, against results worked out by hand.

use device::compute::{Compute, Kernel, MpsServer, Turns};
use device::law::Law;
use device::ledger::{Entry, Job, Ledger, ProcessId, Resource, WorkId};
use device::{Span, Time};

const ONE: ProcessId = ProcessId(1);
const TWO: ProcessId = ProcessId(2);

const SERVER: Option<MpsServer> = Some(MpsServer(0));
const TURNS: Turns = Turns {
    slice: Span::from_millis(2),
    switch: Span(200_000),
};

const fn work(command: u64) -> WorkId {
    WorkId { command, node: 0 }
}

const fn job(command: u64, process: ProcessId) -> Job {
    Job {
        work: work(command),
        process,
        tag: 0,
    }
}

fn kernel(duration: Span, sms: u32, law: Law) -> Kernel {
    Kernel {
        duration,
        sms,
        law,
        interference_millionths: 0,
    }
}

/// Runs until all kernels have ended, and returns their ends, sorted by number.
fn run(compute: &mut Compute, ledger: &mut Ledger) -> Vec<(WorkId, Time)> {
    let mut ends = Vec::new();
    compute.share(ledger);
    while let Some(next) = compute.next() {
        let mut ended = Vec::new();
        compute.advance(next, &mut ended, ledger);
        compute.share(ledger);
        ends.extend(ended.into_iter().map(|job: Job| (job.work, next)));
    }
    ends.sort_unstable();
    ends
}

fn time_slices() -> Compute {
    let mut compute = Compute::new(0, 80, 80, TURNS);
    compute.admit(ONE, 80, None);
    compute.admit(TWO, 80, None);
    compute
}

#[test]
fn two_processes_take_turns_and_pay_for_each_switch() {
    let (mut compute, mut ledger) = (time_slices(), Ledger::default());
    let five = kernel(Span::from_millis(5), 80, Law::Linear);
    compute.start(job(1, ONE), &five);
    compute.start(job(2, TWO), &five);
    // First process: 0 – 2, 4.4 – 6.4, 8.8 – 9.8 ms. Second: 2.2 – 4.2, 6.6 – 8.6, 10 – 11 ms.
    let ends = run(&mut compute, &mut ledger);
    assert_eq!(
        ends,
        [(work(1), Time(9_800_000)), (work(2), Time(11_000_000))]
    );
    let turns: Vec<_> = ledger
        .take()
        .iter()
        .map(|entry| {
            (
                entry.process.0,
                entry.from.0 / 100_000,
                entry.to.0 / 100_000,
            )
        })
        .collect();
    assert_eq!(
        turns,
        [
            (1, 0, 20),
            (2, 22, 42),
            (1, 44, 64),
            (2, 66, 86),
            (1, 88, 98),
            (2, 100, 110)
        ]
    );
}

#[test]
fn a_lone_process_runs_without_turns() {
    let (mut compute, mut ledger) = (time_slices(), Ledger::default());
    let five = kernel(Span::from_millis(5), 80, Law::Linear);
    compute.start(job(1, ONE), &five);
    assert_eq!(run(&mut compute, &mut ledger), [(work(1), Time(5_000_000))]);
    // Resuming after idle time costs no switch either.
    compute.start(job(2, ONE), &five);
    assert_eq!(
        run(&mut compute, &mut ledger),
        [(work(2), Time(10_000_000))]
    );
    assert_eq!(ledger.take().len(), 2);
}

#[test]
fn a_late_process_waits_for_the_rest_of_the_turn() {
    let (mut compute, mut ledger) = (time_slices(), Ledger::default());
    let five = kernel(Span::from_millis(5), 80, Law::Linear);
    let short = kernel(Span::from_millis(1), 80, Law::Linear);
    compute.start(job(1, ONE), &five);
    compute.share(&mut ledger);
    compute.advance(Time(1_500_000), &mut Vec::new(), &mut ledger);
    compute.start(job(2, TWO), &short);
    let ends = run(&mut compute, &mut ledger);
    assert_eq!(
        ends,
        [(work(1), Time(6_400_000)), (work(2), Time(3_200_000))]
    );
}

#[test]
fn oversubscribed_shares_slow_all_kernels_in_proportion() {
    let (mut compute, mut ledger) = (Compute::new(0, 80, 80, TURNS), Ledger::default());
    compute.admit(ONE, 48, SERVER);
    compute.admit(TWO, 48, SERVER);
    let ten = kernel(Span::from_millis(10), 80, Law::Linear);
    compute.start(job(1, ONE), &ten);
    compute.start(job(2, TWO), &ten);
    // Each requests 60 %, 120 % in total, and gets half: 10 ms / 0.5.
    let ends = run(&mut compute, &mut ledger);
    for (_, end) in ends {
        assert!(end.0.abs_diff(20_000_000) <= 1, "{end:?}");
    }
    let entries = ledger.take();
    assert!(
        entries.iter().all(|entry| entry.amount == 40_000),
        "{entries:?}"
    );
}

#[test]
fn a_limit_applies_to_all_streams_of_a_process_together() {
    let (mut compute, mut ledger) = (Compute::new(0, 80, 80, TURNS), Ledger::default());
    compute.admit(ONE, 20, SERVER);
    let kernel = kernel(Span::from_millis(3), 20, Law::Linear);
    for n in 0..4 {
        compute.start(job(n, ONE), &kernel);
    }
    for (_, end) in run(&mut compute, &mut ledger) {
        assert!(end.0.abs_diff(12_000_000) <= 1, "{end:?}");
    }
}

#[test]
fn sms_of_a_dismissed_process_go_to_the_others() {
    let (mut compute, mut ledger) = (Compute::new(0, 80, 80, TURNS), Ledger::default());
    compute.admit(ONE, 80, SERVER);
    compute.admit(TWO, 80, SERVER);
    let ten = kernel(Span::from_millis(10), 80, Law::Linear);
    compute.start(job(1, ONE), &ten);
    compute.start(job(2, TWO), &ten);
    compute.share(&mut ledger);
    compute.advance(Time(4_000_000), &mut Vec::new(), &mut ledger);
    compute.dismiss(TWO, &mut ledger);
    // 4 ms at half speed, then 8 ms alone.
    let ends = run(&mut compute, &mut ledger);
    assert_eq!(ends, [(work(1), Time(12_000_000))]);
    let first = ledger.take()[1];
    let resource = Resource::Sms { unit: 0 };
    let (from, to) = (Time(0), Time(4_000_000));
    let work = Some(work(1));
    assert_eq!(
        first,
        Entry {
            resource,
            process: ONE,
            work,
            amount: 40_000,
            from,
            to
        }
    );
}

/// FaST-GShare's saturated pods (workloads §8): model, T₁ in requests/s, scaling law, κ in millionths, number of pods of 12 %,
/// and printed throughput in requests/s.
const PODS: [(&str, f64, Law, u32, u32, f64); 3] = [
    (
        "ResNet",
        71.37,
        Law::Saturating { at: 0.24 },
        74_000,
        7,
        296.8,
    ),
    (
        "RNNT",
        12.51,
        Law::Saturating { at: 0.24 },
        123_000,
        7,
        43.24,
    ),
    (
        "GNMT",
        28.85,
        Law::Saturating { at: 0.80 },
        177_000,
        7,
        43.79,
    ),
];

#[test]
fn saturated_pods_reach_the_printed_throughput() {
    for (name, rate, law, interference_millionths, pods, printed) in PODS {
        let (mut compute, mut ledger) = (Compute::new(0, 100, 100, TURNS), Ledger::default());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some milliseconds"
        )]
        let duration = Span((1e9 / rate) as u64);
        let request = Kernel {
            interference_millionths,
            ..kernel(duration, 100, law)
        };
        for pod in 0..pods {
            compute.admit(ProcessId(pod), 12, SERVER);
            compute.start(job(pod.into(), ProcessId(pod)), &request);
        }
        let (_, end) = run(&mut compute, &mut ledger).pop().unwrap();
        let together = f64::from(pods) / end.since(Time::ZERO).as_secs_f64();
        assert!(
            (together / printed - 1.0).abs() < 0.01,
            "{name}: {together}"
        );
    }
}
