//! Execution times of a function's requests, and the effect of each function's percentile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use simulator::node::Noise;
use simulator::random::Streams;
use simulator::rules::RuleName;
use simulator::traces::{Options, Source, open};
use simulator::what_if::{Answer, Axis, Cluster, Functions, Load, Scenario, WhatIfError, Window};

const CLUSTER: &str =
    "[node]\ngpus = 1\nmodels_gb = 20\nhost_gb = 100\n[link]\nhost_gb_per_s = 10\n";

fn load(trace: &str) -> Load {
    let source = Source::bytes("t", trace.as_bytes());
    let workload = open(&source, &Options::new(Streams::new("t", 1))).unwrap();
    Load::read(workload, Window::default(), &mut |_| true).unwrap()
}

/// Runs the functions without noise and without warm-up.
fn answer(functions: &str, trace: &str, rule: RuleName) -> Result<Answer, WhatIfError> {
    let cluster = Cluster::from_toml("c", CLUSTER).unwrap();
    let functions = Functions::from_toml("f", functions).unwrap();
    let load = load(trace);
    let mut scenario = Scenario::new(&cluster, &functions, &load)?;
    scenario.noise = Noise::OFF;
    scenario.warm_up = 0.0;
    scenario.run(scenario.point(rule), &mut |_| true)
}

/// Returns for how long each request occupied the GPU, in milliseconds, except for the first, which has to load.
fn held(answer: &Answer) -> Vec<f64> {
    let taken = answer.detail.taken.iter().skip(1);
    let ms = |span: u64| libm::round(u32::try_from(span / 1_000).unwrap().into()) / 1e3;
    taken.map(|own| ms(own.to.0 - own.from.0)).collect()
}

fn functions(work: &str, model: &str) -> String {
    format!(
        "[default]\nobjective_ms = 1000\nwork = \"{work}\"\n[[model]]\nname = \"m\"\nweights_mb = 10\n{model}\n"
    )
}

const SERVICE: &str = "arrival_s,function,service_ms\n0.0,a,\n1.0,a,10\n2.0,a,30\n3.0,a,\n";

#[test]
fn service_times_of_the_trace_are_used_as_work_states() {
    for (work, model, expected) in [
        // The trace's mean is 20 ms, the file's 40.
        ("stated", "execution_ms = 40", [40.0, 40.0, 40.0]),
        ("trace", "execution_ms = 40", [10.0, 30.0, 20.0]),
        ("trace-relative", "execution_ms = 40", [20.0, 60.0, 40.0]),
        ("trace-relative", "", [10.0, 30.0, 20.0]),
        ("stated", "", [20.0, 20.0, 20.0]),
    ] {
        let answer = answer(&functions(work, model), SERVICE, RuleName::Adaptive).unwrap();
        assert_eq!(held(&answer), expected, "{work} {model}");
    }
    // A process of its own takes longer by the model's factor.
    let model = "execution_ms = 40\nnative_ms = 60";
    let own = answer(
        &functions("trace-relative", model),
        SERVICE,
        RuleName::EarlyBinding,
    )
    .unwrap();
    assert_eq!(held(&own), [30.0, 90.0, 60.0]);
}

const TOKENS: &str =
    "arrival_s,function,input_tokens,output_tokens\n0.0,a,100,10\n1.0,a,100,10\n2.0,a,300,30\n";

#[test]
fn tokens_take_the_times_of_their_model() {
    let per_token = "ms_per_input_token = 0.1\nms_per_output_token = 2";
    let answer =
        |work: &str, model: &str| answer(&functions(work, model), TOKENS, RuleName::Adaptive);
    for work in ["trace", "trace-relative"] {
        assert_eq!(
            held(&answer(work, per_token).unwrap()),
            [30.0, 90.0],
            "{work}"
        );
    }
    // Their mean is 50 ms: with a stated mean of 100 ms, each takes twice as long.
    let both = format!("execution_ms = 100\n{per_token}");
    assert_eq!(
        held(&answer("trace-relative", &both).unwrap()),
        [60.0, 180.0]
    );
    assert_eq!(held(&answer("trace", &both).unwrap()), [30.0, 90.0]);
    assert_eq!(held(&answer("stated", &both).unwrap()), [100.0, 100.0]);
    // Without times for tokens each takes the mean, and a note states that.
    let mean = answer("trace-relative", "execution_ms = 100").unwrap();
    assert_eq!(held(&mean), [100.0, 100.0]);
    assert!(
        mean.notes[0].contains("tokens for 1 function"),
        "{:?}",
        mean.notes
    );
    let error = answer("trace", "execution_ms = 100")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("function \"a\": its work is \"trace\""),
        "{error}"
    );
}

#[test]
fn notes_state_only_the_assumptions_that_apply() {
    let notes = |work: &str, model: &str| {
        let text = functions(work, model);
        answer(&text, SERVICE, RuleName::Adaptive)
            .unwrap()
            .notes
            .join(" ")
    };
    assert!(notes("stated", "execution_ms = 40").contains("tails are underestimated"));
    assert!(notes("trace-relative", "execution_ms = 40").contains("vary as the trace's"));
    assert_eq!(notes("trace", "execution_ms = 40"), "");
    assert_eq!(notes("trace-relative", ""), "");
}

/// Two functions that differ only in their percentiles, on an overloaded GPU.
#[test]
fn the_queue_uses_each_functions_own_percentile() {
    let mut trace = "arrival_s,function\n".to_owned();
    for at in 0..4_000_u32 {
        let name = if at % 2 == 0 { "one" } else { "two" };
        trace.push_str(&format!("{}.{:03},{name}\n", at / 50, at % 50 * 20));
    }
    let attained = |rule, one: u32, two: u32| {
        let text = format!(
            "[default]\nobjective_ms = 200\n[[model]]\nname = \"m\"\nweights_mb = 10\nexecution_ms = 21\n\
             [[function]]\nname = \"one\"\npercentile = {one}\n[[function]]\nname = \"two\"\npercentile = {two}\n"
        );
        let own = answer(&text, &trace, rule).unwrap();
        [0, 1].map(|at: usize| own.functions[at].attainment.unwrap().mean)
    };
    // As printed, functions that can still keep their percentile are served before those that cannot.
    let [one, two] = attained(RuleName::Paper, 50, 99);
    assert!(one > two + 0.1, "{one} {two}");
    let [one, two] = attained(RuleName::Paper, 99, 50);
    assert!(two > one + 0.1, "{one} {two}");
    // Functions with misses to spare give way to those without.
    let [one, two] = attained(RuleName::Adaptive, 50, 99);
    assert!(two > one + 0.03, "{one} {two}");
    let [one, two] = attained(RuleName::Adaptive, 99, 50);
    assert!(one > two + 0.03, "{one} {two}");
}

/// Host memory is assigned only by the placement: a function without room never runs, on any node.
#[test]
fn functions_without_host_memory_are_refused_by_the_placement() {
    let mut trace = "arrival_s,function\n".to_owned();
    for at in 0..200_u32 {
        trace.push_str(&format!("{at}.0,f{}\n", at % 5));
    }
    let text = "[default]\nobjective_ms = 1000\nweights_mb = 4000\nexecution_ms = 5\n[[function]]\nname = \"f1\"\n\
                weights_mb = 30000\n";
    let cluster = CLUSTER.replace("host_gb = 100", "host_gb = 8");
    let cluster = Cluster::from_toml("c", &cluster).unwrap();
    let functions = Functions::from_toml("f", text).unwrap();
    let load = load(&trace);
    let scenario = Scenario::new(&cluster, &functions, &load).unwrap();
    let keeps = |nodes: f64| {
        let point = scenario.point(RuleName::Adaptive).at(Axis::Nodes, nodes);
        let own = scenario.run(point, &mut |_| true).unwrap();
        own.functions.iter().map(|of| of.keeps).collect::<Vec<_>>()
    };
    // f1 fits on no GPU; two of the others fit on each node.
    assert_eq!(keeps(1.0), [true, false, true, false, false]);
    assert_eq!(keeps(2.0), [true, false, true, true, true]);
}
