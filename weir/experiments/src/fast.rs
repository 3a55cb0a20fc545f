//! FaST-GShare's experiments: quotas, packing, memory and scaling.

use std::collections::BTreeMap;

use policy::scaling::LoadSettings;
use policy::tokens::Rule;

use super::{ExperimentError, Findings, Progress};
use crate::claims::{Evidence, Run};
use crate::shares::{
    EightPods, QuotaAttainment, SEED, batch, eight, eight_pods, follow, isolation, proportion,
    vit_huge,
};
use simulator::report::{Cell, Column, Part, Section, Table};
use simulator::shared::models::Models;
use simulator::shared::settings::{Scaling, Settings};
use simulator::statistics::{Interval, Unit};

pub(super) const ID: &str = "fast-gshare";
pub(super) const ABOUT: &str = "shares of their quotas that pods reach, GPUs and memory that they need, and violations while they follow a load";

/// Margin on the expected load with which S07 holds, in percent; the specification has 110.
const OTHER_MARGIN: u32 = 400;
/// Number of pods in a random batch.
const BATCH: u32 = 60;
const WAYS: [(&str, EightPods); 4] = [
    ("90 % of the window planned", EightPods::Planned),
    ("quotas × 0.9, one GPU", EightPods::Scaled),
    ("quotas as printed, one GPU", EightPods::Full),
    ("tokens as printed, one GPU", EightPods::AsPrinted),
];

/// One value for each seed, by name.
#[derive(Default)]
struct Values(BTreeMap<&'static str, BTreeMap<u64, f64>>);

impl Values {
    fn note(&mut self, name: &'static str, seed: u64, value: f64) {
        self.0.entry(name).or_default().insert(seed, value);
    }

    fn cell(&self, name: &str, unit: Unit) -> Cell {
        let values: Vec<f64> = self
            .0
            .get(name)
            .into_iter()
            .flat_map(|own| own.values().copied())
            .collect();
        match (Interval::of(&values), values.first()) {
            (Ok(interval), _) => Cell::Interval(interval, unit),
            (Err(_), Some(&value)) => Cell::Number(value, unit),
            (Err(_), None) => Cell::Nothing,
        }
    }
}

pub(super) fn run(
    seeds: u32,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Findings, ExperimentError> {
    let models = Models::fast_gshare();
    let (mut values, mut parts) = (Values::default(), Vec::new());
    let mut progress = Progress {
        done: 0,
        of: seeds,
        events: 0,
    };
    let mut stopped = false;
    for seed in (0..u64::from(seeds)).map(|number| SEED + number) {
        progress.events += one(&models, seed, &mut values, &mut parts)?;
        progress.done += 1;
        if !watch(progress) {
            stopped = progress.done < seeds;
            break;
        }
    }
    Ok(Findings {
        rows: Vec::new(),
        sections: vec![section(&values, &parts)],
        evidence: evidence(&values),
        stopped,
    })
}

/// Runs all parts of the experiment under one seed and returns the number of events of the scaling runs.
fn one(
    models: &Models,
    seed: u64,
    values: &mut Values,
    parts: &mut Vec<(usize, QuotaAttainment)>,
) -> Result<u64, ExperimentError> {
    let needed = eight_pods(models)?;
    for (name, gpus) in [
        ("S06", needed.sorted),
        ("S06 arrival", needed.arrival),
        ("S06 planned", needed.planned),
        ("S06 time", needed.time_only),
        ("S06 exclusive", needed.exclusive),
    ] {
        values.note(name, seed, f64::from(gpus));
    }
    for (name, pods) in [("S10", 3), ("S11", 1)] {
        if let Some(memory) = vit_huge(models, pods) {
            values.note(name, seed, megabytes(memory.shared));
        }
    }
    values.note("S14", seed, proportion(models, seed, Rule::Weir)?.holds);
    values.note("S17", seed, isolation(models, seed, Rule::Weir)?.holds);
    let (settings, plain) = (Settings::default(), Scaling::default());
    let wide = Scaling {
        load: LoadSettings {
            margin_percent: OTHER_MARGIN,
            ..plain.load
        },
        ..plain
    };
    let mut events = 0;
    for (name, gpus, scaling) in [
        ("S07", "S07 GPUs", plain),
        ("S07 wide", "S07 wide GPUs", wide),
        ("S07 printed", "S07 printed GPUs", Scaling::as_printed()),
    ] {
        let followed = follow(models, &settings, &scaling, seed)?;
        values.note(name, seed, followed.violations);
        values.note(gpus, seed, followed.gpu_seconds);
        events += followed.events;
    }
    for (at, (_, way)) in WAYS.iter().enumerate() {
        parts.push((at, eight(models, seed, *way)?));
    }
    let batch = batch(models, seed, BATCH)?;
    for (name, gpus) in [
        ("batch sorted", batch.needed.sorted),
        ("batch arrival", batch.needed.arrival),
        ("batch planned", batch.needed.planned),
        ("batch time", batch.needed.time_only),
        ("batch exclusive", batch.needed.exclusive),
    ] {
        values.note(name, seed, f64::from(gpus));
    }
    values.note("batch area", seed, batch.area);
    Ok(events)
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
const fn megabytes(value: u64) -> f64 {
    value as f64
}

fn evidence(values: &Values) -> BTreeMap<String, Evidence> {
    let mut all = BTreeMap::new();
    let run = |name: &str, parameters: &[(&str, String)]| Run {
        parameters: parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect(),
        by_seed: values.0.get(name).cloned().unwrap_or_default(),
    };
    for claim in ["S06", "S10", "S11", "S14", "S17"] {
        let own = run(claim, &[]);
        if !own.by_seed.is_empty() {
            let evidence = Evidence {
                run: own,
                other: None,
            };
            all.insert(claim.to_owned(), evidence);
        }
    }
    let margin = |percent: u32| [("margin_percent", percent.to_string())];
    let own = run("S07", &margin(LoadSettings::default().margin_percent));
    if !own.by_seed.is_empty() {
        let evidence = Evidence {
            run: own,
            other: Some(run("S07 wide", &margin(OTHER_MARGIN))),
        };
        all.insert("S07".to_owned(), evidence);
    }
    all
}

fn section(values: &Values, parts: &[(usize, QuotaAttainment)]) -> Section {
    let text = |text: &str| Cell::Text(text.to_owned());
    let gpus = |name: &str, row: [&str; 5]| {
        let mut cells = vec![text(name)];
        cells.extend(row.map(|key| values.cell(key, Unit::Gpus)));
        cells
    };
    let packing = Table {
        title: "GPUs that pods need".to_owned(),
        columns: [
            "",
            "largest first",
            "in order of arrival",
            "90 % planned",
            "by time alone",
            "one pod each",
        ]
        .into_iter()
        .enumerate()
        .map(|(at, name)| {
            if at == 0 {
                Column::text(name)
            } else {
                Column::number(name)
            }
        })
        .collect(),
        rows: vec![
            gpus(
                "the eight pods of §5.4",
                [
                    "S06",
                    "S06 arrival",
                    "S06 planned",
                    "S06 time",
                    "S06 exclusive",
                ],
            ),
            gpus(
                "60 random pods",
                [
                    "batch sorted",
                    "batch arrival",
                    "batch planned",
                    "batch time",
                    "batch exclusive",
                ],
            ),
        ],
    };
    let follow = |name: &str, key: &str, gpus: &str| {
        vec![
            text(name),
            values.cell(key, Unit::Percent),
            values.cell(gpus, Unit::Count),
        ]
    };
    let scaling = Table {
        title:
            "ResNet beyond 69 ms while pods follow a load from 0 to 110 requests a second and back"
                .to_owned(),
        columns: vec![
            Column::text("scaling"),
            Column::number("late"),
            Column::number("GPU s allocated"),
        ],
        rows: vec![
            follow("as specified, margin 110 %", "S07", "S07 GPUs"),
            follow("margin 400 %", "S07 wide", "S07 wide GPUs"),
            follow("as printed", "S07 printed", "S07 printed GPUs"),
        ],
    };
    let eight = Table {
        title: "Shares of their quotas that the eight pods of §5.4 reach".to_owned(),
        columns: vec![
            Column::text("setting"),
            Column::number("GPUs"),
            Column::number("least"),
            Column::number("mean"),
        ],
        rows: WAYS
            .iter()
            .enumerate()
            .map(|(at, (name, _))| {
                let own = parts.iter().filter(|(way, _)| *way == at);
                let (mut least, mut sum, mut count, mut gpus) = (f64::INFINITY, 0.0, 0.0, 0);
                for (_, reached) in own {
                    gpus = gpus.max(reached.gpus);
                    for part in reached.parts {
                        least = least.min(part);
                        sum += part;
                        count += 1.0;
                    }
                }
                vec![
                    text(name),
                    Cell::Number(f64::from(gpus), Unit::Gpus),
                    Cell::Number(least, Unit::Share),
                    Cell::Number(sum / f64::max(count, 1.0), Unit::Share),
                ]
            })
            .collect(),
    };
    Section {
        title: ID.to_owned(),
        text: format!("{ABOUT}."),
        parts: [packing, eight, scaling].map(Part::Table).into(),
    }
}
