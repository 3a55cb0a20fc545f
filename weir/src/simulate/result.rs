//! What is given: tables, one JSON object, a page.

use std::io::{self, Write as _};

use serde::Serialize;
use simulator::report::Report;
use simulator::statistics::Unit;
use simulator::what_if::{Answer, Axis, Load, Runs, fewest_gpus, page, table};

use super::{WhatIf, date};

/// Writes to stdout.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end())?;
    stdout.flush()
}

/// Writes to stderr, where nobody is told if that fails.
pub(super) fn complain(text: &str) {
    let _written = writeln!(io::stderr(), "weir: {text}");
}

#[derive(Serialize)]
struct Whole<'a> {
    interrupted: bool,
    swept: Option<&'static str>,
    fewest_gpus: Vec<Fewest<'a>>,
    runs: &'a [Answer],
}

#[derive(Serialize)]
struct Fewest<'a> {
    rule: &'a str,
    gpus: Option<u32>,
}

pub(super) fn json(runs: &Runs, axis: Option<Axis>, interrupted: bool) -> anyhow::Result<String> {
    let mut fewest: Vec<Fewest<'_>> = Vec::new();
    for own in runs.answers() {
        if fewest.iter().all(|other| other.rule != own.rule) {
            let gpus = fewest_gpus(runs.answers(), own.rule);
            fewest.push(Fewest {
                rule: own.rule,
                gpus,
            });
        }
    }
    let whole = Whole {
        interrupted,
        swept: axis.map(Axis::name),
        fewest_gpus: fewest,
        runs: runs.answers(),
    };
    Ok(serde_json::to_string(&whole)?)
}

pub(super) fn text(runs: &Runs, axis: Option<Axis>, interrupted: bool, wanted: usize) -> String {
    let answers = runs.answers();
    let mut text = String::new();
    if answers.len() > 1 {
        text.push_str(&table::runs(answers, axis));
        if axis.is_none_or(|axis| matches!(axis, Axis::Gpus | Axis::Nodes)) {
            for sentence in page::fewest(answers) {
                text.push_str(&sentence);
                text.push('\n');
            }
        }
    }
    if let Some(shown) = runs.shown() {
        if answers.len() > 1 {
            text.push_str(&format!(
                "\nOf {}, {}× the trace's rate:\n",
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

pub(super) fn page(arguments: &WhatIf, runs: &Runs, axis: Option<Axis>, load: &Load) -> String {
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
    let rules: Vec<&str> = arguments.rule.iter().map(|rule| rule.name()).collect();
    let mut parameters = vec![
        ("cluster".to_owned(), path(&arguments.cluster)),
        ("functions".to_owned(), path(&arguments.functions)),
        ("requests of".to_owned(), workload),
        ("rules".to_owned(), rules.join(", ")),
        ("window".to_owned(), Unit::Nanoseconds.write(length)),
        ("from".to_owned(), format!("{} s", arguments.from)),
    ];
    if let Some(axis) = axis {
        parameters.push(("swept".to_owned(), axis.title().to_owned()));
    }
    Report {
        title: "What if".to_owned(),
        scenario: format!(
            "{} of {} functions, in virtual time.",
            Unit::Count.write(requests) + " requests",
            load.called()
        ),
        date: date::now(),
        seeds: vec![arguments.seed],
        parameters,
        sections: page::sections(runs, axis),
    }
    .html()
}
