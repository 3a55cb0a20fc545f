//! Groups, the timeline of a pipelined swap, and the elbow.

#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use std::num::NonZeroU64;

use policy::Span;
use policy::swap::{
    Elbow, GROUP_MAX, GROUP_MIN, Group, Groups, Link, ModelBlock, Sample, Step, SweepError,
    Timeline, elbow, equal_groups, median, timeline,
};
use testing::Random;

const MIB: u64 = 1 << 20;

#[test]
fn a_group_never_crosses_a_block() {
    let mut groups = Groups::new(NonZeroU64::new(2 * MIB).unwrap());
    let block = |n: u32, bytes| (ModelBlock(n), bytes);
    groups.set([
        block(4, 5 * MIB),
        block(1, 1),
        block(4, 99),
        block(7, 0),
        block(0, 4 * MIB),
    ]);
    let seen: Vec<_> = groups
        .groups()
        .iter()
        .map(|group| (group.block.0, group.offset, group.bytes))
        .collect();
    let two = 2 * MIB;
    assert_eq!(
        seen,
        [
            (4, 0, two),
            (4, two, two),
            (4, 2 * two, MIB),
            (1, 0, 1),
            (0, 0, two),
            (0, two, two)
        ]
    );
    assert_eq!(groups.of_block(ModelBlock(4)), 0..3);
    assert_eq!(groups.of_block(ModelBlock(0)), 4..6);
    assert!(
        groups.of_block(ModelBlock(7)).is_empty() && groups.of_block(ModelBlock(99)).is_empty()
    );
    assert_eq!(groups.needed([ModelBlock(1), ModelBlock(4)]), 4);
    assert_eq!(groups.needed([ModelBlock(7)]), 0);
    groups.set([block(1, 1)]);
    assert_eq!(
        groups.groups(),
        [Group {
            block: ModelBlock(1),
            offset: 0,
            bytes: 1
        }]
    );
    assert!(
        groups.of_block(ModelBlock(0)).is_empty(),
        "of the model before"
    );
}

#[test]
fn groups_of_any_model_are_its_blocks() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let size = 1 + random.below(1_000);
        let blocks: Vec<_> = (0..1 + u32::try_from(random.below(30)).unwrap())
            .map(|n| (ModelBlock(n), random.below(5_000)))
            .collect();
        let mut groups = Groups::new(NonZeroU64::new(size).unwrap());
        groups.set(blocks.iter().copied());
        for &(block, bytes) in &blocks {
            let range = groups.of_block(block);
            let mut offset = 0;
            for group in &groups.groups()[range.start as usize..range.end as usize] {
                assert_eq!((group.block, group.offset), (block, offset), "seed {seed}");
                assert!(0 < group.bytes && group.bytes <= size, "seed {seed}");
                offset += group.bytes;
            }
            assert_eq!(offset, bytes, "seed {seed}");
            assert_eq!(
                u64::from(range.end - range.start),
                bytes.div_ceil(size),
                "seed {seed}"
            );
        }
        let sum: u64 = groups.groups().iter().map(|group| group.bytes).sum();
        assert_eq!(
            sum,
            blocks.iter().map(|(_, bytes)| bytes).sum(),
            "seed {seed}"
        );
    }
}

/// Returns the timeline in steps of a nanosecond: one group is copied, and one step computed if its groups are present.
fn stepwise(lead: u64, transfers: &[u64], steps: &[Step]) -> Timeline {
    let mut left = transfers.to_vec();
    let (mut arrived, mut at, mut done) = (0, 0, 0);
    let mut seen = Timeline::default();
    let mut began = None;
    for now in lead.. {
        while arrived < left.len() && left[arrived] == 0 {
            arrived += 1;
            seen.transferred = Span(now);
        }
        while at < steps.len() {
            let there = arrived >= (steps[at].needs as usize).min(left.len());
            if there {
                began.get_or_insert(Span(now));
            }
            if !there || done < steps[at].compute.0 {
                break;
            }
            (at, done) = (at + 1, 0);
        }
        if at == steps.len() && seen.finished == Span::ZERO {
            seen.finished = Span(now);
        }
        if at == steps.len() && arrived == left.len() {
            break;
        }
        if let Some(step) = steps.get(at) {
            if arrived >= (step.needs as usize).min(left.len()) {
                done += 1;
            } else {
                seen.waited.0 += 1;
            }
        }
        if arrived < left.len() {
            left[arrived] -= 1;
        }
    }
    seen.transferred = seen.transferred.max(Span(lead));
    seen.began = began.unwrap_or(seen.finished);
    seen
}

#[test]
fn a_timeline_agrees_with_a_stepwise_simulation() {
    let mut waited = 0;
    for seed in 0..2_000 {
        let mut random = Random(seed);
        let transfers: Vec<_> = (0..random.below(8)).map(|_| random.below(20)).collect();
        let steps: Vec<_> = (0..random.below(8))
            .map(|_| Step {
                needs: u32::try_from(random.below(10)).unwrap(),
                compute: Span(random.below(20)),
            })
            .collect();
        let lead = 1 + random.below(5);
        let spans = transfers.iter().map(|&nanos| Span(nanos));
        let seen = timeline(Span(lead), spans, steps.iter().copied());
        assert_eq!(
            seen,
            stepwise(lead, &transfers, &steps),
            "seed {seed}: {transfers:?} {steps:?}"
        );
        waited += u32::from(seen.waited > Span::ZERO);
    }
    assert!(waited > 1_000, "{waited}");
}

#[test]
fn equal_groups_have_a_closed_form() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let groups = u32::try_from(random.below(40)).unwrap();
        let (lead, transfer, compute) = (random.below(9), random.below(50), random.below(50));
        let transfers = (0..groups).map(|_| Span(transfer));
        let steps = (1..=groups).map(|needs| Step {
            needs,
            compute: Span(compute),
        });
        let expected = timeline(Span(lead), transfers, steps);
        let seen = equal_groups(Span(lead), groups, Span(transfer), Span(compute));
        assert_eq!(seen, expected, "seed {seed}");
    }
    let forever = equal_groups(Span(1), u32::MAX, Span(u64::MAX), Span(1));
    assert_eq!(forever.finished, Span(u64::MAX));
}

/// Torpor Table 4: compute time of a resident model, parameters in thousands, and time with a swap over PCIe, as
/// printed.
const TABLE_4: [(&str, u64, u64, u64); 8] = [
    ("DenseNet-169", 25, 14_149, 27),
    ("DenseNet-201", 28, 20_014, 30),
    ("Inception-v3", 14, 27_161, 17),
    ("EfficientNet", 12, 5_289, 13),
    ("ResNet-50", 9, 25_557, 13),
    ("ResNet-101", 14, 44_549, 22),
    ("ResNet-152", 17, 60_193, 25),
    ("Bert-qa", 43, 335_000, 144),
];

#[test]
fn the_fit_of_torpor_table_4_holds_and_groups_approach_it() {
    let link = Link {
        bytes_per_second: 9_460_000_000,
        overhead: Span(1_920_000),
    };
    for (name, compute, thousands, printed) in TABLE_4 {
        let bytes = thousands * 4_000;
        let compute = Span::from_millis(compute);
        let closed = link.latency(compute, bytes);
        let error = closed.as_secs_f64() * 1e3 / f64::from(u32::try_from(printed).unwrap()) - 1.0;
        println!(
            "{name}: {closed:?}, printed {printed} ms, {:.1} %",
            error * 100.0
        );
        assert!(error.abs() <= 0.095, "{name}: {error}");
        let groups = u32::try_from(bytes.div_ceil(2 * MIB)).unwrap();
        let each = |span: Span| Span(span.0 / u64::from(groups));
        let transfer = each(link.transfer(bytes));
        let exact = equal_groups(link.overhead, groups, transfer, each(compute));
        // The cost of a pipeline beyond the larger of the two: one group of the smaller.
        let beyond = exact.finished.less(closed);
        assert!(
            beyond <= transfer.min(each(compute)),
            "{name}: {exact:?} {closed:?}"
        );
    }
    assert_eq!(link.transfer(0), Span::ZERO);
    let dead = Link {
        bytes_per_second: 0,
        ..link
    };
    assert_eq!(
        (dead.transfer(0), dead.transfer(1)),
        (Span::ZERO, Span(u64::MAX))
    );
}

fn sweep(overhead: u64, bytes_per_second: u64) -> Vec<Sample> {
    let link = Link {
        bytes_per_second,
        overhead: Span(overhead),
    };
    (16..=26)
        .map(|power| Sample {
            bytes: 1 << power,
            time: link.latency(Span::ZERO, 1 << power),
        })
        .collect()
}

#[test]
fn the_elbow_is_where_two_doublings_gain_less_than_a_twentieth() {
    // 22 µs a copy at 9.46 GB/s, which the authors' 2 MB correspond to.
    assert_eq!(
        elbow(&sweep(22_000, 9_460_000_000)),
        Ok(Elbow::Found { bytes: 2 * MIB })
    );
    // s > 9.5 × overhead × throughput, rounded up to a power of two.
    for (overhead, throughput) in [(5_000, 25), (10_000, 50), (30_000, 12), (80_000, 20)] {
        let least = 19 * overhead * throughput / 2;
        let found = elbow(&sweep(overhead, throughput * 1_000_000_000)).unwrap();
        assert_eq!(
            found.bytes(),
            (least + 1).next_power_of_two(),
            "{overhead} {throughput}"
        );
        assert!(matches!(found, Elbow::Found { .. }));
    }
    let clamped = elbow(&sweep(10, 1_000_000_000));
    assert_eq!(clamped, Ok(Elbow::Clamped { bytes: GROUP_MIN }));
    assert_eq!(
        elbow(&sweep(10_000_000, 50_000_000_000)).unwrap(),
        Elbow::NotReached
    );
    assert_eq!(Elbow::NotReached.bytes(), GROUP_MAX);
}

#[test]
fn a_single_flat_doubling_is_no_elbow() {
    let samples = |times: &[u64]| -> Vec<_> {
        let times = times.iter().zip(19..);
        times
            .map(|(&time, power)| Sample {
                bytes: 1 << power,
                time: Span(time),
            })
            .collect()
    };
    // Flat from 512 KiB to 1 MiB only, then from 2 MiB on.
    let found = elbow(&samples(&[1_000, 2_000, 3_000, 5_900, 11_800]));
    assert_eq!(found, Ok(Elbow::Found { bytes: 2 * MIB }));
    // Exactly 5 % is not less: 2 × 105 ÷ 200.
    assert_eq!(elbow(&samples(&[105, 200, 400])), Ok(Elbow::NotReached));
    assert_eq!(
        elbow(&samples(&[104, 200, 400])),
        Ok(Elbow::Found { bytes: MIB / 2 })
    );
    assert_eq!(elbow(&samples(&[1, 2])), Err(SweepError::TooShort));
    assert_eq!(elbow(&samples(&[1, 0, 2])), Err(SweepError::EmptyCopy));
    let mut gap = samples(&[1, 2, 4, 8]);
    gap.remove(1);
    assert_eq!(elbow(&gap), Err(SweepError::NotDoubling { bytes: 2 * MIB }));
}

#[test]
fn a_median_is_in_the_middle() {
    let of = |times: &[u64]| {
        let mut times: Vec<_> = times.iter().map(|&time| Span(time)).collect();
        median(&mut times)
    };
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[9]), Some(Span(9)));
    assert_eq!(of(&[9, 1, 5]), Some(Span(5)));
    assert_eq!(of(&[9, 1, 5, 7]), Some(Span(5)));
}
