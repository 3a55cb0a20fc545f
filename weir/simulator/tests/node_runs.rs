//! Runs of whole nodes: invariants under all rules, and results of queueing theory for the simplest one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::{Span, Time};
use simulator::generate::{self, Rates, Spec};
use simulator::node::{
    CountedSpan, FunctionOutcome, Hardware, MemoryRule, Noise, Outcome, Settings, SwapTime, run,
};
use simulator::random::Streams;
use simulator::rules::RuleName;
use simulator::statistics::Percentile;

fn spec(name: &str, functions: u32) -> Spec {
    let mut spec = generate::preset(name).unwrap().spec();
    spec.functions = functions;
    spec.warm_up_s = 10.0;
    spec.counted_s = 60.0;
    spec
}

fn outcome(hardware: &Hardware, settings: &Settings, spec: &Spec) -> Outcome {
    let counted = CountedSpan {
        from: Time::ZERO.after(Span::from_secs(10)),
        to: Time::ZERO.after(Span::from_secs(70)),
        keep: usize::MAX,
    };
    let streams = Streams::new(&spec.experiment, spec.seed);
    let made = generate::generate(spec).unwrap();
    run(hardware, settings, made, counted, &streams, &mut |_, _| {
        true
    })
    .unwrap()
}

/// Under every rule, a slot has one request at a time, slots' times add up, every request is counted once, and the same seed
/// gives the same results.
#[test]
fn slots_requests_and_times_add_up_under_every_rule() {
    let hardware = Hardware::torpor();
    // Other allocators and laws of swaps are tested in `node_memory`.
    let usual = |rule: &RuleName| {
        let settings = rule.settings();
        (settings.memory, settings.swap_time) == (MemoryRule::Bytes, SwapTime::Fitted)
    };
    for rule in RuleName::ALL.into_iter().filter(usual) {
        let spec = spec("torpor-node", 240);
        let one = outcome(&hardware, &rule.settings(), &spec);
        let mut by_slot = vec![Vec::new(); 4];
        for taken in &one.taken {
            assert!(
                taken.from <= taken.loaded && taken.loaded <= taken.to,
                "{taken:?}"
            );
            by_slot[taken.slot as usize].push((taken.from, taken.to));
        }
        for (slot, stretches) in by_slot.iter_mut().enumerate() {
            stretches.sort_unstable();
            let apart = stretches.windows(2).all(|two| two[0].1 <= two[1].0);
            assert!(apart, "{rule:?}: slot {slot}");
            let busy = one.nodes[0].busy[slot];
            assert!(
                busy <= one.counted,
                "{rule:?}: slot {slot} was busy for {busy:?}"
            );
        }
        let counted: u64 = one.functions.iter().map(|own| own.requests).sum();
        let late: u64 = one.functions.iter().map(|own| own.late).sum();
        let answered: u64 = one.models.iter().map(|model| model.count()).sum();
        assert!(late <= counted && answered <= counted, "{rule:?}");
        assert!(
            counted <= one.arrived,
            "{rule:?}: {counted} of {}",
            one.arrived
        );
        let again = outcome(&hardware, &rule.settings(), &spec);
        assert_eq!(one.functions, again.functions, "{rule:?}");
        assert_eq!(
            (one.events, &one.taken),
            (again.events, &again.taken),
            "{rule:?}"
        );
    }
}

/// A request whose neighbours' loads start and end beside its own still finishes: a busy slot is used until the end of the run.
#[test]
fn no_load_is_lost_however_many_share_a_path() {
    let hardware = Hardware::torpor();
    for rule in [
        RuleName::Adaptive,
        RuleName::RandomPlacement,
        RuleName::SimpleSwap,
    ] {
        // Little memory, so that requests wait for copies that are locked.
        for memory_part in [0.055, 0.1, 1.0] {
            let settings = Settings {
                memory_part,
                ..rule.settings()
            };
            let outcome = outcome(&hardware, &settings, &spec("torpor-node", 560));
            let mut last = [Time::ZERO; 4];
            for taken in &outcome.taken {
                let slot = &mut last[taken.slot as usize];
                *slot = (*slot).max(taken.to);
            }
            let end = Time::ZERO.after(Span::from_secs(70));
            let late = last.map(|to| end.since(to).as_millis());
            assert!(
                late.iter().all(|&ms| ms < 1_000),
                "{rule:?}, {memory_part}: {late:?} ms"
            );
        }
    }
}

/// One function on one slot, Poisson arrivals, equal executions: the mean time in an M/D/1 queue is
/// C + ρ C / (2 (1 − ρ)).
#[test]
fn a_single_function_waits_as_in_an_m_d_1_queue() {
    let mut hardware = Hardware::torpor();
    hardware.node.slots = 1;
    hardware.node.pairs.clear();
    hardware.node.links.clear();
    let settings = Settings {
        noise: Noise::OFF,
        ..RuleName::ArrivalOrder.settings()
    };
    for load in [0.3, 0.6, 0.8] {
        let mut spec = generate::preset("torpor-lowfreq").unwrap().spec_at(
            1,
            Rates::Equal {
                per_minute: load / 0.017 * 60.0,
            },
        );
        (spec.warm_up_s, spec.counted_s) = (10.0, 4_000.0);
        let counted = CountedSpan {
            from: Time::ZERO.after(Span::from_secs(10)),
            to: Time::ZERO.after(Span::from_secs(4_010)),
            keep: 0,
        };
        let streams = Streams::new(&spec.experiment, spec.seed);
        let made = generate::generate(&spec).unwrap();
        let outcome = run(
            &hardware,
            &settings,
            made,
            counted,
            &streams,
            &mut |_, _| true,
        )
        .unwrap();
        let model = hardware.model("ResNet-152").unwrap();
        let mean = outcome.models[model].mean().unwrap().as_secs_f64();
        let expected = 0.017 * (1.0 + load / (2.0 * (1.0 - load)));
        assert!(
            (mean / expected - 1.0).abs() < 0.03,
            "load {load}: {mean} s, not {expected}"
        );
        let busy = outcome.loads()[0];
        assert!((busy / load - 1.0).abs() < 0.02, "load {load}: {busy}");
    }
}

/// Models that fit are loaded once, and functions with ample objectives keep them.
#[test]
fn models_that_fit_are_loaded_once_and_no_request_is_late() {
    let hardware = Hardware::torpor();
    let outcome = outcome(
        &hardware,
        &RuleName::Adaptive.settings(),
        &spec("torpor-node", 40),
    );
    let node = &outcome.nodes[0];
    assert_eq!(node.evictions, 0);
    // 40 models on up to four GPUs.
    assert!(node.host_loads + node.link_loads <= 160, "{node:?}");
    let complies = |own: &FunctionOutcome| own.complies(Percentile::P98);
    assert!(outcome.functions.iter().all(complies));
    assert!((outcome.hit_rate() - 1.0).abs() < 1e-9);
}

/// A process bound to a GPU takes memory for the whole run, so fewer functions have room.
#[test]
fn bound_processes_leave_less_room() {
    let hardware = Hardware::torpor();
    let spec = spec("torpor-node", 400);
    let pool = outcome(&hardware, &RuleName::Adaptive.settings(), &spec);
    let bound = outcome(&hardware, &RuleName::BoundProcesses.settings(), &spec);
    let refused = |outcome: &Outcome| {
        let each = outcome.functions.iter();
        each.filter(|own| own.refused > 0).count()
    };
    assert_eq!(refused(&pool), 0);
    assert!(refused(&bound) > 160, "{}", refused(&bound));
}
