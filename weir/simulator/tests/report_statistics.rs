//! Compares histogram, timeline and seeds with models that store all values.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::{Span, Time};
use simulator::statistics::{Histogram, Interval, Percentile, Timeline};
use testing::Random;

/// Returns a number in which each bit length is equally likely.
fn of_any_size(random: &mut Random) -> u64 {
    let bits = random.below(65);
    if bits == 0 {
        0
    } else {
        random.next() >> (64 - bits)
    }
}

const PERCENTILES: [u32; 8] = [1, 1_000, 50_000, 90_000, 95_000, 98_000, 99_900, 100_000];

fn agrees(histogram: &Histogram, values: &[Span], seed: u64) {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    assert_eq!(histogram.count(), sorted.len() as u64, "seed {seed}");
    assert_eq!(histogram.least(), sorted.first().copied(), "seed {seed}");
    assert_eq!(histogram.greatest(), sorted.last().copied(), "seed {seed}");
    let sum: u128 = sorted.iter().map(|value| u128::from(value.0)).sum();
    let mean = sum.checked_div(sorted.len() as u128);
    let found = histogram.mean().map(|mean| u128::from(mean.0));
    assert_eq!(found, mean, "seed {seed}");
    for thousandths in PERCENTILES {
        let percentile = Percentile::from_thousandths(thousandths).unwrap();
        let (found, exact) = (histogram.percentile(percentile), percentile.of(&sorted));
        let (Some(found), Some(exact)) = (found, exact) else {
            assert_eq!(found, exact, "seed {seed}");
            continue;
        };
        // A hundredth, in integers, which is exact for the largest numbers too.
        let off = u128::from(found.0.abs_diff(exact.0)) * 100;
        assert!(
            off <= u128::from(exact.0),
            "seed {seed}: p{thousandths} {found:?} and {exact:?}"
        );
    }
    let mut before = (None, 0);
    for (latency, reached) in histogram.steps() {
        assert!(
            Some(latency) > before.0 || before.0.is_none(),
            "seed {seed}"
        );
        assert!(reached > before.1, "seed {seed}");
        before = (Some(latency), reached);
    }
    assert_eq!(before.1, sorted.len() as u64, "seed {seed}");
}

#[test]
fn a_histogram_is_within_one_percent_of_the_values_themselves() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut parts: Vec<(Histogram, Vec<Span>)> = vec![Default::default(); 3];
        for _ in 0..300 {
            let at = random.index(3);
            match random.below(50) {
                0 => {
                    let (other, values) = parts[(at + 1) % 3].clone();
                    parts[at].0.merge(&other);
                    parts[at].1.extend(values);
                    parts[(at + 1) % 3].0.clear();
                    parts[(at + 1) % 3].1.clear();
                }
                1..25 => {
                    let value = Span(of_any_size(&mut random));
                    parts[at].0.record(value);
                    parts[at].1.push(value);
                }
                // Realistic latencies: close to each other.
                _ => {
                    let value = Span(20_000_000 + random.below(60_000_000));
                    parts[at].0.record(value);
                    parts[at].1.push(value);
                }
            }
            agrees(&parts[at].0, &parts[at].1, seed);
        }
    }
}

#[test]
fn the_order_of_merging_does_not_matter() {
    let mut random = Random(7);
    let mut parts = vec![Histogram::new(); 4];
    for _ in 0..1_000 {
        let at = random.index(4);
        parts[at].record(Span(of_any_size(&mut random)));
    }
    let mut forth = Histogram::new();
    let mut back = Histogram::new();
    for at in 0..4 {
        forth.merge(&parts[at]);
        back.merge(&parts[3 - at]);
    }
    assert_eq!(forth, back);
    assert_eq!(forth.count(), 1_000);
}

#[test]
fn recording_allocates_nothing_between_the_least_and_the_greatest() {
    let mut histogram = Histogram::new();
    let mut other = Histogram::new();
    let mut line = Timeline::new(Time(0), 8, 64, Span(1_000)).unwrap();
    other.record(Span(5));
    let first = allocation_counter::measure(|| {
        for n in 0..10_000_u64 {
            histogram.record(Span(n * n));
        }
    });
    assert!(first.count_total <= 59, "{first:?}");
    let counted = allocation_counter::measure(|| {
        for n in 0..10_000_u64 {
            histogram.record(Span(n * n));
            line.busy(
                usize::try_from(n % 8).unwrap(),
                Time(n * 700),
                Time(n * 700 + 500),
            );
        }
        histogram.merge(&other);
        histogram.clear();
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
    assert!(line.width() > Span(1_000), "bins must have merged");
}

#[test]
fn a_timeline_counts_every_nanosecond_however_often_it_merges() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let slots = 1 + random.index(4);
        let bins = 2 * (1 + random.index(6));
        let begin = random.below(1_000);
        let mut line = Timeline::new(Time(begin), slots, bins, Span(1 + random.below(9))).unwrap();
        // The recorded periods by slot.
        let mut periods: Vec<Vec<(u64, u64)>> = vec![Vec::new(); slots];
        let mut until = begin;
        for _ in 0..200 {
            let slot = random.index(slots);
            let from = random.below(until + 40);
            let to = from + random.below(60);
            if random.below(6) == 0 {
                line.pass(Time(to));
            } else {
                line.busy(slot, Time(from), Time(to));
                periods[slot].push((from.max(begin), to.max(begin)));
            }
            until = until.max(to);
            assert!(line.len() <= bins, "seed {seed}");
            let covered = line.width().0 * bins as u64;
            assert!(begin + covered >= until, "seed {seed}");
            for (slot, periods) in periods.iter().enumerate() {
                let mut sum = 0;
                for bin in 0..line.len() {
                    let from = begin + bin as u64 * line.width().0;
                    let to = (from + line.width().0).min(until);
                    let overlap = |&(a, b): &(u64, u64)| b.min(to).saturating_sub(a.max(from));
                    let busy: u64 = periods.iter().map(overlap).sum();
                    let share = line.share(slot, bin).unwrap();
                    let expected = busy as f64 / (to - from) as f64;
                    assert!((share - expected).abs() < 1e-9, "seed {seed} bin {bin}");
                    sum += busy;
                }
                assert_eq!(line.total(slot), Span(sum), "seed {seed}");
                assert_eq!(line.share(slot, line.len()), None, "seed {seed}");
            }
        }
    }
}

/// Of samples with a known mean, about 95 of 100 intervals contain it. The bounds below fit these seeds and are
/// far from the result of a wrong factor.
#[test]
fn ninety_five_of_a_hundred_intervals_contain_the_mean() {
    let mut random = Random(3);
    let mut held = 0;
    for _ in 0..4_000 {
        // A sum of twelve uniforms less six is close to normal with variance 1.
        let values: Vec<f64> = (0..5)
            .map(|_| {
                let sum: u64 = (0..12).map(|_| random.below(1 << 20)).sum();
                sum as f64 / f64::from(1 << 20) - 6.0
            })
            .collect();
        held += u32::from(Interval::of(&values).unwrap().meets(0.0, 0.0));
    }
    // Deviation 14 around 3,800; with the normal's 1.96 it would be 3,514.
    assert!((3_750..=3_850).contains(&held), "{held} of 4000");
}
