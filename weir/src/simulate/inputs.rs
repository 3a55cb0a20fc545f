//! Files of the user.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use policy::{Span, Time};
use simulator::generate::{Generated, Spec, SpecError, generate, preset};
use simulator::random::Streams;
use simulator::traces::{self, Arrivals, Options, Source, Workload, write_csv};
use simulator::what_if::{Cluster, Functions, Load, Window};

use super::interrupt::Interrupt;
use super::progress::Progress;
use super::{Placement, WhatIf};

fn text(path: &Path) -> anyhow::Result<(String, String)> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| name.clone())?;
    Ok((name, text))
}

pub(super) fn cluster(path: &Path) -> anyhow::Result<Cluster> {
    let (name, text) = text(path)?;
    Ok(Cluster::from_toml(&name, &text)?)
}

pub(super) fn functions(path: &Path) -> anyhow::Result<Functions> {
    let (name, text) = text(path)?;
    Ok(Functions::from_toml(&name, &text)?)
}

enum Either {
    Trace(Workload<Arrivals>),
    /// And the share of it that is its warm-up.
    MadeUp(Workload<Generated>, f64),
}

fn workload(arguments: &WhatIf, streams: &Streams) -> anyhow::Result<Either> {
    if let Some(name) = &arguments.generate {
        let spec = spec(name, arguments)?;
        let share = spec.warm_up_s / (spec.warm_up_s + spec.counted_s);
        return Ok(Either::MadeUp(generate(&spec)?, share));
    }
    let path = arguments
        .trace
        .as_ref()
        .context("--trace FILE or --generate NAME is needed")?;
    let source = |path: &Path| Source::File(path.to_owned());
    let options = Options {
        placement: match arguments.placement {
            Placement::Random => traces::Placement::Random,
            Placement::Even => traces::Placement::Even,
        },
        durations: arguments.durations.as_deref().map(source),
        memory: arguments.memory.as_deref().map(source),
        ..Options::new(streams.clone())
    };
    Ok(Either::Trace(traces::open(&source(path), &options)?))
}

/// A preset, or a file.
fn spec(name: &str, arguments: &WhatIf) -> anyhow::Result<Spec> {
    let path = Path::new(name);
    let is_file = path.extension().is_some() || path.components().count() > 1;
    let mut spec = if is_file {
        let (name, text) = text(path)?;
        // A parser's error has lines of the file in it.
        Spec::from_toml(&text).map_err(|error| match error {
            SpecError::Text(text) => anyhow::anyhow!("{name}: {}", on_one_line(&text)),
            other => anyhow::anyhow!("{name}: {other}"),
        })?
    } else {
        let mut spec = preset(name)?.spec();
        // A preset's own seed is the one that --seed 1 stands for.
        spec.seed = spec.seed.wrapping_add(arguments.seed).wrapping_sub(1);
        spec
    };
    if let Some(count) = arguments.count {
        spec.functions = count;
    }
    Ok(spec)
}

/// The first line says where, the last one what.
fn on_one_line(text: &str) -> String {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) => format!("{first}: {last}"),
        None => first.to_owned(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be below 1e9 s"
)]
fn seconds(value: f64) -> u64 {
    (value * 1e9).round() as u64
}

/// The load, and the share of it that it says is its warm-up.
pub(super) fn load(
    arguments: &WhatIf,
    streams: &Streams,
    interrupt: &Interrupt,
    progress: &Progress,
) -> anyhow::Result<(Load, Option<f64>)> {
    let window = Window {
        from: Time(seconds(arguments.from)),
        length: arguments
            .seconds
            .map_or_else(|| Window::default().length, |length| Span(seconds(length))),
    };
    let mut watch = |requests| {
        progress.reads(requests);
        !interrupt.is_set()
    };
    Ok(match workload(arguments, streams)? {
        Either::Trace(workload) => (Load::read(workload, window, &mut watch)?, None),
        Either::MadeUp(workload, share) => {
            let load = Load::read(workload, window, &mut watch)?;
            // A window of it has a warm-up of its own.
            let whole = arguments.seconds.is_none() && arguments.from == 0.0;
            (load, whole.then_some(share))
        }
    })
}

/// Writes all requests, and tells how many.
pub(super) fn write_trace(
    arguments: &WhatIf,
    streams: &Streams,
    path: &Path,
) -> anyhow::Result<u64> {
    let name = || path.display().to_string();
    let workload = workload(arguments, streams)?;
    let mut to = BufWriter::new(File::create(path).with_context(name)?);
    let written = match workload {
        Either::Trace(workload) => write_csv(workload, &mut to),
        Either::MadeUp(workload, _) => write_csv(workload, &mut to),
    };
    let written = written.with_context(name)?;
    to.flush().with_context(name)?;
    Ok(written)
}
