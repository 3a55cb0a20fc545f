//! Synthetic workloads have the distributions of workloads §§2–4.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::{Span, Time};
use simulator::generate::{
    Daily, FunctionArrivals, Mix, Rates, Shape, Spec, SpecError, generate, named_shape, preset,
    preset_names,
};
use simulator::random::{Purpose, Streams, normal_quantile};

const MINUTE: u64 = 60_000_000_000;

const FLEET: Rates = Rates::Quantiles {
    per_minute: [1.0, 60.0],
    of_functions: [0.85, 0.97],
    max_per_minute: 1200.0,
};

fn spec(functions: u32, rates: Rates, shape: Shape) -> Spec {
    Spec {
        experiment: "test".to_owned(),
        seed: 20_250_707,
        functions,
        warm_up_s: 100.0,
        counted_s: 900.0,
        rates,
        total_per_minute: None,
        shape,
        daily: None,
        models: Vec::new(),
        mix: Mix::Turns,
    }
}

fn arrivals(
    shape: &Shape,
    per_minute: f64,
    daily: Option<Daily>,
    length: Span,
) -> FunctionArrivals {
    one_of_many(shape, per_minute, daily, length, 0)
}

fn one_of_many(
    shape: &Shape,
    per_minute: f64,
    daily: Option<Daily>,
    length: Span,
    function: u32,
) -> FunctionArrivals {
    let streams = Streams::new("test", 20_250_707);
    FunctionArrivals::new(
        &Arc::new(shape.clone()),
        per_minute,
        daily,
        streams.stream(Purpose::Shape, function),
        streams.stream(Purpose::Arrival, function),
        length,
    )
}

/// Returns mean of the counts in windows, and their variance divided by the mean.
fn dispersion(arrivals: impl Iterator<Item = Time>, window: u64, windows: u32) -> (f64, f64) {
    let mut counts = vec![0.0; windows as usize];
    for at in arrivals {
        counts[usize::try_from(at.0 / window).expect("few windows")] += 1.0;
    }
    let mean = counts.iter().sum::<f64>() / f64::from(windows);
    let squares: f64 = counts
        .iter()
        .map(|count| (count - mean) * (count - mean))
        .sum();
    (mean, squares / f64::from(windows) / mean)
}

/// Returns the standard normal's distribution function, by Simpson's rule; independent of the tested quantiles.
fn normal_cdf(z: f64) -> f64 {
    let steps = 400_u32;
    let width = z / f64::from(steps);
    let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    let mut sum = density(0.0) + density(z);
    for step in 1..steps {
        let weight = if step % 2 == 1 { 4.0 } else { 2.0 };
        sum += weight * density(width * f64::from(step));
    }
    0.5 + sum * width / 3.0
}

#[test]
fn rates_of_a_fleet_are_log_normal_through_both_quantiles() {
    let spec = spec(100_000, FLEET, named_shape("poisson").unwrap());
    let mut rates = spec.rates_per_minute(&Streams::new("test", 20_250_707));
    rates.sort_unstable_by(f64::total_cmp);
    // As computed in workloads §2.
    let (mu, sigma) = FLEET.log_parameters();
    assert!(
        (sigma - 4.849).abs() < 5e-4 && (mu + 5.026).abs() < 5e-4,
        "{mu} {sigma}"
    );
    let count = f64::from(spec.functions);
    let mut distance: f64 = 0.0;
    for (at, &rate) in (0_u32..).zip(&rates).filter(|(_, rate)| **rate < 1200.0) {
        let expected = normal_cdf((rate.ln() - mu) / sigma);
        for at in [at, at + 1] {
            distance = distance.max((f64::from(at) / count - expected).abs());
        }
    }
    assert!(distance < 0.01, "{distance}");
    for (rate, share) in [(1.0, 0.85), (60.0, 0.97), (1.0 / 60.0, 0.576)] {
        let below = u32::try_from(rates.partition_point(|&r| r <= rate)).unwrap();
        let found = f64::from(below) / count;
        assert!((found - share).abs() < 0.005, "{rate}: {found}");
    }
    let clamped = rates.iter().filter(|&&rate| rate == 1200.0).count();
    assert!(clamped > 100 && rates.last() == Some(&1200.0), "{clamped}");
    let mean = rates.iter().sum::<f64>() / count;
    assert!((13.5..17.0).contains(&mean), "{mean}");
}

#[test]
fn other_rates_have_their_ranges_and_means() {
    for (rates, low, high, mean) in [
        (
            Rates::LogUniform {
                min_per_minute: 5.0,
                max_per_minute: 30.0,
            },
            5.0,
            30.0,
            13.95,
        ),
        (
            preset("torpor-node-light").unwrap().rates[0],
            4.9,
            14.4,
            9.8,
        ),
        (Rates::Equal { per_minute: 7.0 }, 7.0, 7.0, 7.0),
    ] {
        let spec = spec(20_000, rates, named_shape("poisson").unwrap());
        let drawn = spec.rates_per_minute(&Streams::new("test", 1));
        assert!(drawn.iter().all(|rate| (low..=high).contains(rate)));
        let found = drawn.iter().sum::<f64>() / 20_000.0;
        assert!((found / mean - 1.0).abs() < 0.01, "{rates:?}: {found}");
    }
}

#[test]
fn a_total_scales_all_rates_by_the_same_factor() {
    let mut spec = spec(1_000, FLEET, named_shape("poisson").unwrap());
    let streams = Streams::new("test", 1);
    let before = spec.rates_per_minute(&streams);
    spec.total_per_minute = Some(600.0);
    let after = spec.rates_per_minute(&streams);
    assert!((after.iter().sum::<f64>() - 600.0).abs() < 1e-6);
    let factor = after[0] / before[0];
    for (before, after) in before.iter().zip(&after) {
        assert!((after / before / factor - 1.0).abs() < 1e-12);
    }
}

/// Checks the table of workloads §3: variance over mean of minute counts at 10 requests a minute. The ranges contain the
/// measured values, and the theoretical ones where these are known.
#[test]
fn shapes_have_the_dispersion_of_the_table() {
    let minutes = 40_000;
    for (name, low, high) in [
        ("poisson", 0.95, 1.05),
        ("steady", 0.2, 0.45),
        // 1 + r/k: 1.71 and 6.
        ("mild", 1.6, 1.82),
        ("uneven", 5.6, 6.4),
        ("bursty", 15.0, 23.0),
        ("spiky", 38.0, 56.0),
    ] {
        let length = Span(u64::from(minutes) * MINUTE);
        let arrivals = arrivals(&named_shape(name).unwrap(), 10.0, None, length);
        let (mean, found) = dispersion(arrivals, MINUTE, minutes);
        assert!((low..high).contains(&found), "{name}: {found}");
        assert!((mean / 10.0 - 1.0).abs() < 0.05, "{name}: mean {mean}");
    }
}

/// Workloads §3: `1 + 2φ(1 − φ)(r_hi − r_lo)²τ/r` in windows far longer than the states.
#[test]
fn two_states_have_the_dispersion_of_the_formula_in_long_windows() {
    let shape = named_shape("bursty").unwrap();
    let (on, off) = (2.0, 2.0 * 0.88 / 0.12);
    let tau = 1.0 / (1.0 / on + 1.0 / off);
    let (high, low) = (50.0, 10.0 * (1.0 - 0.6) / 0.88);
    let spread: f64 = high - low;
    let expected = 1.0 + 2.0 * 0.12 * 0.88 * spread * spread * tau / 10.0;
    let window = 120 * MINUTE;
    let windows = 2_000;
    let length = Span(u64::from(windows) * window);
    let (mean, found) = dispersion(arrivals(&shape, 10.0, None, length), window, windows);
    assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
    assert!((mean / 1_200.0 - 1.0).abs() < 0.02, "{mean}");
}

#[test]
fn gaps_have_the_variation_of_their_shape_and_start_stationary() {
    let shape = Shape::Gaps { k: 4.0 };
    let times: Vec<f64> = arrivals(&shape, 60.0, None, Span::from_secs(50_000))
        .map(|at| Span(at.0).as_secs_f64())
        .collect();
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let count = f64::from(u32::try_from(gaps.len()).unwrap());
    let mean = gaps.iter().sum::<f64>() / count;
    let variance = gaps
        .iter()
        .map(|gap| (gap - mean) * (gap - mean))
        .sum::<f64>()
        / count;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    assert!((variance / (mean * mean) - 0.25).abs() < 0.01, "{variance}");
    // In the long run, any second contains one request on average, so the first second must as well.
    let first = (0..4_000_u32)
        .map(|function| one_of_many(&shape, 60.0, None, Span::from_secs(1), function).count())
        .sum::<usize>();
    assert!((3_900..4_100).contains(&first), "{first}");
}

/// A process with two states begins in each with its long-run probability: the first minute has the mean rate.
#[test]
fn two_states_start_stationary() {
    for name in ["bursty", "spiky"] {
        let shape = named_shape(name).unwrap();
        let requests: usize = (0..8_000)
            .map(|function| one_of_many(&shape, 10.0, None, Span(MINUTE), function).count())
            .sum();
        // Its variance is at most 50 times its mean: 80,000 ± 5 · √(50 · 80,000).
        assert!((70_000..90_000).contains(&requests), "{name}: {requests}");
    }
}

#[test]
fn the_daily_factor_moves_requests_within_the_day() {
    let day = Span::from_secs(86_400);
    let daily = Some(Daily { amplitude: 0.4 });
    let shape = named_shape("poisson").unwrap();
    let counts: Vec<f64> = {
        let mut counts = vec![0.0; 24];
        for at in arrivals(&shape, 600.0, daily, day) {
            counts[usize::try_from(at.0 / (60 * MINUTE)).unwrap()] += 1.0;
        }
        counts
    };
    let total: f64 = counts.iter().sum();
    assert!((total / (600.0 * 1440.0) - 1.0).abs() < 0.01, "{total}");
    // First harmonic: 1 + a·sin(2π(t − φ)/24 h) has amplitude a.
    let (mut sine, mut cosine) = (0.0, 0.0);
    for (hour, count) in (0_u32..).zip(&counts) {
        let angle = std::f64::consts::TAU * (f64::from(hour) + 0.5) / 24.0;
        sine += count * angle.sin();
        cosine += count * angle.cos();
    }
    let amplitude = 2.0 * sine.hypot(cosine) / total;
    assert!((amplitude - 0.4).abs() < 0.01, "{amplitude}");
}

#[test]
fn stairs_rise_to_the_rate_and_fall_back() {
    let preset = preset("fast-scale").unwrap();
    let workload = generate(&preset.spec()).unwrap();
    let mut counts = vec![0.0; 21];
    for arrival in workload.arrivals {
        counts[usize::try_from(arrival.unwrap().at.0 / 10_000_000_000).unwrap()] += 1.0;
    }
    for (step, count) in (0_i32..).zip(counts) {
        let expected = f64::from(10 - (step - 10).abs()) * 110.0;
        assert!(
            (count - expected).abs() <= 5.0 * expected.sqrt(),
            "{step}: {count}"
        );
    }
}

/// Adding functions does not change the existing ones.
#[test]
fn a_function_is_the_same_in_a_larger_fleet() {
    let of_first = |functions: u32| {
        let preset = preset("torpor-node").unwrap();
        let spec = preset.spec_at(functions, preset.rates[0]);
        let workload = generate(&spec).unwrap();
        let infos = workload.functions[..20].to_vec();
        let arrivals: Vec<_> = workload
            .arrivals
            .map(Result::unwrap)
            .filter(|arrival| arrival.function < 20)
            .collect();
        (infos, arrivals)
    };
    let few = of_first(20);
    assert!(few.1.len() > 2_000);
    assert_eq!(few, of_first(50));
}

#[test]
fn every_preset_yields_its_load_in_order() {
    for name in preset_names().unwrap() {
        let preset = preset(&name).unwrap();
        let spec = preset.spec();
        let length = spec.length();
        let workload = generate(&spec).unwrap();
        assert_eq!(workload.functions.len(), spec.functions as usize, "{name}");
        let per_minute: f64 = workload
            .functions
            .iter()
            .map(|function| function.per_minute.unwrap())
            .sum();
        let mut count = 0.0;
        let mut last = (Time::ZERO, 0);
        for arrival in workload.arrivals {
            let arrival = arrival.unwrap();
            assert!((arrival.at, arrival.function) >= last, "{name}");
            assert!(arrival.at.0 < length.0, "{name}");
            assert!(arrival.function < spec.functions, "{name}");
            last = (arrival.at, arrival.function);
            count += 1.0;
        }
        // The mean of the stairs is 100 of 210 parts of the rate.
        let factor = if name == "fast-scale" {
            100.0 / 210.0
        } else {
            1.0
        };
        let expected = per_minute * factor * length.as_secs_f64() / 60.0;
        assert!(
            (count / expected - 1.0).abs() < 0.15,
            "{name}: {count} {expected}"
        );
    }
}

#[test]
fn models_are_assigned_in_turn_or_by_share_of_weights() {
    let node = generate(&preset("torpor-node").unwrap().spec()).unwrap();
    for (at, function) in node.functions.iter().enumerate() {
        let heavy = at % 8 == 7;
        assert_eq!(function.model.as_deref() == Some("Bert-qa"), heavy);
        let objective = Span::from_millis(if heavy { 200 } else { 80 });
        assert_eq!(function.objective, Some(objective));
    }
    let mixed = generate(&preset("torpor-heavy-light").unwrap().spec()).unwrap();
    let mut weights: BTreeMap<&str, f64> = BTreeMap::new();
    for function in &mixed.functions {
        *weights
            .entry(function.model.as_deref().unwrap())
            .or_default() += function.memory_mb.unwrap();
    }
    let share = weights["Bert-qa"] / weights.values().sum::<f64>();
    assert!((share - 0.6).abs() < 0.03, "{share}");
    assert_eq!(weights.len(), 2);
}

/// Compares with the arrivals drawn when the test was written, on another machine.
#[test]
fn arrivals_are_the_same_on_every_machine() {
    let workload = generate(&preset("torpor-node").unwrap().spec()).unwrap();
    let arrivals: Vec<_> = workload.arrivals.map(Result::unwrap).collect();
    let mut hash = 0_u64;
    for arrival in &arrivals {
        hash = (hash ^ arrival.at.0 ^ (u64::from(arrival.function) << 48))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(23);
    }
    assert_eq!((arrivals.len(), hash), (33_646, 1_529_658_314_442_728_130));
}

#[test]
fn a_spec_is_parsed_from_toml_and_errors_name_the_key() {
    let text = r#"
        experiment = "mine"
        seed = 7
        functions = 3
        warm_up_s = 0
        counted_s = 60
        rates = { kind = "equal", per_minute = 60 }
        shape = { kind = "on_off", on_share = 0.3, peak = 2, mean_on_s = 20 }
        daily = { amplitude = 0.4 }
    "#;
    let spec = Spec::from_toml(text).unwrap();
    let workload = generate(&spec).unwrap();
    assert_eq!(workload.functions.len(), 3);
    assert!(workload.arrivals.count() > 50);
    let wrong = |from: &str, to: &str| {
        Spec::from_toml(&text.replace(from, to))
            .unwrap_err()
            .to_string()
    };
    for (from, to, message) in [
        (
            "functions = 3",
            "functions = 0",
            "functions is 0: a whole number from 1",
        ),
        ("counted_s = 60", "counted_s = 0", "counted_s is 0"),
        ("counted_s = 60", "counted_s = nan", "counted_s is NaN"),
        (
            "per_minute = 60",
            "per_minute = -1",
            "rates.per_minute is -1",
        ),
        (
            "peak = 2",
            "peak = 4",
            "shape.peak is 4: a number from 1 to 1/on_share",
        ),
        ("on_share = 0.3", "on_share = 1", "shape.on_share is 1"),
        (
            "mean_on_s = 20",
            "mean_on_s = inf",
            "shape.mean_on_s is inf",
        ),
        ("amplitude = 0.4", "amplitude = 2", "daily.amplitude is 2"),
        ("seed = 7", "sed = 7", "unknown field `sed`"),
        ("on_off", "on-off", "unknown variant `on-off`"),
    ] {
        let found = wrong(from, to);
        assert!(found.contains(message), "{to}: {found}");
    }
}

#[test]
fn an_unknown_preset_is_an_error_that_names_the_others() {
    let error = preset("torpor").unwrap_err();
    assert!(matches!(error, SpecError::Preset { .. }));
    let text = error.to_string();
    assert!(
        text.contains("torpor-heavy-light") && text.contains("fast-scale"),
        "{text}"
    );
    assert!(
        named_shape("round")
            .unwrap_err()
            .to_string()
            .contains("poisson")
    );
    assert!((normal_quantile(0.85) - 1.036_433_389_493_789_4).abs() < 1e-15);
}
