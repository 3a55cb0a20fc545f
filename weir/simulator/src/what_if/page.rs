//! Answers as sections of an HTML page.

mod plots;

use super::answer::{Answer, Outcome, Runs};
use super::sweep::Axis;
use super::table::{money, number, short, value, worst_first};
use super::verdict::Arrivals;
use crate::report::{Attainment, Cell, Column, Figure, Line, Part, Section, Table};
use crate::statistics::{Interval, Unit};

/// Largest number of functions in the table.
const ROWS: usize = 1_000;

/// Returns all sections of the page. `axis` is the value that was swept, if any.
#[must_use]
pub fn sections(runs: &Runs, axis: Option<Axis>, arrivals: Arrivals) -> Vec<Section> {
    let Some(shown) = runs.shown() else {
        return Vec::new();
    };
    let mut sections = vec![evidence(runs, shown, arrivals)];
    if runs.answers().len() > 1 {
        sections.push(sweep(runs.answers(), axis, shown));
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

/// Formats a number of seeds: "one seed", "each of 10 seeds".
pub(super) fn seeds(count: usize) -> String {
    match count {
        1 => "one seed".to_owned(),
        many => format!("each of {many} seeds"),
    }
}

/// Returns "" or " under all 10 seeds".
fn all_seeds(own: &Answer) -> String {
    match own.seeds {
        0 | 1 => String::new(),
        many => format!(" under all {many} seeds"),
    }
}

fn evidence(runs: &Runs, shown: &Answer, arrivals: Arrivals) -> Section {
    let figure = |name: &str, value, unit, note: String| Figure {
        name: name.to_owned(),
        value,
        unit,
        note,
    };
    let mut figures = vec![
        figure(
            "requests in time",
            shown.attainment.mean,
            Unit::Share,
            if shown.seeds > 1 && shown.attainment.low < shown.attainment.high {
                let ends = (shown.attainment.low, shown.attainment.high);
                format!(
                    "{}, 95 % interval over {} seeds",
                    Unit::Share.write_range(ends.0, ends.1),
                    shown.seeds
                )
            } else {
                format!("under {}", seeds(shown.seeds))
            },
        ),
        figure(
            "functions that keep their objective",
            #[expect(clippy::cast_precision_loss, reason = "to be read")]
            {
                shown.functions_keeping as f64
            },
            Unit::Count,
            format!(
                "of {}{}",
                shown.functions_called,
                if shown.seeds > 1 {
                    ", at their intervals' worse ends"
                } else {
                    ""
                }
            ),
        ),
        figure(
            "GPUs busy, mean",
            shown.slots_mean,
            Unit::Plain,
            format!("of {}, {} at most", shown.gpus, shown.slots_peak),
        ),
        figure(
            "share that loads add to busy time",
            shown.gpu_swapping,
            Unit::Share,
            format!(
                "{} loads{}",
                Unit::Count.write(number(shown.loads)),
                all_seeds(shown)
            ),
        ),
    ];
    if let Some(hour) = shown.cost_per_hour {
        let million = shown.cost_per_million_in_time;
        let note = million.map_or_else(String::new, |million| {
            format!("{million:.2} a million requests in time")
        });
        figures.push(figure("cost an hour", hour, Unit::Plain, note));
    }
    let mut text: Vec<String> = Vec::new();
    if shown.seeds > 1 {
        text.push(arrivals.sentence().to_owned());
    }
    if runs.answers().len() > 1 {
        text.push(format!("Shown below: {}.", named(shown)));
    }
    if shown.stopped {
        text.push("Stopped before the end: results cover the time until then.".to_owned());
    }
    text.extend(shown.notes.iter().cloned());
    Section {
        title: "Evidence".to_owned(),
        text: text.join(" "),
        parts: vec![Part::Figures(figures)],
    }
}

/// Returns the label of the answer at the highlighted value.
const fn called(own: &Answer) -> &'static str {
    match own.outcome() {
        Outcome::Yes => "enough",
        Outcome::Probably => "probably enough",
        Outcome::No => "nearest, not enough",
    }
}

/// Returns the percentile of all functions' objectives, if it is the same.
fn common_percentile(answers: &[Answer]) -> Option<f64> {
    let mut all = answers.iter().flat_map(|own| &own.functions);
    let first = all.next()?.percentile;
    all.all(|own| own.percentile == first).then_some(first)
}

fn sweep(answers: &[Answer], axis: Option<Axis>, shown: &Answer) -> Section {
    // Under several rules each has a value of its own, so none is highlighted.
    let chosen = answers
        .iter()
        .all(|own| own.rule == shown.rule)
        .then_some(shown);
    let mut rules: Vec<&str> = answers.iter().map(|own| own.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    let line = |name: String, rule: &str, of: fn(&Answer) -> Interval| Line {
        name,
        points: answers
            .iter()
            .filter(|own| own.rule == rule)
            .map(|own| (value(own, axis), of(own)))
            .collect(),
    };
    let (share_name, lines) = if let [rule] = rules.as_slice() {
        let requests = line("requests in time".to_owned(), rule, |own| own.attainment);
        let functions = line(
            "functions that keep their objective".to_owned(),
            rule,
            |own| own.keeping,
        );
        ("share", vec![requests, functions])
    } else {
        let lines = rules
            .iter()
            .map(|rule| line((*rule).to_owned(), rule, |own| own.keeping));
        ("functions that keep their objective", lines.collect())
    };
    let load_name = axis.map_or("GPUs", Axis::title).to_owned();
    let columns = vec![
        Column::text("rule"),
        Column::text("binding limit"),
        Column::number(&load_name),
        Column::number("requests in time"),
        Column::number("functions that keep"),
        Column::number("GPUs"),
        Column::number("busy, mean"),
        Column::number("loads add"),
        Column::number("cost an hour"),
    ];
    let row = |own: &Answer| {
        vec![
            Cell::Text(own.rule.to_owned()),
            Cell::Text(own.binding.limit.name().to_owned()),
            Cell::Number(value(own, axis), Unit::Plain),
            Cell::Interval(own.attainment, Unit::Share),
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
            mark: common_percentile(answers).map(|percent| {
                let name = format!("{percent} %: the objectives' percentile");
                (percent / 100.0, name)
            }),
            chosen: chosen.map(|own| {
                let at = value(own, axis);
                (at, format!("{}: {}", Unit::Plain.write(at), called(own)))
            }),
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
        text: "All runs use the same seeds and therefore the same arrivals.".to_owned(),
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
                .map_or(Cell::Nothing, |share| Cell::Interval(share, Unit::Share)),
            Cell::Number(own.percentile / 100.0, Unit::Share),
            ms(own.p50_ms),
            ms(own.at_percentile_ms),
            ms(own.objective_ms),
            ms(Some(own.execution_ms)),
            ms(Some(own.swapped_ms)),
            Cell::Number(own.loads, Unit::Share),
            Cell::Number(own.billed_gpu_s * 1e9, Unit::Nanoseconds),
        ]
    };
    let mut text = Vec::new();
    if order.len() > ROWS {
        text.push(format!("The {ROWS} worst of {}.", order.len()));
    }
    if shown.seeds > 1 {
        text.push(format!("Requests are those of all {} seeds.", shown.seeds));
    }
    Section {
        title: "Functions".to_owned(),
        text: text.join(" "),
        parts: vec![Part::Table(Table {
            title: "By function, those that miss their objective first".to_owned(),
            columns: vec![
                Column::text("function"),
                Column::text("binding limit"),
                Column::text("model"),
                Column::number("requests"),
                Column::number("in time"),
                Column::number("needed"),
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
