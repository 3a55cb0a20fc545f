//! A page with every part, from synthetic numbers of realistic size.

use std::collections::BTreeMap;

use experiments::claims::{Claims, Evidence, Run};
use policy::{Span, Time};
use simulator::report::{
    Activity, Attainment, Busy, Cell, Column, Curve, Figure, Latencies, Line, Part, Report,
    Section, Slots, Table, Turn,
};
use simulator::statistics::{Histogram, Interval, Percentile, Timeline, Unit};

use testing::Random;

/// Returns a number from 0 to 1.
fn share(random: &mut Random) -> f64 {
    f64::from(u32::try_from(random.next() >> 32).unwrap()) / f64::from(u32::MAX)
}

const MS: u64 = 1_000_000;

/// Returns latencies of requests, some with a resident model, some with a load, and some after a wait.
pub(crate) fn latencies(random: &mut Random, resident: u64, load: u64, count: u64) -> Histogram {
    let mut histogram = Histogram::new();
    for _ in 0..count {
        let mut latency = resident * (970 + random.below(60)) / 1_000;
        if random.below(10) < 6 {
            latency += load * (900 + random.below(200)) / 1_000;
        }
        let mut wait = random.below(8 * MS);
        while random.below(3) == 0 {
            wait += random.below(14 * MS);
        }
        histogram.record(Span(latency + wait));
    }
    histogram
}

fn by_seed(random: &mut Random, mean: f64, spread: f64) -> BTreeMap<u64, f64> {
    (20_250_707..20_250_717)
        .map(|seed| (seed, mean + spread * (2.0 * share(random) - 1.0)))
        .collect()
}

fn judged(random: &mut Random) -> Part {
    let mut evidence = BTreeMap::new();
    for (id, mean, spread) in [
        ("T01", 478.0, 12.0),
        ("T02", 89.0, 2.5),
        ("T03", 160.0, 0.0),
        ("T04", 72.0, 0.0),
        ("T05", 131.0, 5.0),
        ("T06", 7.0, 2.0),
        ("T07", 1.0, 0.0),
        ("T08", 12.0, 0.4),
        ("T09", 33.0, 2.0),
        ("T10", 36.0, 2.5),
        ("T11", -0.4, 0.45),
        ("T26", 9.4, 1.1),
        ("T27", 5.2, 0.9),
        ("S06", 1.0, 0.0),
        ("S10", 9_282.0, 0.0),
        ("S14", 1.0, 0.0),
    ] {
        let run = Run {
            parameters: [("keep-alive".to_owned(), "histogram".to_owned())].into(),
            by_seed: by_seed(random, mean, spread),
        };
        let other = (id == "T05").then(|| Run {
            parameters: [("keep-alive".to_owned(), "10 min".to_owned())].into(),
            by_seed: by_seed(random, 116.0, 5.0),
        });
        evidence.insert(id.to_owned(), Evidence { run, other });
    }
    Part::Verdicts(Claims::of_papers().judge(&evidence).unwrap().verdicts())
}

fn attainment(random: &mut Random) -> Part {
    let loads = [160.0, 320.0, 400.0, 480.0, 560.0, 640.0];
    let mut line = |name: &str, means: [f64; 6]| Line {
        name: name.to_owned(),
        points: loads
            .iter()
            .zip(means)
            .map(|(&load, mean)| {
                let spread = 0.09 * mean.min(1.02 - mean) + 0.004;
                let values: Vec<f64> = (0..10)
                    .map(|_| (mean + spread * (4.0 * share(random) - 2.0)).clamp(0.0, 1.0))
                    .collect();
                (load, Interval::of(&values).unwrap())
            })
            .collect(),
    };
    Part::Attainment(Attainment {
        title: "Functions that keep their objective, over load".to_owned(),
        load_name: "functions on the node".to_owned(),
        load_unit: Unit::Functions,
        share_name: "functions that keep their objective".to_owned(),
        mark: Some((0.8, "80 %: the paper at 560 functions".to_owned())),
        chosen: None,
        lines: vec![
            line("adaptive threshold", [1.0, 1.0, 1.0, 0.99, 0.89, 0.74]),
            line("arrival order", [1.0, 1.0, 1.0, 0.98, 0.09, 0.0]),
            line("eviction by last use", [1.0, 1.0, 0.97, 0.87, 0.7, 0.27]),
            line("random slot", [0.96, 0.52, 0.17, 0.03, 0.01, 0.01]),
        ],
    })
}

const MODELS: [&str; 8] = [
    "resnet-50",
    "resnet-101",
    "resnet-152",
    "densenet-169",
    "densenet-201",
    "inception-v3",
    "efficientnet",
    "bert-qa",
];

fn slots(random: &mut Random, length: u64, title: &str) -> Part {
    let mut turns = Vec::new();
    for slot in 0..4 {
        let mut at = random.below(20 * MS);
        while at < length {
            let holder = random.index(MODELS.len());
            let load = (6 + 3 * holder as u64) * MS;
            let compute = (12 + random.below(26)) * MS;
            let starts = at + load * 2 / 3;
            if random.below(3) > 0 {
                turns.push(Turn {
                    slot,
                    holder,
                    from: Time(at),
                    to: Time(at + load),
                    activity: Activity::Load,
                });
            }
            turns.push(Turn {
                slot,
                holder,
                from: Time(starts),
                to: Time(starts + compute),
                activity: Activity::Compute,
            });
            at = starts + compute + random.below(5 + 16 * slot as u64) * MS;
        }
    }
    Part::Slots(Slots {
        title: title.to_owned(),
        from: Time(0),
        to: Time(length),
        slots: (0..4).map(|slot| format!("GPU {slot}")).collect(),
        holders: MODELS.iter().map(|&name| name.to_owned()).collect(),
        turns,
    })
}

fn busy(random: &mut Random) -> Part {
    let mut timeline = Timeline::new(Time(0), 4, 300, Span(1_000 * MS)).unwrap();
    for slot in 0..4 {
        let mut at = 0;
        while at < 900_000 * MS {
            let compute = (15 + random.below(30)) * MS;
            timeline.busy(slot, Time(at), Time(at + compute));
            let wave = 1.3 + libm::sin(at as f64 / 9.0e10 + slot as f64);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most 60 ms"
            )]
            let idle = (share(random) * wave * 24.0 * MS as f64) as u64;
            at += compute + idle;
        }
    }
    Part::Busy(Busy {
        title: "How busy the GPUs were in the whole run".to_owned(),
        slots: (0..4).map(|slot| format!("GPU {slot}")).collect(),
        timeline,
    })
}

fn table() -> Part {
    let interval = |mean: f64, half: f64| Interval {
        mean,
        low: mean - half,
        high: mean + half,
        seeds: 10,
    };
    let row = |name: &str, share: f64, tail: f64, swaps: f64| {
        vec![
            Cell::Text(name.to_owned()),
            Cell::Interval(interval(share, 0.01), Unit::Share),
            Cell::Interval(interval(tail, 4.0e6), Unit::Nanoseconds),
            Cell::Number(swaps, Unit::PerSecond),
            Cell::Nothing,
        ]
    };
    Part::Table(Table {
        title: "Policies at 560 functions".to_owned(),
        columns: vec![
            Column::text("policy"),
            Column::number("keep their objective"),
            Column::number("p98"),
            Column::number("swaps"),
            Column::number("refused"),
        ],
        rows: vec![
            row("adaptive threshold", 0.89, 74.0e6, 61.2),
            row("arrival order", 0.09, 212.0e6, 63.8),
            row("eviction by last use", 0.7, 131.0e6, 84.1),
        ],
    })
}

/// Returns a report with every part once; `word` is inserted into all texts that a caller provides.
pub(crate) fn report(word: &str) -> Report {
    let mut random = Random(11);
    let objective = |ms| Some(Span(ms * MS));
    let curve = |random: &mut Random, name: &str, resident, load, ms| {
        let histogram = latencies(random, resident * MS, load * MS, 4_000);
        Curve::new(format!("{word}{name}"), &histogram, objective(ms))
    };
    let few = vec![
        curve(&mut random, "resnet-50", 11, 12, 80),
        curve(&mut random, "resnet-152", 25, 8, 80),
        curve(&mut random, "densenet-201", 29, 6, 80),
        curve(&mut random, "bert-qa", 36, 108, 200),
    ];
    let many = (0..60)
        .map(|n| curve(&mut random, &format!("f{n:02}"), 10 + n / 2, 5 + n, 80))
        .collect();
    let latencies = |title: &str, curves| {
        Part::Latencies(Latencies {
            title: title.to_owned(),
            percentile: Percentile::P98,
            curves,
        })
    };
    let figure = |name: &str, value, unit, note: &str| Figure {
        name: name.to_owned(),
        value,
        unit,
        note: note.to_owned(),
    };
    let parameters = [
        ("nodes × GPUs", "1 × 4, two PCIe pairs"),
        ("functions", "560, 8 models in turn"),
        ("rate of each", "5 to 30 requests a minute"),
        ("objective", "80 ms, Bert-qa 200 ms, at 98 %"),
        ("link", "9.46 GB/s"),
        ("duration", "15 min after warm-up"),
        (
            "policies",
            "deadline order with an adaptive threshold; nearest copy over NVLink, then PCIe away from a busy neighbour; eviction by weight class",
        ),
    ];
    let section = |title: &str, text: &str, parts| Section {
        title: format!("{title}{word}"),
        text: text.to_owned(),
        parts,
    };
    Report {
        answer: vec![(word.to_owned(), word.to_owned())],
        title: format!("One node, from 160 to 640 functions{word}"),
        scenario: format!(
            "torpor-node: four GPUs of 32 GB, functions swapped between host and device.{word}"
        ),
        date: format!("2026-11-22{word}"),
        seeds: (20_250_707..20_250_717).collect(),
        parameters: parameters
            .iter()
            .map(|&(name, value)| (name.to_owned(), format!("{value}{word}")))
            .collect(),
        sections: vec![
            section(
                "At a glance",
                word,
                vec![
                    Part::Figures(vec![
                        figure(
                            "keep their objective at 560",
                            0.893,
                            Unit::Share,
                            "paper: over 80 %",
                        ),
                        figure(
                            "largest load with all of them",
                            478.0,
                            Unit::Functions,
                            "paper: 480",
                        ),
                        figure("p98 of all requests", 74.2e6, Unit::Nanoseconds, ""),
                        figure("swaps", 61.2, Unit::PerSecond, word),
                    ]),
                    attainment(&mut random),
                    table(),
                ],
            ),
            section(
                "Latency",
                "At 560 functions, requests of all ten seeds together.",
                vec![latencies("By model", few), latencies("By function", many)],
            ),
            section(
                "Slots",
                "",
                vec![
                    slots(&mut random, 700 * MS, "GPU occupancy, 0.7 s"),
                    slots(&mut random, 60_000 * MS, "The same, one minute"),
                    busy(&mut random),
                ],
            ),
            section("The papers' claims", "", vec![judged(&mut random)]),
        ],
        footer: String::new(),
    }
}
