//! The token scheduler at the extremes of its numeric types.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod tokens_machine;

use policy::tokens::{PodId, ProcessId, Quota, Rule, Settings, Share, Tokens};
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
                    5 => tokens.used(
                        at,
                        pod,
                        Span(TIMES[usize::try_from(random.below(8)).unwrap()]),
                    ),
                    6 => tokens.unfinished(at, process, Some(Time(random.next()))),
                    7 => tokens.closed(at, process, &mut actions),
                    8 => tokens.wake(at, &mut actions),
                    _ => tokens.active(at, process),
                }
            }
        }
    }
}
