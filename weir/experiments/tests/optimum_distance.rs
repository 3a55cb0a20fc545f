//! Distance of the policies from the best possible, on small cases of Torpor's node. The published figures are those of
//! `weir simulate experiment distance`.

use experiments::optimum::plan::check;
use experiments::optimum::{
    DrawnCase, Loads, Objective, Online, OnlineOutcome, Settings, Step, distance, draw, solve,
};
use policy::Span;
use simulator::statistics::Percentile;

fn small(load: f64) -> Settings {
    Settings {
        functions: 4,
        requests: 9,
        ..Settings::torpor(load)
    }
}

/// Converts a policy's schedule to a plan. The schedule does not state which of a function's requests ran: it is taken to be the
/// first that has arrived, but for policies that put late requests last, the first that has arrived and is in time, if any.
fn plan_of(drawn: &DrawnCase, outcome: &OnlineOutcome, online: Online) -> Vec<Step> {
    let requests = drawn.case.requests();
    let mut taken = outcome.taken.clone();
    taken.sort_by_key(|own| (own.from, own.slot));
    let mut waiting: Vec<usize> = (0..requests.len()).collect();
    taken
        .iter()
        .map(|own| {
            let there = |&at: &usize| {
                requests[at].function == own.function as usize && requests[at].arrival <= own.from
            };
            let ahead = |at: &usize| {
                let in_time = own.to <= requests[*at].deadline;
                there(at) && (in_time || online == Online::ArrivalOrder)
            };
            let at = waiting
                .iter()
                .position(ahead)
                .or_else(|| waiting.iter().position(there))
                .expect("a slot is occupied by a request that has arrived");
            Step {
                request: waiting.remove(at),
                slot: own.slot as usize,
                from: own.from,
                to: own.to,
                loads: own.loaded > own.from,
                keeps: 0,
            }
        })
        .collect()
}

/// Gives each load of a plan the models that its slot uses next without a load, because the schedule does not state evictions.
fn keep_models_in_use(drawn: &DrawnCase, plan: &mut [Step]) {
    let function = |step: &Step| drawn.case.requests()[step.request].function;
    for at in 0..plan.len() {
        let step = plan[at];
        let mut keeps = 0_u32;
        let mut seen = 1_u32 << function(&step);
        for later in plan[at + 1..]
            .iter()
            .filter(|later| later.slot == step.slot)
        {
            let own = 1_u32 << function(later);
            if !later.loads && seen & own == 0 {
                keeps |= own;
            }
            seen |= own;
        }
        plan[at].keeps = keeps;
    }
}

/// The node's law is the solver's: every schedule of a policy is a plan, to the nanosecond, with as many requests in time.
#[test]
fn every_schedule_is_a_plan_and_no_policy_beats_the_best() {
    let percentile = Percentile::P98;
    let (mut below, mut loads) = (0, 0);
    for seed in 0..60 {
        let settings = small([0.5, 0.8, 1.2][usize::try_from(seed % 3).unwrap()]);
        let drawn = draw(&settings, seed).unwrap();
        let best = solve(&drawn.case, Objective::RequestsInTime, u64::MAX);
        let objective = Objective::FunctionsCompliant(percentile);
        let functions = solve(&drawn.case, objective, u64::MAX);
        assert!(best.is_exact() && functions.is_exact());
        for online in Online::ALL {
            let outcome = online.run(&drawn, settings.percentile).unwrap();
            assert_eq!(
                outcome.taken.len(),
                settings.requests,
                "every request must run"
            );
            let mut plan = plan_of(&drawn, &outcome, online);
            keep_models_in_use(&drawn, &mut plan);
            let score = check(&drawn.case, &plan)
                .unwrap_or_else(|error| panic!("seed {seed}, {online:?}: {error}: {plan:?}"));
            assert_eq!(score.in_time, outcome.in_time, "seed {seed}, {online:?}");
            assert_eq!(score.value(&drawn.case, objective), outcome.compliant);
            assert!(outcome.in_time <= best.value, "seed {seed}, {online:?}");
            assert!(
                outcome.compliant <= functions.value,
                "seed {seed}, {online:?}"
            );
            below += u32::from(outcome.in_time < best.value);
            loads += plan.iter().filter(|step| step.loads).count();
        }
    }
    assert!(below > 30 && loads > 300, "{below}, {loads}");
}

/// With links and contention, the optimum of the easier node is still an upper bound.
#[test]
fn the_fastest_path_bounds_a_node_with_links_and_contention() {
    let mut linked = 0;
    for seed in 0..40 {
        let settings = Settings {
            loads: Loads::FastestPath,
            ..small(1.5)
        };
        let drawn = draw(&settings, seed).unwrap();
        assert!(drawn.hardware.link.contention > 0.0 && drawn.hardware.node.pairs.len() == 1);
        let best = solve(&drawn.case, Objective::RequestsInTime, u64::MAX);
        for online in Online::ALL {
            let outcome = online.run(&drawn, settings.percentile).unwrap();
            assert!(outcome.in_time <= best.bound, "seed {seed}, {online:?}");
            for own in &outcome.taken {
                let function = drawn.case.functions()[own.function as usize];
                let least = if own.loaded > own.from {
                    function.swapped
                } else {
                    function.execution
                };
                assert!(own.to.since(own.from) >= least, "seed {seed}, {online:?}");
                let link = own.to.since(own.from) == least && least > Span::ZERO;
                linked += u32::from(own.loaded > own.from && link);
            }
        }
    }
    assert!(linked > 0);
}

#[test]
fn the_distance_of_a_few_cases_is_repeatable() {
    let settings = small(0.8);
    let distance = || distance(&settings, 0..25).unwrap();
    let one = distance();
    assert_eq!(one, distance());
    assert_eq!((one.cases, one.requests_all), (25, 225));
    assert_eq!((one.requests.exact, one.functions.exact), (25, 25));
    for own in &one.policies {
        for tally in [own.requests, own.functions] {
            assert!(tally.worst <= tally.ratio.mean && tally.ratio.mean <= 1.0);
            assert!(tally.ratio.low <= tally.ratio.mean && tally.ratio.mean <= tally.ratio.high);
            assert_eq!(tally.reached.of, 25);
        }
        assert!(own.requests.total <= one.requests.found);
        assert!(own.functions.total <= one.functions.found);
    }
    let worst = one.of(Online::Whole).unwrap().requests;
    let drawn = draw(&settings, worst.worst_seed).unwrap();
    let outcome = Online::Whole.run(&drawn, settings.percentile).unwrap();
    let best = solve(&drawn.case, Objective::RequestsInTime, u64::MAX);
    assert!((f64::from(outcome.in_time) / f64::from(best.value) - worst.worst).abs() < 1e-12);
    let table = one.table();
    assert!(
        table.contains("whole policy") && table.contains("25 of 25 exact"),
        "{table}"
    );
}

#[test]
fn settings_out_of_range_are_named() {
    type Change = fn(&mut Settings);
    let changes: [(Change, &str); 7] = [
        (|own| own.slots = 0, "slots is 0"),
        (|own| own.slots = 5, "slots is 5"),
        (|own| own.functions = 0, "functions is 0"),
        (|own| own.functions = 33, "33 functions"),
        (|own| own.requests = 65, "65 requests"),
        (|own| own.load = 0.0, "load is 0"),
        (|own| own.objective = (2.0, 1.0), "objective is 2 to 1"),
    ];
    for (change, expected) in changes {
        let mut settings = small(1.0);
        change(&mut settings);
        let error = draw(&settings, 1).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(distance(&small(1.0), 0..1).is_err());
}
