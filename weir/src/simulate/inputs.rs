//! Input files of the user.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, ensure};
use policy::{Span, Time};
use simulator::generate::{Generated, Spec, SpecError, generate, preset};
use simulator::random::Streams;
use simulator::traces::{self, Arrivals, Format, Options, Source, Workload, write_csv};
use simulator::what_if::load::REQUESTS_MAX;
use simulator::what_if::{self, Cluster, Functions, Load, Window};

use super::interrupt::Interrupt;
use super::progress::Progress;
use super::{Placement, WhatIf};
use crate::{output, usage};

fn text(path: &Path) -> anyhow::Result<(String, String)> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
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

enum LoadSource {
    Trace(Workload<Arrivals>),
    /// The workload and its share of warm-up, 0 to 1.
    Generated(Workload<Generated>, f64),
}

/// Returns the random streams of a seed.
pub(super) fn streams(seed: u64) -> Streams {
    Streams::new("what-if", seed)
}

fn workload(arguments: &WhatIf, seed: u64) -> anyhow::Result<LoadSource> {
    if let Some(name) = &arguments.generate {
        let spec = spec(name, arguments, seed)?;
        let share = spec.warm_up_s / (spec.warm_up_s + spec.counted_s);
        return Ok(LoadSource::Generated(generate(&spec)?, share));
    }
    let path = arguments
        .trace
        .as_ref()
        .context("--trace FILE or --generate NAME is needed")?;
    let source = |path: &Path| Source::File(path.to_owned());
    let format = traces::recognise(&source(path))?;
    uses_all(arguments, path, format)?;
    let options = Options {
        format: Some(format),
        placement: match arguments.placement {
            Some(Placement::Even) => traces::Placement::Even,
            Some(Placement::Random) | None => traces::Placement::Random,
        },
        durations: arguments.durations.as_deref().map(source),
        memory: arguments.memory.as_deref().map(source),
        ..Options::new(streams(seed))
    };
    Ok(LoadSource::Trace(traces::open(&source(path), &options)?))
}

/// Checks that no option was given which a trace of this format ignores.
fn uses_all(arguments: &WhatIf, path: &Path, format: Format) -> anyhow::Result<()> {
    const OF_2019: &str = "an Azure Functions 2019 trace";
    let is_2019 = format == Format::AzureFunctions2019;
    for (is_given, is_used, option, of) in [
        (
            arguments.durations.is_some(),
            is_2019,
            "--durations",
            OF_2019,
        ),
        (arguments.memory.is_some(), is_2019, "--memory", OF_2019),
        (
            arguments.placement.is_some(),
            format.has_counts(),
            "--placement",
            "a trace of counts a minute (Azure Functions 2019, Torpor's samples)",
        ),
    ] {
        ensure!(
            !is_given || is_used,
            "{option} belongs to {of}: {} is {}",
            path.display(),
            format.name()
        );
    }
    Ok(())
}

/// Returns the spec of a preset, or of a file, with this run's count and seed.
fn spec(name: &str, arguments: &WhatIf, seed: u64) -> anyhow::Result<Spec> {
    let path = Path::new(name);
    let is_file = path.extension().is_some() || path.components().count() > 1;
    let mut spec = if is_file {
        let (name, text) = text(path)?;
        // A parser's error quotes lines of the file.
        Spec::from_toml(&text).map_err(|error| match error {
            SpecError::Text(text) => anyhow::anyhow!("{name}: {}", usage::on_one_line(&text)),
            other => anyhow::anyhow!("{name}: {other}"),
        })?
    } else {
        preset(name)?.spec()
    };
    // The spec's own seed corresponds to --seed 1.
    spec.seed = spec.seed.wrapping_add(seed).wrapping_sub(1);
    if let Some(count) = arguments.count {
        spec.functions = count;
    }
    Ok(spec)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be below 1e9 s"
)]
fn seconds(value: f64) -> u64 {
    (value * 1e9).round() as u64
}

/// Loads of a run: one for all seeds, or one for each.
#[derive(Debug)]
pub(super) struct Loads {
    /// Loads in the order of seeds.
    pub(super) loads: Vec<Load>,
    pub(super) arrivals: what_if::Arrivals,
    pub(super) seeds: Vec<u64>,
    /// Share of warm-up that the load specifies, 0 to 1.
    pub(super) warm_up: Option<f64>,
}

impl Loads {
    /// Returns the load of a seed by its index.
    pub(super) fn of(&self, seed: usize) -> &Load {
        &self.loads[seed.min(self.loads.len() - 1)]
    }
}

/// Reads the load of each seed where arrivals are drawn, else one for all; `points` is the number of runs of each.
pub(super) fn loads(
    arguments: &WhatIf,
    points: usize,
    interrupt: &Interrupt,
    progress: &Progress,
) -> anyhow::Result<Loads> {
    let (first, arrivals, warm_up) =
        load(arguments, arguments.seed, REQUESTS_MAX, interrupt, progress)?;
    let requests = first.requests.len();
    let is_drawn = arrivals == what_if::Arrivals::Drawn;
    let wanted = arguments.seeds.map_or_else(
        || seeds_for(requests, points, is_drawn),
        |seeds| seeds as usize,
    );
    let seeds: Vec<u64> = (0..wanted as u64)
        .map(|more| arguments.seed.wrapping_add(more))
        .collect();
    let mut room = REQUESTS_MAX - requests;
    let mut loads = vec![first];
    if is_drawn {
        for &seed in &seeds[1..] {
            let (more, ..) = load(arguments, seed, room, interrupt, progress)?;
            room -= more.requests.len();
            loads.push(more);
        }
    }
    Ok(Loads {
        loads,
        arrivals,
        seeds,
        warm_up,
    })
}

/// Returns the number of seeds with an acceptable run time: ten (workloads §1) as long as all runs have some thirty million
/// requests, fewer beyond that, and at least three where they fit into memory.
fn seeds_for(requests: usize, points: usize, is_drawn: bool) -> usize {
    const TEN: usize = 10;
    const IN_ALL: usize = 30_000_000;
    let one = requests.max(1);
    let quick = (IN_ALL / one / points.max(1)).clamp(3, TEN);
    // Each load has about as many requests as the first.
    let fits = REQUESTS_MAX / (one + one / 5);
    if is_drawn {
        quick.min(fits).max(1)
    } else {
        quick
    }
}

fn load(
    arguments: &WhatIf,
    seed: u64,
    most: usize,
    interrupt: &Interrupt,
    progress: &Progress,
) -> anyhow::Result<(Load, what_if::Arrivals, Option<f64>)> {
    use what_if::Arrivals::{Drawn, Fixed};
    let window = Window {
        from: Time(seconds(arguments.from.unwrap_or(0.0))),
        length: arguments
            .seconds
            .map_or_else(|| Window::default().length, |length| Span(seconds(length))),
        most,
    };
    let mut watch = |requests| {
        progress.reads(requests);
        !interrupt.is_set()
    };
    Ok(match workload(arguments, seed)? {
        LoadSource::Trace(workload) => {
            let are_counts = matches!(workload.arrivals, Arrivals::MinuteCounts(_));
            let is_drawn = are_counts
                && (arguments.placement != Some(Placement::Even) || arguments.durations.is_some());
            let load = Load::read(workload, window, &mut watch)?;
            (load, if is_drawn { Drawn } else { Fixed }, None)
        }
        LoadSource::Generated(workload, share) => {
            let load = Load::read(workload, window, &mut watch)?;
            // A window of the load has a warm-up of its own.
            let whole =
                arguments.seconds.is_none() && arguments.from.is_none_or(|from| from == 0.0);
            (load, Drawn, whole.then_some(share))
        }
    })
}

/// Writes all requests and returns their number; `None` if it was interrupted, and nothing is written.
pub(super) fn write_trace(
    arguments: &WhatIf,
    path: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<u64>> {
    let workload = workload(arguments, arguments.seed)?;
    let written = output::whole_file(path, |to| {
        let mut to = BufWriter::new(InterruptibleWriter { to, interrupt });
        let written = match workload {
            LoadSource::Trace(workload) => write_csv(workload, &mut to),
            LoadSource::Generated(workload, _) => write_csv(workload, &mut to),
        }?;
        to.flush()?;
        Ok(written)
    });
    match written {
        Ok(written) => Ok(Some(written)),
        Err(_) if interrupt.is_set() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writer which fails once an interrupt has arrived.
struct InterruptibleWriter<'a, W> {
    to: W,
    interrupt: &'a Interrupt,
}

impl<W: Write> Write for InterruptibleWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.interrupt.is_set() {
            return Err(io::Error::other("interrupted"));
        }
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
