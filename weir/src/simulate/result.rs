//! Results as tables, as one JSON object, or as a page.

use std::io::{self, Write as _};

use serde::Serialize;
use simulator::report::Report;
use simulator::rules::RuleName;
use simulator::statistics::Unit;
use simulator::what_if::{Answer, Arrivals, Axis, Runs, Verdict, page, table, verdicts};

use super::WhatIf;
use super::inputs::Loads;
use crate::date;

/// Prints a text to stdout unless it is empty. A closed pipe is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Prints a message to stderr; a failed write cannot be reported.
pub(super) fn warn(text: &str) {
    let _written = writeln!(io::stderr(), "weir: {text}");
}

#[derive(Serialize)]
struct Whole<'a> {
    interrupted: bool,
    answer: Vec<Verdict>,
    swept: Option<&'static str>,
    seeds: &'a [u64],
    arrivals: Arrivals,
    runs: &'a [Answer],
}

pub(super) fn json(
    runs: &Runs,
    axis: Option<Axis>,
    interrupted: bool,
    loads: &Loads,
) -> anyhow::Result<String> {
    let whole = Whole {
        interrupted,
        answer: verdicts(runs.answers(), axis),
        swept: axis.map(Axis::name),
        seeds: &loads.seeds,
        arrivals: loads.arrivals,
        runs: runs.answers(),
    };
    Ok(serde_json::to_string(&whole)?)
}

pub(super) fn text(
    runs: &Runs,
    axis: Option<Axis>,
    interrupted: bool,
    wanted: usize,
    loads: &Loads,
) -> String {
    let answers = runs.answers();
    let mut text = String::new();
    for own in verdicts(answers, axis) {
        text.push_str(own.sentence.trim_end());
        text.push('\n');
        if !own.more.is_empty() {
            text.push_str(&own.more);
            text.push('\n');
        }
    }
    if loads.seeds.len() > 1 && !answers.is_empty() {
        text.push_str(loads.arrivals.sentence());
        text.push('\n');
    }
    if answers.len() > 1 {
        text.push('\n');
        text.push_str(&table::runs(answers, axis));
    }
    if let Some(shown) = runs.shown() {
        if answers.len() > 1 {
            let rules = answers.iter().any(|own| own.rule != shown.rule);
            let rule = if rules {
                format!(" under {}", shown.rule)
            } else {
                String::new()
            };
            text.push_str(&format!(
                "\nOf {}{rule}, {}× the trace's rate:\n",
                Unit::Gpus.write(f64::from(shown.gpus)),
                Unit::Plain.write(shown.rate_scale)
            ));
        }
        text.push_str(&table::functions(shown));
        text.push_str(&table::summary(shown));
        for note in &shown.notes {
            text.push_str(note);
            text.push('\n');
        }
    }
    if interrupted {
        text.push_str(&format!(
            "Interrupted: {} of {wanted} runs were begun.\n",
            answers.len()
        ));
    }
    text
}

pub(super) fn page(arguments: &WhatIf, runs: &Runs, axis: Option<Axis>, loads: &Loads) -> String {
    let load = loads.of(0);
    let path = |path: &Option<std::path::PathBuf>| {
        let path = path.as_ref();
        path.map_or_else(String::new, |path| path.display().to_string())
    };
    let workload = match &arguments.generate {
        Some(name) => format!("made up: {name}"),
        None => path(&arguments.trace),
    };
    #[expect(clippy::cast_precision_loss, reason = "to be read")]
    let (requests, length) = (load.requests.len() as f64, load.length.0 as f64);
    let rules: Vec<&str> = arguments.rules().into_iter().map(RuleName::name).collect();
    let mut parameters = vec![
        ("cluster".to_owned(), path(&arguments.cluster)),
        ("functions".to_owned(), path(&arguments.functions)),
        ("requests of".to_owned(), workload),
        ("rules".to_owned(), rules.join(", ")),
        ("window".to_owned(), Unit::Nanoseconds.write(length)),
        (
            "from".to_owned(),
            format!("{} s", arguments.from.unwrap_or(0.0)),
        ),
    ];
    if let Some(axis) = axis {
        parameters.push(("swept".to_owned(), axis.title().to_owned()));
    }
    Report {
        title: "How many GPUs?".to_owned(),
        answer: verdicts(runs.answers(), axis)
            .into_iter()
            .map(|own| (own.sentence, own.more))
            .collect(),
        scenario: format!(
            "{} of {} functions, in virtual time.",
            Unit::Count.write(requests) + " requests",
            load.called()
        ),
        date: date::now(),
        seeds: loads.seeds.clone(),
        parameters,
        sections: page::sections(runs, axis, loads.arrivals),
        footer: String::new(),
    }
    .html()
}
