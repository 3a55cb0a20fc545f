//! `weir simulate`: simulates functions on a cluster, and the papers' experiments.

mod experiment;
mod inputs;
mod interrupt;
mod progress;
mod result;
mod text;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use simulator::node::Noise;
use simulator::rules::RuleName;
use simulator::what_if::{
    Arrivals, Cluster, Functions, LoadError, Point, Runs, Scenario, Seeds, Sweep,
};

use self::inputs::Loads;
use self::interrupt::Interrupt;
use self::progress::Progress;
use crate::demo::validate;
use crate::output;

/// Exit code of an interrupted command, after it has printed its partial result.
const INTERRUPTED: u8 = 130;

/// Arguments of `weir simulate`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    allow_negative_numbers = true,
    after_help = "How many GPUs do my functions need?\n  \
                  weir simulate --cluster cluster.toml --functions functions.toml --trace trace.csv --sweep gpus=1..16"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Commands>,
    #[command(flatten)]
    what_if: WhatIf,
}

#[derive(Debug, Subcommand)]
enum Commands {
    /// Run experiments of the papers and judge their claims.
    Experiment(experiment::Arguments),
    /// Run the live demo, simulate the same, and report the differences.
    Validate(validate::Arguments),
}

#[derive(Debug, Args)]
struct WhatIf {
    /// Nodes, GPUs, memory, links, price: TOML.
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Models and objectives by function: TOML.
    #[arg(long, value_name = "FILE")]
    functions: Option<PathBuf>,
    /// Requests: Azure Functions 2019 or 2021, Azure LLM, Mooncake, GenTD26, Torpor's samples or Weir's CSV, plain or gzip; the
    /// format is recognized by the heading.
    #[arg(long, value_name = "FILE", conflicts_with = "generate")]
    trace: Option<PathBuf>,
    /// Azure Functions 2019: the file of durations.
    #[arg(long, value_name = "FILE", requires = "trace")]
    durations: Option<PathBuf>,
    /// Azure Functions 2019: the file of memory.
    #[arg(long, value_name = "FILE", requires = "trace")]
    memory: Option<PathBuf>,
    /// Traces of counts: where in their minute requests arrive [default: random].
    #[arg(long, value_enum, requires = "trace")]
    placement: Option<Placement>,
    /// A generated workload instead of a trace: a preset's name, or a file of a spec in TOML.
    #[arg(long, value_name = "NAME|FILE")]
    generate: Option<String>,
    /// Number of generated functions.
    #[arg(long, value_name = "N", requires = "generate")]
    count: Option<u32>,
    /// Write the requests as Weir's CSV; without --cluster and --functions nothing else is done.
    #[arg(long, value_name = "FILE")]
    write_trace: Option<PathBuf>,
    /// Start S seconds into the trace [default: 0].
    #[arg(long, value_name = "S", value_parser = not_negative)]
    from: Option<f64>,
    /// Length of the window, in seconds [default: to the end of the requests].
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Share of the window, from its begin, that is run but not counted: 0.1, or as a generated workload specifies.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    warm_up: Option<f64>,
    /// Multiple of the trace's request rate [default: 1].
    #[arg(long, value_name = "X", value_parser = positive)]
    rate_scale: Option<f64>,
    /// Sharing rules of the GPUs; several, separated by commas, are compared [default: adaptive].
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = rules())]
    rule: Vec<RuleName>,
    /// Run once for each value: gpus=1..16, nodes=1..8, models-gb=10,20,40, host-gb-per-s=10..60..10,
    /// rate-scale=0.5..2..0.25.
    #[arg(long, value_name = "KEY=RANGE", value_parser = Sweep::parse)]
    sweep: Option<Sweep>,
    /// Number of seeds, for intervals: 1 to 100. By default ten, or fewer where all runs together have more than thirty
    /// million requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: Option<u32>,
    /// First seed, from 1; determines all that is random.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seed: u64,
    /// Executions and transfers take exactly their mean times.
    #[arg(long)]
    no_noise: bool,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Arrival times within a minute for traces of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Placement {
    /// Independently and uniformly at random.
    Random,
    /// In the middles of equal parts.
    Even,
}

/// Runs the command. Returns exit code 130 if interrupted, after it has printed the partial result; 1 if a structural claim of
/// the papers does not hold, or the live demo deviates further than allowed.
///
/// # Errors
/// Every error is a usage error: exit code 2.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { command, what_if } = arguments;
    match command {
        Some(Commands::Validate(arguments)) => validate::run(&arguments),
        Some(Commands::Experiment(arguments)) => {
            interrupt::until_done(move |interrupt| experiment::run(&arguments, interrupt))
        }
        None => interrupt::until_done(move |interrupt| run_what_if(&what_if, interrupt)),
    }
}

fn run_what_if(arguments: &WhatIf, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    arguments.is_complete()?;
    if let Some(path) = &arguments.write_trace {
        let Some(requests) = inputs::write_trace(arguments, path, interrupt)? else {
            result::warn("interrupted: no trace was written, and nothing was run");
            return Ok(ExitCode::from(INTERRUPTED));
        };
        if arguments.cluster.is_none() && arguments.functions.is_none() {
            result::print(&format!(
                "{requests} requests written to {}",
                path.display()
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let (Some(cluster), Some(functions)) = (&arguments.cluster, &arguments.functions) else {
        anyhow::bail!("--cluster FILE and --functions FILE are needed");
    };
    let cluster = inputs::cluster(cluster)?;
    let functions = inputs::functions(functions)?;
    if let Some(path) = &arguments.html {
        output::can_be_written(path)?;
    }
    let progress = Progress::new(!arguments.json);
    let wanted =
        arguments.rules().len() * arguments.sweep.as_ref().map_or(1, |own| own.values.len());
    let loads = match inputs::loads(arguments, wanted, interrupt, &progress) {
        Ok(read) => read,
        Err(error) if matches!(error.downcast_ref(), Some(LoadError::Stopped)) => {
            result::warn("interrupted while the trace was read: nothing was run");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(error) => return Err(error),
    };
    let scenarios = scenarios(arguments, &cluster, &functions, &loads)?;
    let points = points(arguments, &scenarios[0]);
    let mut runs = Runs::default();
    progress.begin(points.len() * scenarios.len());
    for (number, point) in points.iter().enumerate() {
        let mut seeds = Seeds::default();
        for (seed, scenario) in scenarios.iter().enumerate() {
            seeds.push(scenario.run(*point, &mut |share| {
                progress.at(number * scenarios.len() + seed, share);
                !interrupt.is_set()
            })?);
            if interrupt.is_set() {
                break;
            }
        }
        let is_whole = seeds.count() == scenarios.len();
        if let Some(mut answer) = seeds.answer() {
            answer.stopped |= !is_whole;
            runs.push(answer);
        }
        if interrupt.is_set() {
            break;
        }
    }
    progress.end();
    let interrupted =
        runs.answers().len() < points.len() || runs.answers().iter().any(|answer| answer.stopped);
    let axis = arguments.sweep.as_ref().map(|sweep| sweep.axis);
    if let Some(path) = &arguments.html {
        let page = result::page(arguments, &runs, axis, &loads);
        output::whole_file(path, |to| Ok(to.write_all(page.as_bytes())?))?;
    }
    let text = if arguments.json {
        result::json(&runs, axis, interrupted, &loads)?
    } else {
        result::text(&runs, axis, interrupted, points.len(), &loads)
    };
    result::print(&text)?;
    Ok(if interrupted {
        ExitCode::from(INTERRUPTED)
    } else {
        ExitCode::SUCCESS
    })
}

impl WhatIf {
    /// Checks that all required options were given, and none that would be ignored.
    fn is_complete(&self) -> anyhow::Result<()> {
        let is_load = self.trace.is_some() || self.generate.is_some();
        let is_written_only =
            self.write_trace.is_some() && self.cluster.is_none() && self.functions.is_none();
        let missing: Vec<&str> = [
            (self.cluster.is_none() && !is_written_only, "--cluster FILE"),
            (
                self.functions.is_none() && !is_written_only,
                "--functions FILE",
            ),
            (!is_load, "--trace FILE or --generate NAME"),
        ]
        .into_iter()
        .filter(|(is_missing, _)| *is_missing)
        .map(|(_, name)| name)
        .collect();
        match missing.as_slice() {
            [] => {}
            [one] => anyhow::bail!("{one} is needed; docs/simulate.md has examples"),
            [all @ .., last] => anyhow::bail!(
                "{} and {last} are needed; docs/simulate.md has examples",
                all.join(", ")
            ),
        }
        if !is_written_only {
            return Ok(());
        }
        // The file holds the unmodified workload.
        for (is_given, option) in [
            (self.from.is_some(), "--from"),
            (self.seconds.is_some(), "--seconds"),
            (self.warm_up.is_some(), "--warm-up"),
            (self.rate_scale.is_some(), "--rate-scale"),
            (!self.rule.is_empty(), "--rule"),
            (self.sweep.is_some(), "--sweep"),
            (self.seeds.is_some(), "--seeds"),
            (self.no_noise, "--no-noise"),
            (self.json, "--json"),
            (self.html.is_some(), "--html"),
        ] {
            if is_given {
                anyhow::bail!(
                    "{option} is not used where --write-trace is all that is done: it needs --cluster and --functions"
                );
            }
        }
        Ok(())
    }

    /// Returns the rules to compare, each once.
    fn rules(&self) -> Vec<RuleName> {
        if self.rule.is_empty() {
            return vec![RuleName::Adaptive];
        }
        let mut rules: Vec<RuleName> = Vec::new();
        for &rule in &self.rule {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules
    }
}

/// Returns the same scenario under each seed.
fn scenarios<'a>(
    arguments: &WhatIf,
    cluster: &'a Cluster,
    functions: &Functions,
    loads: &'a Loads,
) -> anyhow::Result<Vec<Scenario<'a>>> {
    let mut scenarios: Vec<Scenario<'a>> = Vec::with_capacity(loads.seeds.len());
    for (at, &seed) in loads.seeds.iter().enumerate() {
        let mut scenario = match scenarios.first() {
            Some(first) if loads.arrivals == Arrivals::Fixed => first.clone(),
            _ => Scenario::new(cluster, functions, loads.of(at)).with_context(|| {
                let path = arguments.functions.as_ref();
                path.map_or_else(String::new, |path| path.display().to_string())
            })?,
        };
        scenario.seed = seed;
        scenario.warm_up = arguments.warm_up.or(loads.warm_up).unwrap_or(0.1);
        if arguments.no_noise {
            scenario.noise = Noise::OFF;
        }
        scenarios.push(scenario);
    }
    Ok(scenarios)
}

/// Returns the points of all runs: each rule over the whole sweep.
fn points(arguments: &WhatIf, scenario: &Scenario<'_>) -> Vec<Point> {
    let mut points = Vec::new();
    for rule in arguments.rules() {
        let point = Point {
            rate_scale: arguments.rate_scale.unwrap_or(1.0),
            ..scenario.point(rule)
        };
        match &arguments.sweep {
            None => points.push(point),
            Some(sweep) => {
                let values = sweep.values.iter();
                points.extend(values.map(|&value| point.at(sweep.axis, value)));
            }
        }
    }
    points
}

/// Parses a rule among those for which a user's models have enough data.
fn rules() -> impl TypedValueParser<Value = RuleName> {
    let names = RuleName::without_blocks().map(RuleName::name);
    PossibleValuesParser::new(names).try_map(|text| {
        let named = RuleName::without_blocks().find(|rule| rule.name() == text);
        named.ok_or("no such rule")
    })
}

fn number(text: &str, good: impl Fn(f64) -> bool, allowed: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&number| good(number));
    number.ok_or_else(|| format!("{allowed} is needed"))
}

fn positive(text: &str) -> Result<f64, String> {
    number(
        text,
        |number| (0.001..=1e6).contains(&number),
        "a number from 0.001 to 1000000",
    )
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(
        text,
        |number| (0.0..=1e9).contains(&number),
        "a number from 0 to 1e9",
    )
}

fn share(text: &str) -> Result<f64, String> {
    number(
        text,
        |number| (0.0..=0.9).contains(&number),
        "a share from 0 to 0.9",
    )
}
