//! `weir demo`: runs the real programs on loopback with a real trace, and compares stock settings with Weir's.

mod agent;
mod best;
mod children;
mod deadline;
mod disturbance;
mod evict;
mod gpu;
mod observe;
mod progress;
mod random;
mod replay;
mod report;
mod route;
mod shares;
pub(crate) mod spawn;
mod swap;
mod trace;
pub(crate) mod validate;
mod workload;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::runtime::until_interrupted;
use clap::{Args, ValueEnum};
use simulator::routing;

pub(crate) use self::children::get;
pub(crate) use self::gpu::serve as serve_software_gpu;
pub(crate) use self::observe::{PrometheusError, TracesError};
pub(crate) use self::report::percentile;
use self::trace::Trace;
use self::workload::Workload;

/// Address of the demo's pods: unused by clusters, so that Knative's fixed ports are free.
const BIND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 7, 1));

/// Arguments of `weir demo`.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Arguments {
    /// Scenario to run [default: deadline].
    #[arg(long, value_enum)]
    scenario: Option<Scenario>,
    /// A trace instead of the bundled one, plain or gzip: Azure's LLM format (TIMESTAMP,ContextTokens,GeneratedTokens), or CSV
    /// with the heading arrival_s,service_ms,objective_ms,class.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Sum of service times divided by the span: 1.0, the default, keeps one instance exactly busy, or with --scenario route all of
    /// them.
    #[arg(long, value_name = "L", value_parser = positive)]
    load: Option<f64>,
    /// Duration of arrivals, in seconds (default 25); of the measurement of shares (default 10), or with --scenario swap (default 104).
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Slice of the trace, from 1, the default: slices follow one another from the trace's begin. With --scenario evict and swap: seed of the cycles and of the arrivals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seed: Option<u64>,
    /// With --scenario route: the instances' speeds, 1 to 16 of them from 0.05 to 1 (default 1,1,1,1).
    #[arg(long, value_name = "LIST")]
    speeds: Option<route::Speeds>,
    /// A request's objective in multiples of its service time, where the trace states none (default 4).
    #[arg(long, value_name = "F", value_parser = positive)]
    objective_factor: Option<f64>,
    /// Address on which the queue-proxies listen, one after the other; with --scenario route that of activator-ext, with the pods
    /// on the following ones (default 127.0.7.1).
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// Print one JSON object instead of the table; docs/demo.md has its keys.
    #[arg(long)]
    json: bool,
    /// With --scenario evict and swap: factor of the software GPUs' times, 1 to 8, by which reported times are divided; with swap of the arrivals' times and
    /// the objectives as well.
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=8))]
    slow: Option<u32>,
    /// Write a page with plots: a file for --scenario deadline and shares; with --observe a folder for a page of each dashboard.
    #[arg(long, value_name = "PATH")]
    html: Option<PathBuf>,
    /// Exit with code 1 if the machine was too slow for a trustworthy result, or if a case of the suite could not be measured.
    #[arg(long)]
    strict: bool,
    /// When to color the result: on a terminal unless NO_COLOR is set, always, or never.
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    color: crate::terminal::Color,
    #[command(flatten)]
    shares: shares::Options,
    #[command(flatten)]
    evict: evict::EvictOptions,
    #[command(flatten)]
    swap: swap::SwapOptions,
    #[command(flatten)]
    observe: observe::ObserveOptions,
}

/// Default objective of a request, in multiples of its service time.
const OBJECTIVE_FACTOR: f64 = 4.0;
/// Default duration of arrivals, in s.
const DEADLINE_SECONDS: f64 = 25.0;

/// Scenarios of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// One instance, a trace near its capacity: arrival order against deadline order.
    Deadline,
    /// One function with several instances, a trace near their capacity: how the instance is chosen, and where requests wait.
    Route,
    /// Pods on one GPU with quotas of time and shares of SMs: requested shares against achieved ones.
    Shares,
    /// Models that leave their GPU and return at the same addresses: what it takes, and that no byte changes.
    Evict,
    /// More functions than the GPUs' memory holds, each with an objective: models move as requests come.
    Swap,
}

/// Programs that the demo runs as children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    /// The sidecar of a pod.
    QueueProxy,
    /// The user container's server.
    ModelServer,
    /// The software GPU's server.
    SoftgpuServer,
    /// The agent of a node.
    GpuSidecar,
    /// A load which keeps a pod's GPU busy.
    Load,
    /// The activator, which routes a function's requests to its pods.
    ActivatorExt,
    /// The queue-proxy in front of a user's server.
    Proxy,
    /// A program outside of this package, named by the first argument.
    Foreign,
}

/// Part of the demo to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Scenario(Scenario),
    Observe,
    Live,
}

impl Mode {
    /// Returns the option which selects this mode.
    const fn option(self) -> &'static str {
        match self {
            Self::Scenario(Scenario::Deadline) => "--scenario deadline",
            Self::Scenario(Scenario::Route) => "--scenario route",
            Self::Scenario(Scenario::Shares) => "--scenario shares",
            Self::Scenario(Scenario::Evict) => "--scenario evict",
            Self::Scenario(Scenario::Swap) => "--scenario swap",
            Self::Observe => "--observe",
            Self::Live => "--live",
        }
    }
}

/// Runs the demo. Returns exit code 1 if a request was not answered exactly once or, with `--strict`, if the result is disturbed.
///
/// # Errors
/// Every error is a usage error: exit code 2.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mode = arguments.mode();
    arguments.uses_all(mode)?;
    let bind = arguments.bind();
    match mode {
        Mode::Observe => until_interrupted(observe::run(
            &arguments.observe,
            arguments.html.as_deref(),
            bind,
            arguments.seconds,
            arguments.json,
        )),
        Mode::Live => {
            until_interrupted(observe::live::run(bind, arguments.seconds, arguments.json))
        }
        Mode::Scenario(Scenario::Deadline) => {
            let workload = arguments.workload(1.0)?;
            until_interrupted(deadline::run(arguments, &workload))
        }
        Mode::Scenario(Scenario::Route) => {
            let workload = arguments.workload(arguments.speeds().sum())?;
            until_interrupted(route::run(arguments, &workload))
        }
        Mode::Scenario(Scenario::Shares) => until_interrupted(shares::run(
            &arguments.shares,
            &shares::Output {
                seconds: arguments.seconds,
                is_json: arguments.json,
                is_strict: arguments.strict,
                html: arguments.html.clone(),
            },
        )),
        Mode::Scenario(Scenario::Evict) => until_interrupted(evict::run(
            &arguments.evict,
            &evict::Output {
                is_json: arguments.json,
                is_strict: arguments.strict,
                slow: arguments.slow,
                seed: arguments.seed(),
            },
        )),
        Mode::Scenario(Scenario::Swap) => until_interrupted(swap::run(
            &arguments.swap,
            &swap::Output {
                is_json: arguments.json,
                is_strict: arguments.strict,
                seconds: arguments.seconds,
                slow: arguments.slow.unwrap_or(1),
                seed: arguments.seed(),
            },
        )),
    }
}

impl Arguments {
    const fn mode(&self) -> Mode {
        if self.observe.is_set() {
            Mode::Observe
        } else if self.observe.is_live() {
            Mode::Live
        } else {
            Mode::Scenario(self.scenario_or_default())
        }
    }

    const fn scenario_or_default(&self) -> Scenario {
        match self.scenario {
            Some(scenario) => scenario,
            None => Scenario::Deadline,
        }
    }

    /// Checks that no option was given which the mode ignores.
    fn uses_all(&self, mode: Mode) -> anyhow::Result<()> {
        use Mode::{Live, Observe, Scenario as Of};
        const DEADLINE: Mode = Of(Scenario::Deadline);
        const ROUTE: Mode = Of(Scenario::Route);
        const SHARES: Mode = Of(Scenario::Shares);
        const EVICT: Mode = Of(Scenario::Evict);
        const SWAP: Mode = Of(Scenario::Swap);
        const SCENARIOS: [Mode; 5] = [DEADLINE, ROUTE, SHARES, EVICT, SWAP];
        let own: [(bool, &str, &[Mode]); 12] = [
            (self.scenario.is_some(), "--scenario", &SCENARIOS),
            (self.trace.is_some(), "--trace", &[DEADLINE, ROUTE]),
            (self.load.is_some(), "--load", &[DEADLINE, ROUTE]),
            (
                self.seed.is_some(),
                "--seed",
                &[DEADLINE, ROUTE, EVICT, SWAP],
            ),
            (
                self.seconds.is_some(),
                "--seconds",
                &[DEADLINE, ROUTE, SHARES, SWAP, Observe, Live],
            ),
            (self.slow.is_some(), "--slow", &[EVICT, SWAP]),
            (self.speeds.is_some(), "--speeds", &[ROUTE]),
            (
                self.objective_factor.is_some(),
                "--objective-factor",
                &[DEADLINE, ROUTE],
            ),
            (
                self.bind.is_some(),
                "--bind",
                &[DEADLINE, ROUTE, Observe, Live],
            ),
            (self.html.is_some(), "--html", &[DEADLINE, SHARES, Observe]),
            (self.strict, "--strict", &SCENARIOS),
            (
                self.color != crate::terminal::Color::Auto,
                "--color",
                &[DEADLINE],
            ),
        ];
        let shares = self.shares.given().map(|name| (true, name, &[SHARES][..]));
        let observe = self
            .observe
            .given()
            .map(|name| (true, name, &[Observe][..]));
        let evict = self.evict.given().map(|name| (true, name, &[EVICT][..]));
        let swap = self.swap.given().map(|name| (true, name, &[SWAP][..]));
        let all = own
            .into_iter()
            .chain(shares)
            .chain(evict)
            .chain(swap)
            .chain(observe);
        for (is_given, option, modes) in all {
            if is_given && !modes.contains(&mode) {
                let uses: Vec<&str> = modes.iter().map(|mode| mode.option()).collect();
                anyhow::bail!(
                    "{option} belongs to {}; {} does not use it",
                    uses.join(", "),
                    mode.option()
                );
            }
        }
        if self.html.is_some() && self.shares.is_suite() {
            anyhow::bail!("--html draws one measurement: it is not used by --suite");
        }
        if self.color != crate::terminal::Color::Auto && self.json {
            anyhow::bail!("--color is not used by --json");
        }
        Ok(())
    }

    fn bind(&self) -> IpAddr {
        self.bind.unwrap_or(BIND)
    }

    fn load(&self) -> f64 {
        self.load.unwrap_or(1.0)
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    fn speeds(&self) -> route::Speeds {
        self.speeds.clone().unwrap_or_default()
    }

    /// Returns the slice of the trace for instances with this sum of speeds.
    fn workload(&self, capacity: f64) -> anyhow::Result<Workload> {
        let trace = match &self.trace {
            Some(path) => Trace::read(path)?,
            None => Trace::bundled()?,
        };
        Workload::new(
            &trace,
            self.seconds.unwrap_or(DEADLINE_SECONDS),
            self.load() * capacity,
            self.objective_factor.unwrap_or(OBJECTIVE_FACTOR),
            self.seed(),
        )
    }
}

/// Returns a function from seed, load and sum of the instances' speeds to a slice of the bundled trace, for the simulator.
pub(crate) fn routing_jobs() -> anyhow::Result<impl Fn(u64, f64, f64) -> Vec<routing::Job>> {
    let trace = Trace::bundled()?;
    // Fails here if at all: every slice of the bundled trace has requests.
    let factor = OBJECTIVE_FACTOR;
    Workload::new(&trace, DEADLINE_SECONDS, 1.0, factor, 1)?;
    Ok(move |seed, load: f64, capacity: f64| {
        Workload::new(&trace, DEADLINE_SECONDS, load * capacity, factor, seed)
            .map(|slice| slice.jobs())
            .unwrap_or_default()
    })
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0 && *number <= 100_000.0)
        .ok_or_else(|| "a number above 0, up to 100000, is needed".to_owned())
}
