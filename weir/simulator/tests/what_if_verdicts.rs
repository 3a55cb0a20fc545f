//! The answer of a sweep: the value, its certainty, and the command that would decide what is open.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::Span;
use simulator::random::Streams;
use simulator::rules::RuleName;
use simulator::traces::{Options, Source, open};
use simulator::what_if::{
    Answer, Axis, Cluster, Functions, Limit, Load, Outcome, Runs, Scenario, Window, table, verdicts,
};

/// Returns an answer with these numbers of functions with requests, keeping their objectives, and undecided.
fn answer(gpus: u32, called: usize, keeping: usize, undecided: usize, in_time: f64) -> Answer {
    let cluster = Cluster::from_toml(
        "c",
        "[node]\ngpus = 1\nmodels_gb = 20\nhost_gb = 100\n[link]\nhost_gb_per_s = 10\n",
    )
    .unwrap();
    let functions = Functions::from_toml(
        "f",
        "[default]\nobjective_ms = 100\n[[model]]\nname = \"m\"\nweights_mb = 200\nexecution_ms = 30\n",
    )
    .unwrap();
    let trace = Source::bytes("t", b"arrival_s,function\n0.5,a\n1.5,a\n2.5,a\n");
    let workload = open(&trace, &Options::new(Streams::new("t", 1))).unwrap();
    let window = Window {
        length: Span::from_secs(10),
        ..Window::default()
    };
    let load = Load::read(workload, window, &mut |_| true).unwrap();
    let scenario = Scenario::new(&cluster, &functions, &load).unwrap();
    let mut own = scenario
        .run(scenario.point(RuleName::Adaptive), &mut |_| true)
        .unwrap();
    (own.gpus, own.gpus_per_node, own.seeds) = (gpus, gpus, 10);
    (own.functions_called, own.functions_keeping) = (called, keeping);
    own.functions_undecided = undecided;
    own.attainment.mean = in_time;
    if keeping < called {
        own.binding.limit = Limit::GpuTime;
    }
    own
}

fn of(answers: Vec<Answer>) -> (simulator::what_if::Verdict, Answer) {
    let mut runs = Runs::default();
    for answer in answers {
        runs.push(answer);
    }
    let verdict = verdicts(runs.answers(), Some(Axis::Gpus)).remove(0);
    (verdict, runs.shown().unwrap().clone())
}

#[test]
fn a_nearly_sure_value_is_probably_with_the_deciding_command() {
    let (own, shown) = of(vec![
        answer(6, 380, 300, 20, 0.9),
        answer(7, 380, 376, 4, 0.99),
    ]);
    assert_eq!(own.outcome, Outcome::Probably);
    assert!(!own.holds);
    assert_eq!((own.value, shown.gpus), (Some(7.0), 7));
    assert!(
        own.sentence.starts_with(
            "Probably 7 GPUs: 376 of 380 functions are sure to keep their objectives, 4 are undecided"
        ),
        "{}",
        own.sentence
    );
    assert_eq!(own.next, "--seeds 40 --sweep gpus=7");
    assert!(
        own.more
            .ends_with("--seeds 40 --sweep gpus=7 would settle it."),
        "{}",
        own.more
    );
}

#[test]
fn a_value_undecided_for_most_functions_is_no() {
    let (own, _) = of(vec![answer(2, 2, 0, 2, 0.6)]);
    assert_eq!(own.outcome, Outcome::No);
    assert_eq!(own.value, None);
}

#[test]
fn without_a_sufficient_value_the_nearest_and_the_next_sweep_are_named() {
    // One function that never keeps its objective: the nearest value is the one with most requests in time, in all texts.
    let all = (1..=13).map(|gpus| answer(gpus, 1, 0, 0, f64::from(gpus) * 0.05));
    let (own, shown) = of(all.collect());
    assert_eq!(own.outcome, Outcome::No);
    assert_eq!((own.value, shown.gpus), (None, 13));
    assert!(
        own.more.starts_with("The nearest is 13 GPUs"),
        "{}",
        own.more
    );
    assert_eq!(own.next, "--sweep gpus=14..28..2");
    assert!(!own.more.contains("Best is"), "{}", own.more);
}

#[test]
fn the_least_sufficient_value_is_given_and_a_gap_below_it_is_swept_next() {
    let (own, shown) = of(vec![
        answer(2, 4, 1, 0, 0.5),
        answer(5, 4, 2, 0, 0.8),
        answer(8, 4, 4, 0, 1.0),
        answer(11, 4, 4, 0, 1.0),
    ]);
    assert_eq!(
        (own.outcome, own.value, shown.gpus),
        (Outcome::Yes, Some(8.0), 8)
    );
    assert_eq!(own.next, "--sweep gpus=6..7");
    let (own, _) = of(vec![answer(7, 4, 4, 0, 1.0), answer(8, 4, 4, 0, 1.0)]);
    assert_eq!(own.next, "--sweep gpus=1..6");
    // The value below is probably enough: more seeds decide that.
    let (own, _) = of(vec![answer(7, 40, 39, 1, 1.0), answer(8, 40, 40, 0, 1.0)]);
    assert_eq!((own.outcome, own.value), (Outcome::Yes, Some(8.0)));
    assert_eq!(own.next, "--seeds 40 --sweep gpus=7");
    assert!(
        own.more.contains("7 GPUs probably do as well"),
        "{}",
        own.more
    );
}

#[test]
fn the_summary_states_what_counts_cover_and_what_is_charged() {
    let own = answer(2, 2, 2, 0, 1.0);
    let text = table::summary(&own);
    assert!(text.contains("3 requests counted in 10 runs of"), "{text}");
    assert!(text.contains("each, one a seed"), "{text}");
    assert!(text.contains("evictions under all 10 seeds"), "{text}");
    assert!(
        text.contains("GPU hours; functions would be charged"),
        "{text}"
    );
    assert!(!text.contains("of which"), "{text}");
}
