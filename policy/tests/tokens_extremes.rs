//! The token scheduler at the extremes of its numeric types.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod tokens_machine;

use policy::tokens::{
    Activity, PodId, ProcessId, ProcessUsage, Quota, Rule, Settings, Share, Tokens, Usage,
};
use policy::{Span, Time};
use testing::Random;
use tokens_machine::{MS, SECOND};

const RULES: [Rule; 6] = [
    Rule::Weir,
    Rule::Paper,
    Rule::ReactiveBucket,
    Rule::TimeOnly,
    Rule::Exclusive,
    Rule::Racing,
];

/// Clocks that stop or jump, and the largest representable numbers.
#[test]
fn extreme_times_and_amounts_are_handled() {
    const TIMES: [u64; 8] = [
        0,
        1,
        5,
        MS,
        77 * SECOND,
        u64::MAX / 2,
        u64::MAX - 1,
        u64::MAX,
    ];
    for rule in RULES {
        for seed in 0..200 {
            let mut random = Random(seed);
            let mut tokens = Tokens::new(Settings {
                rule,
                ..Settings::default()
            })
            .unwrap();
            let mut actions = Vec::new();
            let reach = usize::try_from(3 + seed % 6).unwrap();
            for _ in 0..200 {
                let time = TIMES[usize::try_from(random.next() % reach as u64).unwrap()];
                let at = Time(time);
                let small = u32::try_from(random.below(3)).unwrap();
                let (pod, process) = (PodId(small), ProcessId(small));
                let share = |ppm| Share::from_parts_per_million(ppm).unwrap();
                let quotas = [
                    (0, 0),
                    (0, 1),
                    (1, 1),
                    (1, 1_000_000),
                    (1_000_000, 1_000_000),
                ];
                let (request, limit) = quotas[usize::try_from(random.below(5)).unwrap()];
                let quota = Quota::new(share(request), share(limit)).unwrap();
                match random.below(10) {
                    0 => drop(tokens.add_pod(at, pod, quota)),
                    1 => drop(tokens.set_quota(at, pod, quota, &mut actions)),
                    2 => drop(tokens.add_process(at, process, pod, 7_000, time == 5, &mut actions)),
                    3 | 4 => tokens.ask(at, process, &mut actions),
                    5 => {
                        let used = Span(TIMES[usize::try_from(random.below(8)).unwrap()]);
                        let usage = Usage {
                            pod,
                            used,
                            processes: &[],
                        };
                        tokens.report(at, &usage);
                    }
                    6 | 9 => {
                        let mut time = || Time(random.next());
                        let work = [
                            Activity::Unknown,
                            Activity::Idle { since: time() },
                            Activity::Busy {
                                since: time(),
                                expected: Some(Span(time().0)),
                            },
                        ];
                        let own = ProcessUsage {
                            process,
                            is_active: time().0 % 2 == 0,
                            unfinished_since: (time().0 % 2 == 0).then(&mut time),
                            activity: work[usize::try_from(time().0 % 3).unwrap()],
                        };
                        let usage = Usage {
                            pod,
                            used: Span::ZERO,
                            processes: &[own],
                        };
                        tokens.report(at, &usage);
                    }
                    7 => tokens.closed(at, process, &mut actions),
                    _ => tokens.wake(at, &mut actions),
                }
            }
        }
    }
}
