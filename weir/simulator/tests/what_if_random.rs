//! Invariants for any input: random clusters, functions and loads, and randomly corrupted files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use simulator::random::Streams;
use simulator::rules::RuleName;
use simulator::statistics::Interval;
use simulator::traces::{Options, Source, open};
use simulator::what_if::{
    Axis, Cluster, Functions, Limit, Load, Point, Scenario, Seeds, Window, verdicts,
};
use testing::Random;

fn cluster(random: &mut Random) -> String {
    format!(
        "nodes = {}\nprice_per_gpu_hour = 3\n[node]\ngpus = {}\nmodels_gb = {}\nhost_gb = {}\npairs = [[0, 1]]\n\
         [link]\nhost_gb_per_s = {}\n[hops]\nthere_ms = {}\n",
        1 + random.below(3),
        1 + random.below(4),
        1 + random.below(6),
        1 + random.below(40),
        1 + random.below(30),
        random.below(4),
    )
}

fn functions(random: &mut Random) -> String {
    let mut text = format!(
        "[default]\nobjective_ms = {}\npercentile = {}\n",
        20 + random.below(300),
        50 + random.below(50)
    );
    for at in 0..=random.below(3) {
        text.push_str(&format!(
            "[[model]]\nname = \"m{at}\"\nweights_mb = {}\nexecution_ms = {}\n",
            50 + random.below(3_000),
            1 + random.below(60)
        ));
    }
    let work = ["stated", "trace-relative"];
    let work = work[usize::try_from(random.below(2)).unwrap()];
    text = text.replacen("[default]\n", &format!("[default]\nwork = \"{work}\"\n"), 1);
    if random.below(2) == 0 {
        text.push_str("[[function]]\nname = \"f1*\"\nobjective_factor = 3\n");
    }
    if random.below(4) == 0 {
        text.push_str("[[function]]\nname = \"f2\"\nleave_out = true\n");
    }
    text
}

fn trace(random: &mut Random) -> String {
    let (functions, gap) = (1 + random.below(30), 1 + random.below(60));
    let mut text = "arrival_s,function,objective_ms,service_ms\n".to_owned();
    let mut at = 0;
    for _ in 0..50 + random.below(600) {
        at += random.below(2 * gap);
        let objective = if random.below(20) == 0 { "90" } else { "" };
        let function = random.below(functions);
        let service = match random.below(3) {
            0 => (1 + random.below(100)).to_string(),
            _ => String::new(),
        };
        text.push_str(&format!(
            "{}.{:03},f{function},{objective},{service}\n",
            at / 1_000,
            at % 1_000
        ));
    }
    text
}

#[test]
fn answers_are_consistent_for_any_input() {
    let mut limits = Vec::new();
    for seed in 0..120 {
        let random = &mut Random(seed);
        let cluster = Cluster::from_toml("c", &cluster(random)).unwrap();
        let functions = Functions::from_toml("f", &functions(random)).unwrap();
        let source = Source::bytes("t", trace(random).as_bytes());
        let workload = open(&source, &Options::new(Streams::new("t", seed))).unwrap();
        let load = Load::read(workload, Window::default(), &mut |_| true).unwrap();
        let Ok(scenario) = Scenario::new(&cluster, &functions, &load) else {
            assert!(
                load.called() <= 1,
                "seed {seed}: a scenario is only refused if all functions are excluded"
            );
            continue;
        };
        let rules: Vec<_> = RuleName::without_blocks().collect();
        let rule = rules[usize::try_from(random.below(rules.len() as u64)).unwrap()];
        let point = scenario.point(rule).at(
            Axis::RateScale,
            [0.5, 1.0, 3.0][usize::try_from(random.below(3)).unwrap()],
        );
        let own = scenario.run(point, &mut |_| true).unwrap();
        let again = scenario.run(point, &mut |_| true).unwrap();
        if seed % 5 == 0 {
            check_combined_seeds(&scenario, point, seed);
        }
        assert_eq!(
            serde_json::to_string(&own).unwrap(),
            serde_json::to_string(&again).unwrap(),
            "seed {seed}"
        );
        assert!(!own.stopped);
        assert_eq!(
            own.gpus,
            cluster.nodes * u32::try_from(cluster.node.slots).unwrap()
        );
        assert!(
            (0.0..=1.0).contains(&own.gpu_busy.mean),
            "seed {seed}: {:?}",
            own.gpu_busy
        );
        assert!((0.0..=1.0).contains(&own.gpu_swapping), "seed {seed}");
        assert!(own.slots_peak <= own.gpus, "seed {seed}");
        assert_eq!(own.functions.len(), scenario.called.len());
        let sum: u64 = own.functions.iter().map(|own| own.requests).sum();
        assert_eq!(own.requests, sum);
        assert!(sum <= load.requests.len() as u64, "seed {seed}");
        for (of, called) in own.functions.iter().zip(&scenario.called) {
            assert!(
                of.late <= of.requests && of.requests <= called.requests,
                "seed {seed}: {of:?}"
            );
            let kept = called.percentile.kept(of.requests - of.late, of.requests);
            assert_eq!(of.keeps, kept, "seed {seed}: {of:?}");
            assert_eq!(of.keeps, of.limit == Limit::Nothing, "seed {seed}: {of:?}");
            limits.push(of.limit);
        }
        let binds = own.functions.iter().any(|of| !of.keeps);
        assert_eq!(binds, own.binding.limit != Limit::Nothing, "seed {seed}");
        assert_eq!(own.holds(), !binds, "seed {seed}");
        // No GPU is occupied twice at the same time.
        let mut ends = vec![0; own.gpus as usize];
        let mut taken = own.detail.taken.clone();
        taken.sort_by_key(|own| (own.slot, own.from));
        for stretch in taken {
            let end = &mut ends[stretch.slot as usize];
            assert!(stretch.from.0 >= *end, "seed {seed}: {stretch:?}");
            assert!(
                stretch.from <= stretch.loaded && stretch.loaded <= stretch.to,
                "seed {seed}"
            );
            *end = stretch.to.0;
        }
    }
    // Each limit has occurred, so the checks above were not vacuous.
    for limit in [
        Limit::Nothing,
        Limit::Memory,
        Limit::Objective,
        Limit::Swapping,
        Limit::GpuTime,
        Limit::Bursts,
    ] {
        assert!(limits.contains(&limit), "{limit:?}");
    }
}

/// Checks that the combined answer of several seeds equals the values of each seed, combined by hand.
fn check_combined_seeds(scenario: &Scenario<'_>, point: Point, seed: u64) {
    let count = 1 + usize::try_from(seed / 5 % 4).unwrap();
    let mut seeds = Seeds::default();
    let mut each = Vec::new();
    for own in 0..count as u64 {
        let mut scenario = scenario.clone();
        scenario.seed = own;
        let answer = scenario.run(point, &mut |_| true).unwrap();
        seeds.push(answer.clone());
        each.push(answer);
    }
    let all = seeds.answer().unwrap();
    assert_eq!(all.seeds, count);
    let requests: u64 = each.iter().map(|own| own.requests).sum();
    assert_eq!(all.requests, requests, "seed {seed}");
    for (at, own) in all.functions.iter().enumerate() {
        let of: Vec<_> = each.iter().map(|one| &one.functions[at]).collect();
        assert!(of.iter().all(|one| one.name == own.name), "seed {seed}");
        let late: u64 = of.iter().map(|one| one.late).sum();
        assert_eq!(own.late, late, "seed {seed}: {own:?}");
        let values: Vec<f64> = of
            .iter()
            .filter_map(|one| Some(one.attainment?.mean))
            .collect();
        let (low, high) = match values.as_slice() {
            [] => {
                assert!(own.attainment.is_none() && own.keeps, "seed {seed}");
                continue;
            }
            [one] => (*one, *one),
            more => {
                let naive = Interval::of(more).unwrap();
                (naive.low.max(0.0), naive.high.min(1.0))
            }
        };
        let found = own.attainment.unwrap();
        assert!(found.low.to_bits() == low.to_bits() && found.high.to_bits() == high.to_bits());
        assert_eq!(
            own.keeps,
            low >= own.percentile / 100.0 - 1e-12,
            "seed {seed}: {own:?}"
        );
        assert_eq!(
            own.keeps,
            own.limit == Limit::Nothing,
            "seed {seed}: {own:?}"
        );
        let open = !own.keeps && high >= own.percentile / 100.0 - 1e-12;
        assert_eq!(own.is_open(), open, "seed {seed}: {own:?}");
    }
    let sentence = &verdicts(std::slice::from_ref(&all), None)[0].sentence;
    assert_eq!(
        sentence.starts_with("Yes"),
        all.holds(),
        "seed {seed}: {sentence}"
    );
}

#[test]
fn an_interrupted_run_is_marked_as_stopped() {
    let cluster = Cluster::from_toml("c", "like = \"torpor\"").unwrap();
    let functions =
        Functions::from_toml("f", "models = \"torpor\"\n[default]\nobjective_ms = 100").unwrap();
    let mut trace = "arrival_s,function\n".to_owned();
    for at in 0..100_000 {
        trace.push_str(&format!("{}.{:02},f{}\n", at / 100, at % 100, at % 50));
    }
    let source = Source::bytes("t", trace.as_bytes());
    let workload = open(&source, &Options::new(Streams::new("t", 1))).unwrap();
    let load = Load::read(workload, Window::default(), &mut |_| true).unwrap();
    let scenario = Scenario::new(&cluster, &functions, &load).unwrap();
    let point = scenario.point(RuleName::Adaptive);
    let mut calls = 0;
    let part = scenario.run(point, &mut |share| {
        assert!((0.0..=1.0).contains(&share));
        calls += 1;
        false
    });
    let part = part.unwrap();
    assert!(part.stopped && !part.holds() && calls == 1);
    let whole = scenario.run(point, &mut |_| true).unwrap();
    assert!(part.requests < whole.requests && part.counted_s < whole.counted_s);
    assert!(
        (part.gpu_busy.mean - whole.gpu_busy.mean).abs() < 0.05,
        "{:?} {:?}",
        part.gpu_busy,
        whole.gpu_busy
    );
}

#[test]
fn corrupted_files_are_errors_with_a_line() {
    for seed in 0..2_000 {
        let random = &mut Random(seed);
        let (mut one, mut other) = (cluster(random), functions(random));
        for text in [&mut one, &mut other] {
            for _ in 0..=random.below(3) {
                let at = usize::try_from(random.below(text.len() as u64)).unwrap();
                let with = ["", "=", "[", "-", "9", "\n", "\"", "é", "e9", "nan"];
                let with = with[usize::try_from(random.below(with.len() as u64)).unwrap()];
                if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                    text.replace_range(at..=at, with);
                }
            }
        }
        for (text, error) in [
            (&one, Cluster::from_toml("c", &one).err()),
            (&other, Functions::from_toml("c", &other).err()),
        ] {
            let Some(error) = error else { continue };
            assert!(
                error.line >= 1 && error.line <= text.lines().count() + 1,
                "seed {seed}: {error}"
            );
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "seed {seed}: {text}");
        }
    }
}
