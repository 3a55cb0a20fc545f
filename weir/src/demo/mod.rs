//! `weir demo`: the real programs on loopback, a real trace, stock settings against Weir's.

mod best;
mod children;
mod gpu;
mod observe;
mod replay;
mod report;
mod route;
mod shares;
mod spawn;
mod trace;
pub(crate) mod validate;
mod workload;

use std::io::IsTerminal as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use simulator::routing;
use tokio::signal::unix::{SignalKind, signal};

use self::children::{Children, Settings};
use self::gpu::SoftGpu;
pub(crate) use self::gpu::serve as serve_software_gpu;
pub(crate) use self::observe::{PrometheusError, TracesError};
use self::report::{Report, Run};
use self::trace::Trace;
use self::workload::Workload;

/// Where the demo's pods listen: an address that no cluster uses, so that Knative's fixed ports are free.
const BIND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 7, 1));

/// What can be chosen.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to show.
    #[arg(long, value_enum, default_value = "deadline")]
    scenario: Scenario,
    /// A trace instead of the bundled one: Azure's LLM format (TIMESTAMP,ContextTokens,GeneratedTokens), or
    /// CSV with the heading arrival_s,service_ms,objective_ms,class.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Sum of service times divided by the span: 1.0 keeps one instance exactly busy, or with --scenario route all of them.
    #[arg(long, value_name = "L", default_value = "1.0", value_parser = positive)]
    load: f64,
    /// How long requests arrive, in seconds (default 25); how long shares are measured (default 10).
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Which slice of the trace: slices follow one another from the trace's begin.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seed: u64,
    /// With --scenario route: the instances' speeds, 1 to 16 of them from 0.05 to 1.
    #[arg(long, value_name = "LIST", default_value = route::SPEEDS_DEFAULT)]
    speeds: route::Speeds,
    /// A request's objective in multiples of its service time, where the trace states none.
    #[arg(long, value_name = "F", default_value_t = OBJECTIVE_FACTOR, value_parser = positive)]
    objective_factor: f64,
    /// The address on which the queue-proxies listen, one after the other; with --scenario route activator-ext, and the pods on
    /// those behind it.
    #[arg(long, value_name = "IP", default_value_t = BIND)]
    bind: IpAddr,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shares: shares::Options,
    #[command(flatten)]
    observe: observe::ObserveOptions,
}

/// A request's objective in multiples of its service time, unless told otherwise.
const OBJECTIVE_FACTOR: f64 = 4.0;
/// How long requests arrive unless told otherwise, in s.
const DEADLINE_SECONDS: f64 = 25.0;

/// What the demo shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// One instance, a trace near its capacity: arrival order against deadline order.
    Deadline,
    /// One function with several instances, a trace near their capacity: how the instance is chosen, and where requests wait.
    Route,
    /// Pods on one GPU with quotas of time and shares of SMs: what was asked for against what they get.
    Shares,
}

/// The programs that the demo runs as children of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    /// The pod's sidecar.
    QueueProxy,
    /// The user container.
    ModelServer,
    /// The owner of the software GPU that it computes on.
    SoftgpuServer,
    /// The node's agent.
    GpuSidecar,
    /// What keeps a pod's GPU busy.
    Load,
    /// What carries a function's requests to its pods.
    ActivatorExt,
    /// A program of another package: the first argument names it.
    Foreign,
}

/// Runs the demo. An error is the user's to mend: exit code 2. Exit code 1: a request was not answered
/// exactly once; with `--strict`, shares were measured on a machine that was too late.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.observe.is_set() {
        if let Some(option) = arguments.given_beside_observe() {
            anyhow::bail!("{option} does not belong to --observe");
        }
        let own = &arguments.observe;
        let (bind, seconds, json) = (arguments.bind, arguments.seconds, arguments.json);
        return until_interrupted(observe::run(own, bind, seconds, json));
    }
    if arguments.observe.is_live() {
        let other = arguments.given_beside_observe();
        if let Some(option) = other.or_else(|| arguments.observe.first_given()) {
            anyhow::bail!("{option} does not belong to --live");
        }
        let (bind, seconds, json) = (arguments.bind, arguments.seconds, arguments.json);
        return until_interrupted(observe::live::run(bind, seconds, json));
    }
    if let Some(option) = arguments.observe.first_given() {
        anyhow::bail!("{option} belongs to --observe");
    }
    if arguments.scenario != Scenario::Route && arguments.speeds != route::Speeds::default() {
        anyhow::bail!("--speeds belongs to --scenario route");
    }
    match arguments.scenario {
        Scenario::Deadline => {
            let workload = arguments.workload(1.0)?;
            until_interrupted(deadline(arguments, &workload))
        }
        Scenario::Route => {
            let workload = arguments.workload(arguments.speeds.sum())?;
            until_interrupted(route::run(arguments, &workload))
        }
        Scenario::Shares => until_interrupted(shares::run(
            &arguments.shares,
            arguments.seconds,
            arguments.json,
        )),
    }
}

impl Arguments {
    /// Returns an option that `--observe` has no use for, and that was given.
    fn given_beside_observe(&self) -> Option<&'static str> {
        if self.scenario != Scenario::Deadline {
            return Some("--scenario");
        }
        if self.trace.is_some() {
            return Some("--trace");
        }
        self.shares.first_given()
    }

    /// Returns the slice of the trace that instances whose speeds have this sum are sent.
    fn workload(&self, capacity: f64) -> anyhow::Result<Workload> {
        if let Some(option) = self.shares.first_given() {
            anyhow::bail!("{option} belongs to --scenario shares");
        }
        let trace = match &self.trace {
            Some(path) => Trace::read(path)?,
            None => Trace::bundled()?,
        };
        Workload::new(
            &trace,
            self.seconds.unwrap_or(DEADLINE_SECONDS),
            self.load * capacity,
            self.objective_factor,
            self.seed,
        )
    }
}

fn until_interrupted(
    does: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(async {
        // Before the first child is there: until then an interrupt ends the process by itself, and afterwards no child
        // is left behind.
        let mut interrupt =
            signal(SignalKind::interrupt()).context("cannot listen for interrupts")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
        tokio::select! {
            done = does => done,
            // Children are killed, and the software GPU's folder removed, when their handles are dropped.
            _signal = interrupt.recv() => Ok(ExitCode::from(130)),
            _signal = terminate.recv() => Ok(ExitCode::from(143)),
        }
    });
    // A search that is under way is not waited for.
    runtime.shutdown_background();
    outcome
}

/// Returns slices of the bundled trace for the simulator: by seed, by load, and by the sum of the instances' speeds.
pub(crate) fn routing_jobs() -> anyhow::Result<impl Fn(u64, f64, f64) -> Vec<routing::Job>> {
    let trace = Trace::bundled()?;
    // Every slice of the bundled trace has requests.
    let factor = OBJECTIVE_FACTOR;
    Workload::new(&trace, DEADLINE_SECONDS, 1.0, factor, 1)?;
    Ok(move |seed, load: f64, capacity: f64| {
        Workload::new(&trace, DEADLINE_SECONDS, load * capacity, factor, seed)
            .map(|slice| slice.jobs())
            .unwrap_or_default()
    })
}

async fn deadline(arguments: &Arguments, workload: &Workload) -> anyhow::Result<ExitCode> {
    let gpu = SoftGpu::start().await?;
    let mut runs = Vec::new();
    for settings in Settings::both(workload.longest_objective()) {
        let name = settings.name();
        let mut children = Children::start(arguments.bind, workload.cost, &gpu, settings).await?;
        let progress = progress_bar(name, workload, arguments.json);
        let answers = replay::replay(children.address(), workload, &progress).await;
        progress.finish_and_clear();
        children.check()?;
        let served = children.served().await?;
        children.stop().await?;
        runs.push(Run::new(name, workload, &answers, served));
    }
    let device = gpu.device()?;
    drop(gpu);
    // Off the runtime's own thread, so that an interrupt is heard.
    let (searched, seed) = (workload.clone(), arguments.seed);
    let best_found_hit_rate = tokio::task::spawn_blocking(move || best::hit_rate(&searched, seed))
        .await
        .context("the search for the best order broke off")?;
    let report = Report {
        scenario: "deadline",
        seed: arguments.seed,
        load: workload.load(),
        best_found_hit_rate,
        device,
        runs,
    };
    let text = if arguments.json {
        report.json()?
    } else {
        report.table(workload)
    };
    report::print(&text)?;
    Ok(if report.every_request_was_answered_once() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn progress_bar(name: &str, workload: &Workload, json: bool) -> indicatif::ProgressBar {
    let length = workload.requests.len() as u64;
    // A bar is for people; a log gets the result alone.
    if json || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template(
        "{msg:>6} {bar:40} {pos}/{len} requests answered, {elapsed} of about {prefix}",
    );
    let bar = indicatif::ProgressBar::new(length)
        .with_prefix(format!("{:.0}s", workload.span.as_secs_f64()))
        .with_message(name.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0 && *number <= 100_000.0)
        .ok_or_else(|| "a number above 0, up to 100000, is needed".to_owned())
}
