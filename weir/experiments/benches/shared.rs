//! Cost of an event of shared GPUs: the eight pods of FaST-GShare §5.4 on one GPU, and the load in steps. Items are
//! events; the target is at least a million a second.

use divan::Bencher;
use divan::counter::ItemsCount;
use experiments::shares::{EIGHT, SEED, follow};
use policy::Span;
use policy::tokens::{Quota, Rule, Share};
use simulator::random::Streams;
use simulator::shared::{CountedSpan, Loop, Models, Scaling, Settings, loops};

fn main() {
    divan::main();
}

#[divan::bench(args = [Rule::Weir, Rule::Paper, Rule::Racing])]
fn eight_pods(bencher: Bencher<'_, '_>, rule: Rule) {
    let models = Models::fast_gshare();
    let mut settings = Settings::default();
    settings.tokens.rule = rule;
    let pods: Vec<_> = (EIGHT.iter())
        .map(|&(name, sm, quota)| Loop {
            model: models.model(name).unwrap_or_default(),
            sm: sm * 100,
            quota: Quota::new(Share::from_percent(quota), Share::from_percent(quota))
                .expect("request and limit are equal"),
            gpu: 0,
            in_flight: 2,
            pause: Span::ZERO,
            suspension: None,
        })
        .collect();
    let span = CountedSpan::after_a_tenth(Span::from_secs(100));
    let streams = Streams::new("bench", SEED);
    let run = || loops(&models, &settings, &pods, span, &streams).expect("the run succeeds");
    let events = run().events;
    bencher.counter(ItemsCount::new(events)).bench_local(run);
}

#[divan::bench]
fn load_in_steps(bencher: Bencher<'_, '_>) {
    let models = Models::fast_gshare();
    let (settings, scaling) = (Settings::default(), Scaling::default());
    let run = || follow(&models, &settings, &scaling, SEED).expect("the run succeeds");
    let events = run().events;
    bencher.counter(ItemsCount::new(events)).bench_local(run);
}
