//! A warm scheduler allocates nothing per event, as counted by this test's own allocator.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use policy::tokens::{
    Action, Activity, PodId, ProcessId, ProcessUsage, Quota, Rule, Settings, Share, Tokens, Usage,
};
use policy::{Span, Time};

/// Runs fifty pods that take turns. Returns the number of grants.
fn work(tokens: &mut Tokens, actions: &mut Vec<Action>, from: u64) -> u64 {
    let mut grants = 0;
    for n in from..from + 20_000 {
        let now = Time(n * 100_000);
        let spread = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let at = u32::try_from(spread % 50).unwrap();
        match n % 5 {
            0 | 1 => tokens.ask(now, ProcessId(at), actions),
            2 => {
                let process = ProcessUsage {
                    process: ProcessId(at),
                    is_active: true,
                    unfinished_since: None,
                    activity: Activity::Unknown,
                };
                let usage = Usage {
                    pod: PodId(at),
                    used: Span(spread % 300_000),
                    processes: &[process],
                };
                tokens.report(now, &usage);
            }
            3 => tokens.closed(now, ProcessId(at), actions),
            _ => tokens.wake(now, actions),
        }
        for at in 0..actions.len() {
            match actions[at] {
                Action::Grant { .. } => grants += 1,
                Action::Close { process, .. } if n % 2 == 0 => {
                    let mut more = std::mem::take(actions);
                    more.clear();
                    tokens.closed(now, process, &mut more);
                    *actions = more;
                    break;
                }
                _ => {}
            }
        }
        actions.clear();
    }
    grants
}

#[test]
fn a_warm_scheduler_allocates_nothing() {
    for rule in [
        Rule::Weir,
        Rule::Paper,
        Rule::ReactiveBucket,
        Rule::TimeOnly,
        Rule::Exclusive,
        Rule::Racing,
    ] {
        let mut tokens = Tokens::new(Settings {
            rule,
            ..Settings::default()
        })
        .unwrap();
        let mut actions = Vec::with_capacity(200);
        for n in 0..50 {
            let limit = Share::from_percent(if n % 3 == 0 { 30 } else { 100 });
            let quota = Quota::new(Share::from_percent(2), limit).unwrap();
            tokens.add_pod(Time(0), PodId(n), quota).unwrap();
            let sm = 500 + n * 50;
            tokens
                .add_process(Time(0), ProcessId(n), PodId(n), sm, false, &mut actions)
                .unwrap();
        }
        let warm = work(&mut tokens, &mut actions, 0);
        let mut grants = 0;
        let counted = allocation_counter::measure(|| {
            grants = work(&mut tokens, &mut actions, 20_000);
        });
        println!("{rule:?}: {warm} and {grants} grants");
        assert!(warm + grants > 0, "{rule:?}");
        assert_eq!(counted.count_total, 0, "{rule:?}: {counted:?}");
    }
}
