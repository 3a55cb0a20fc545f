//! Runs of nodes with memory in blocks and swaps in groups.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::{Span, Time};
use simulator::generate;
use simulator::node::{
    CountedSpan, Hardware, MemoryRule, Outcome, RunError, Settings, SwapTime, run,
};
use simulator::random::Streams;
use simulator::rules::RuleName;
use simulator::statistics::Percentile;

fn try_run(hardware: &Hardware, settings: &Settings, functions: u32) -> Result<Outcome, RunError> {
    let mut spec = generate::preset("torpor-node").unwrap().spec();
    spec.functions = functions;
    (spec.warm_up_s, spec.counted_s) = (5.0, 20.0);
    let counted = CountedSpan {
        from: Time::ZERO.after(Span::from_secs(5)),
        to: Time::ZERO.after(Span::from_secs(25)),
        keep: usize::MAX,
    };
    let streams = Streams::new(&spec.experiment, spec.seed);
    let made = generate::generate(&spec).unwrap();
    run(hardware, settings, made, counted, &streams, &mut |_, _| {
        true
    })
}

fn with(memory: MemoryRule, swap_time: SwapTime) -> Settings {
    Settings {
        memory,
        swap_time,
        ..RuleName::Adaptive.settings()
    }
}

const RULES: [MemoryRule; 3] = [MemoryRule::Bytes, MemoryRule::Blocks, MemoryRule::FreeList];
const LAWS: [SwapTime; 3] = [SwapTime::Fitted, SwapTime::Groups, SwapTime::Whole];

/// Under every management of memory and law of swaps, a slot has one request at a time, no request is lost, and the same seed
/// gives the same results. The runs also assert at each load and eviction that arenas and counts agree.
#[test]
fn slots_and_requests_add_up_under_every_allocator_and_law() {
    let hardware = Hardware::torpor();
    for memory in RULES {
        for law in LAWS {
            // Little memory, so that models are evicted all the time.
            let settings = Settings {
                memory_part: 0.2,
                ..with(memory, law)
            };
            let one = try_run(&hardware, &settings, 160).unwrap();
            let again = try_run(&hardware, &settings, 160).unwrap();
            assert_eq!(one.functions, again.functions, "{memory:?}, {law:?}");
            assert_eq!(one.taken, again.taken, "{memory:?}, {law:?}");
            let mut last = [Time::ZERO; 4];
            for taken in &one.taken {
                let slot = &mut last[taken.slot as usize];
                assert!(
                    *slot <= taken.from && taken.from <= taken.loaded,
                    "{taken:?}"
                );
                assert!(taken.loaded <= taken.to, "{memory:?}, {law:?}: {taken:?}");
                *slot = taken.to;
            }
            let node = &one.nodes[0];
            assert!(
                node.evictions > 100,
                "{memory:?}, {law:?}: {}",
                node.evictions
            );
            let end = Time::ZERO.after(Span::from_secs(25));
            let idle = last.map(|to| end.since(to).as_millis());
            assert!(
                idle.iter().all(|&ms| ms < 1_000),
                "{memory:?}, {law:?}: {idle:?} ms"
            );
        }
    }
}

/// Where all models fit, blocks change nothing; where they do not, more models are evicted for the same loads, and only the free
/// list calls the device.
#[test]
fn blocks_cost_room_and_the_free_list_costs_time() {
    let hardware = Hardware::torpor();
    let of = |memory, functions, memory_part| {
        let settings = Settings {
            memory_part,
            ..with(memory, SwapTime::Fitted)
        };
        try_run(&hardware, &settings, functions).unwrap()
    };
    let (bytes, blocks) = (
        of(MemoryRule::Bytes, 40, 1.0),
        of(MemoryRule::Blocks, 40, 1.0),
    );
    assert_eq!(bytes.functions, blocks.functions);
    assert_eq!(bytes.taken, blocks.taken);
    let [bytes, blocks, list] = RULES.map(|memory| of(memory, 160, 0.1));
    let per_load = |outcome: &Outcome| {
        let node = &outcome.nodes[0];
        #[expect(clippy::cast_precision_loss, reason = "counts")]
        let ratio = node.evictions as f64 / (node.host_loads + node.link_loads) as f64;
        ratio
    };
    assert!(
        per_load(&blocks) > per_load(&bytes),
        "{} {}",
        per_load(&blocks),
        per_load(&bytes)
    );
    let waits = |outcome: &Outcome| outcome.allocation.percentile(Percentile::P98);
    assert_eq!(waits(&bytes), None);
    assert_eq!(waits(&blocks).map(|part| part.0), Some(0));
    assert!(
        waits(&list).unwrap() > Span::from_millis(10),
        "{:?}",
        waits(&list)
    );
}

/// Groups take about as long as the law fitted to the same measurements, and whole models longer.
#[test]
fn groups_are_near_the_fitted_law_and_whole_models_are_not() {
    let hardware = Hardware::torpor();
    let busy = LAWS.map(|law| {
        let settings = Settings {
            memory_part: 0.2,
            ..with(MemoryRule::Bytes, law)
        };
        let outcome = try_run(&hardware, &settings, 160).unwrap();
        outcome.loads().iter().sum::<f64>()
    });
    let [fitted, groups, whole] = busy;
    assert!((groups / fitted - 1.0).abs() < 0.05, "{groups} {fitted}");
    assert!(whole > 1.15 * fitted, "{whole} {fitted}");
}

#[test]
fn rules_that_do_not_allow_blocks_are_refused() {
    let hardware = Hardware::torpor();
    for (rule, why) in [
        (
            RuleName::EarlyBinding,
            "memory is Blocks: allowed where models are not swapped: Bytes",
        ),
        (RuleName::BoundProcesses, "a bound process has its own"),
    ] {
        let settings = Settings {
            memory: MemoryRule::Blocks,
            ..rule.settings()
        };
        let error = try_run(&hardware, &settings, 8).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let small = Settings {
        memory_part: 0.001,
        ..with(MemoryRule::FreeList, SwapTime::Fitted)
    };
    let error = try_run(&hardware, &small, 8).unwrap_err().to_string();
    assert!(error.contains("slot 0"), "{error}");
}
