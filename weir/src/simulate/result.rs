//! What is given: tables, one JSON object, a page.

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use simulator::report::Report;
use simulator::statistics::Unit;
use simulator::what_if::{Answer, Arrivals, Axis, Runs, Verdict, page, table, verdicts};
use tempfile::NamedTempFile;

use super::inputs::Loads;
use super::{WhatIf, date};

/// Writes to stdout; of nothing, nothing. Who reads only the beginning has what was wanted.
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

fn cannot(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

/// Beside a file that is to be written: what was there stays until all of it is.
fn beside(path: &Path) -> anyhow::Result<NamedTempFile> {
    if path.is_dir() {
        anyhow::bail!("{}: it is a folder, a file is needed", cannot(path));
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    // Less what the process masks, as any other file.
    builder.permissions(Permissions::from_mode(0o666));
    builder.tempfile_in(folder).with_context(|| cannot(path))
}

/// A pipe or a device has nothing that could stay.
fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|own| !own.is_file() && !own.is_dir())
}

/// Whether a file can be written, before hours are spent on what it is to hold.
pub(super) fn can_be_written(path: &Path) -> anyhow::Result<()> {
    if !is_stream(path) {
        drop(beside(path)?);
    }
    Ok(())
}

/// Writes a file as a whole or not at all.
pub(super) fn whole_file<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let name = || cannot(path);
    if is_stream(path) {
        let mut to = File::options().write(true).open(path).with_context(name)?;
        return write(&mut to).with_context(name);
    }
    let mut beside = beside(path)?;
    let outcome = write(beside.as_file_mut()).with_context(name)?;
    let kept = beside.persist(path).map_err(|error| error.error);
    kept.with_context(name)?;
    Ok(outcome)
}

/// Writes to stderr, where nobody is told if that fails.
pub(super) fn complain(text: &str) {
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
