//! Requests simulated per second. Targets (docs/spec/targets.md): 250,000 on the Torpor node at 480 functions, a million on one slot with a
//! resident model. The bench `scale` compares many nodes with few; here the set-up of functions is included.

use divan::Bencher;
use divan::counter::ItemsCount;
use policy::{Span, Time};
use simulator::generate::{self, Rates, Spec};
use simulator::node::{CountedSpan, Hardware, Outcome, Settings, run};
use simulator::random::Streams;
use simulator::rules::RuleName;

fn main() {
    divan::main();
}

fn outcome(hardware: &Hardware, settings: &Settings, spec: &Spec) -> Outcome {
    let counted = CountedSpan {
        from: Time::ZERO.after(Span::from_secs(1)),
        to: Time::ZERO.after(spec.length()),
        keep: 0,
    };
    let streams = Streams::new(&spec.experiment, spec.seed);
    let made = generate::generate(spec).expect("the spec is valid");
    run(hardware, settings, made, counted, &streams, &mut |_, _| {
        true
    })
    .expect("the run succeeds")
}

fn bench(bencher: Bencher<'_, '_>, hardware: &Hardware, settings: &Settings, spec: &Spec) {
    let arrived = outcome(hardware, settings, spec).arrived;
    bencher
        .counter(ItemsCount::new(arrived))
        .bench_local(|| outcome(hardware, settings, spec));
}

/// The Torpor node with all policies, statistics and noise.
#[divan::bench(args = [160, 480, 640], sample_count = 5)]
fn torpor_node(bencher: Bencher<'_, '_>, functions: u32) {
    let mut spec = generate::preset("torpor-node").expect("a preset").spec();
    (spec.functions, spec.warm_up_s, spec.counted_s) = (functions, 10.0, 300.0);
    let settings = RuleName::Adaptive.settings();
    bench(bencher, &Hardware::torpor(), &settings, &spec);
}

/// A cluster with 80 functions for each node.
#[divan::bench(args = [4, 40, 400, 1_000], sample_count = 3)]
fn cluster(bencher: Bencher<'_, '_>, nodes: u32) {
    let mut spec = generate::preset("torpor-node").expect("a preset").spec();
    (spec.functions, spec.warm_up_s, spec.counted_s) = (80 * nodes, 1.0, 60.0);
    let mut settings = RuleName::Adaptive.settings();
    settings.nodes = nodes;
    bench(bencher, &Hardware::torpor(), &settings, &spec);
}

/// One function on one slot, with its model always resident.
#[divan::bench(sample_count = 5)]
fn hot_alone(bencher: Bencher<'_, '_>) {
    let mut hardware = Hardware::torpor();
    hardware.node.slots = 1;
    hardware.node.pairs.clear();
    hardware.node.links.clear();
    let rates = Rates::Equal {
        per_minute: 2_400.0,
    };
    let preset = generate::preset("torpor-lowfreq").expect("a preset");
    let mut spec = preset.spec_at(1, rates);
    (spec.warm_up_s, spec.counted_s) = (1.0, 5_000.0);
    let settings = RuleName::Adaptive.settings();
    bench(bencher, &hardware, &settings, &spec);
}
