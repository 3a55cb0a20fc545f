//! Answers as sections of a page.

mod plots;

use super::answer::{Answer, Runs, fewest_gpus};
use super::sweep::Axis;
use super::table::{money, number, short, value, worst_first};
use crate::report::{Attainment, Cell, Column, Figure, Line, Part, Section, Table};
use crate::statistics::{Interval, Unit};

/// Functions that the table names.
const ROWS: usize = 1_000;

/// Everything there is to show. `axis`: what was swept.
#[must_use]
pub fn sections(runs: &Runs, axis: Option<Axis>) -> Vec<Section> {
    let Some(shown) = runs.shown() else {
        return Vec::new();
    };
    let mut sections = vec![answer(runs, shown, axis)];
    if runs.answers().len() > 1 {
        sections.push(sweep(runs.answers(), axis));
    }
    sections.push(plots::latencies(shown));
    sections.push(plots::slots(shown));
    sections.push(functions(shown));
    sections
}

fn named(own: &Answer) -> String {
    format!(
        "{} with {}, {}× the trace's rate",
        own.rule,
        Unit::Gpus.write(f64::from(own.gpus)),
        Unit::Plain.write(own.rate_scale)
    )
}

/// The fewest GPUs that hold, for each rule that was run.
#[must_use]
pub fn fewest(answers: &[Answer]) -> Vec<String> {
    let mut rules: Vec<&str> = Vec::new();
    for own in answers {
        if !rules.contains(&own.rule) {
            rules.push(own.rule);
        }
    }
    let sentence = |rule: &&str| match fewest_gpus(answers, rule) {
        Some(gpus) => format!(
            "{rule}: {} are the fewest of those run with which every objective holds.",
            Unit::Gpus.write(f64::from(gpus))
        ),
        None => format!("{rule}: in no run does every objective hold."),
    };
    rules.iter().map(sentence).collect()
}

fn answer(runs: &Runs, shown: &Answer, axis: Option<Axis>) -> Section {
    let figure = |name: &str, value, unit, note: String| Figure {
        name: name.to_owned(),
        value,
        unit,
        note,
    };
    let mut figures = vec![
        figure(
            "requests in time",
            shown.attainment,
            Unit::Share,
            format!("of {}", Unit::Count.write(number(shown.requests))),
        ),
        figure(
            "functions that keep their objective",
            #[expect(clippy::cast_precision_loss, reason = "to be read")]
            {
                shown.functions_keeping as f64
            },
            Unit::Count,
            format!("of {}", shown.functions_called),
        ),
        figure(
            "GPUs taken, mean",
            shown.slots_mean,
            Unit::Plain,
            format!("of {}, {} at most", shown.gpus, shown.slots_peak),
        ),
        figure(
            "what loads add to taken time",
            shown.gpu_swapping,
            Unit::Share,
            format!("{} loads", Unit::Count.write(number(shown.loads))),
        ),
    ];
    if let Some(hour) = shown.cost_per_hour {
        let million = shown.cost_per_million_in_time;
        let note = million.map_or_else(String::new, |million| {
            format!("{million:.2} a million requests in time")
        });
        figures.push(figure("cost an hour", hour, Unit::Plain, note));
    }
    let mut text = Vec::new();
    if runs.answers().len() > 1 {
        if axis.is_none_or(|axis| matches!(axis, Axis::Gpus | Axis::Nodes)) {
            text.extend(fewest(runs.answers()));
        }
        text.push(format!("Shown below: {}.", named(shown)));
    }
    text.push(shown.binding.sentence.clone());
    if shown.stopped {
        text.push("Stopped before the end: this is of the time until then.".to_owned());
    }
    text.extend(shown.notes.iter().cloned());
    Section {
        title: format!("What binds: {}", shown.binding.limit.name()),
        text: text.join(" "),
        parts: vec![Part::Figures(figures)],
    }
}

const fn exact(share: f64) -> Interval {
    Interval {
        mean: share,
        low: share,
        high: share,
        seeds: 1,
    }
}

fn sweep(answers: &[Answer], axis: Option<Axis>) -> Section {
    let keeping = |own: &Answer| {
        #[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
        let share = own.functions_keeping as f64 / own.functions_called.max(1) as f64;
        share
    };
    let mut rules: Vec<&str> = answers.iter().map(|own| own.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    let line = |name: String, rule: &str, of: &dyn Fn(&Answer) -> f64| Line {
        name,
        points: answers
            .iter()
            .filter(|own| own.rule == rule)
            .map(|own| (value(own, axis), exact(of(own))))
            .collect(),
    };
    let (share_name, lines) = if let [rule] = rules.as_slice() {
        let requests = line("requests in time".to_owned(), rule, &|own| own.attainment);
        let functions = line(
            "functions that keep their objective".to_owned(),
            rule,
            &keeping,
        );
        ("share", vec![requests, functions])
    } else {
        let lines = rules
            .iter()
            .map(|rule| line((*rule).to_owned(), rule, &keeping));
        ("functions that keep their objective", lines.collect())
    };
    let load_name = axis.map_or("GPUs", Axis::title).to_owned();
    let columns = vec![
        Column::text("rule"),
        Column::text("what binds"),
        Column::number(&load_name),
        Column::number("requests in time"),
        Column::number("functions that keep"),
        Column::number("GPUs"),
        Column::number("taken, mean"),
        Column::number("loads add"),
        Column::number("cost an hour"),
    ];
    let row = |own: &Answer| {
        vec![
            Cell::Text(own.rule.to_owned()),
            Cell::Text(own.binding.limit.name().to_owned()),
            Cell::Number(value(own, axis), Unit::Plain),
            Cell::Number(own.attainment, Unit::Share),
            Cell::Text(format!(
                "{} of {}",
                own.functions_keeping, own.functions_called
            )),
            Cell::Number(f64::from(own.gpus), Unit::Count),
            Cell::Number(own.slots_mean, Unit::Plain),
            Cell::Number(own.gpu_swapping, Unit::Share),
            Cell::Text(money(own.cost_per_hour)),
        ]
    };
    let swept = answers
        .iter()
        .any(|own| value(own, axis) != value(&answers[0], axis));
    let mut parts = Vec::new();
    if swept {
        parts.push(Part::Attainment(Attainment {
            title: format!("Attainment over {load_name}"),
            load_name: load_name.clone(),
            load_unit: Unit::Plain,
            share_name: share_name.to_owned(),
            mark: None,
            lines,
        }));
    }
    parts.push(Part::Table(Table {
        title: "All runs".to_owned(),
        columns,
        rows: answers.iter().map(row).collect(),
    }));
    Section {
        title: "All runs".to_owned(),
        text: "One seed, the same arrivals in every run.".to_owned(),
        parts,
    }
}

fn functions(shown: &Answer) -> Section {
    let order = worst_first(shown);
    let ms = |value: Option<f64>| {
        value.map_or(Cell::Nothing, |ms| {
            Cell::Number(ms * 1e6, Unit::Nanoseconds)
        })
    };
    let row = |&at: &usize| {
        let own = &shown.functions[at];
        vec![
            Cell::Text(short(&own.name)),
            Cell::Text(own.limit.name().to_owned()),
            Cell::Text(own.model.clone()),
            Cell::Number(number(own.requests), Unit::Count),
            own.attainment
                .map_or(Cell::Nothing, |share| Cell::Number(share, Unit::Share)),
            ms(own.p50_ms),
            ms(own.at_percentile_ms),
            ms(own.objective_ms),
            ms(Some(own.execution_ms)),
            ms(Some(own.swapped_ms)),
            Cell::Number(own.loads, Unit::Share),
            Cell::Number(own.billed_gpu_s * 1e9, Unit::Nanoseconds),
        ]
    };
    let text = if order.len() > ROWS {
        format!("The {ROWS} worst of {}.", order.len())
    } else {
        String::new()
    };
    Section {
        title: "Functions".to_owned(),
        text,
        parts: vec![Part::Table(Table {
            title: "By function, those that miss their objective first".to_owned(),
            columns: vec![
                Column::text("function"),
                Column::text("what binds"),
                Column::text("model"),
                Column::number("requests"),
                Column::number("in time"),
                Column::number("median"),
                Column::number("at percentile"),
                Column::number("objective"),
                Column::number("execution"),
                Column::number("with load"),
                Column::number("loads"),
                Column::number("billed GPU time"),
            ],
            rows: order.iter().take(ROWS).map(row).collect(),
        })],
    }
}
