//! Cost of a turn. Target: ask, grant and closed within 2 µs with 200 pods, and with as many waiting pods as a GPU has
//! MPS clients (60).

use divan::{Bencher, black_box};
use policy::tokens::{Action, PodId, ProcessId, Quota, Rule, Settings, Share, Tokens, Usage};
use policy::{Span, Time};

fn main() {
    divan::main();
}

/// All pods wait for one GPU, and one holds the token: it is used and closed, its process asks again, and the next gets
/// it.
#[divan::bench(args = [2, 20, 60, 200])]
fn a_turn_of_many_that_wait(bencher: Bencher<'_, '_>, pods: u32) {
    let mut tokens = slot(Rule::Weir, pods, 10_000);
    let mut actions = Vec::new();
    for n in 0..pods {
        tokens.ask(Time(0), ProcessId(n), &mut actions);
    }
    let mut holder = granted(&actions).expect("the first gets a token");
    let mut now = 0;
    bencher.bench_local(|| {
        now += 2_000_000;
        actions.clear();
        let at = Time(black_box(now));
        let usage = Usage {
            pod: PodId(holder.0),
            used: Span(1_900_000),
            processes: &[],
        };
        tokens.report(at, &usage);
        tokens.closed(at, holder, &mut actions);
        let next = granted(&actions).expect("the next gets a token");
        tokens.ask(at, holder, &mut actions);
        holder = next;
    });
}

/// One of many pods acquires free SMs and releases them.
#[divan::bench(args = [Rule::Weir, Rule::Paper, Rule::Racing])]
fn ask_and_closed_with_200_pods(bencher: Bencher<'_, '_>, rule: Rule) {
    let mut tokens = slot(rule, 200, 100);
    let mut actions = Vec::new();
    let mut n = 0;
    bencher.bench_local(|| {
        n += 1;
        actions.clear();
        let process = ProcessId(n % 200);
        let at = Time(u64::from(n) * 1_000);
        tokens.ask(at, process, &mut actions);
        assert!(granted(&actions) == Some(process));
        tokens.closed(at, process, &mut actions);
    });
}

#[divan::bench(args = [2, 20, 60, 200])]
fn wake_while_many_wait(bencher: Bencher<'_, '_>, pods: u32) {
    let mut tokens = slot(Rule::Weir, pods, 10_000);
    let mut actions = Vec::new();
    for n in 0..pods {
        tokens.ask(Time(0), ProcessId(n), &mut actions);
    }
    let mut now = 0;
    bencher.bench_local(|| {
        now += 1;
        tokens.wake(Time(black_box(now)), &mut actions);
        actions.clear();
    });
}

fn slot(rule: Rule, pods: u32, sm: u32) -> Tokens {
    let settings = Settings {
        rule,
        ..Settings::default()
    };
    let mut tokens = Tokens::new(settings).expect("good settings");
    let request = Share::from_parts_per_million(900_000 / pods).expect("below one");
    let quota = Quota::new(request, Share::WHOLE).expect("request below limit");
    let mut actions = Vec::new();
    for n in 0..pods {
        tokens.add_pod(Time(0), PodId(n), quota).expect("a new pod");
        tokens
            .add_process(Time(0), ProcessId(n), PodId(n), sm, false, &mut actions)
            .expect("a new process");
    }
    tokens
}

fn granted(actions: &[Action]) -> Option<ProcessId> {
    actions.iter().find_map(|action| match *action {
        Action::Grant { process, .. } => Some(process),
        _ => None,
    })
}
