//! `weir simulate validate`: compares the live demo with the simulation of the same load.
//!
//! The demo runs several rounds, the simulator the same arrivals, settings and decisions. Its only input from this machine are
//! hop latencies, measured beforehand with one request at a time; nothing is fitted to the rounds. The rule for agreement is in
//! [`compare`].

mod compare;
mod deadline;
mod hops;
mod report;
mod shares;

use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;

use super::gpu::Device;
use super::{BIND, Scenario, positive, until_interrupted};

/// Default number of rounds.
const ROUNDS: u32 = 5;
/// Default loads, at which both settings answer between 40 and 95 % in time.
const LOADS: [f64; 3] = [0.4, 0.55, 0.7];
/// Default duration of arrivals in each run, in s.
const DEADLINE_SECONDS: f64 = 20.0;
/// Default length of a measurement of shares, in s.
const SHARES_SECONDS: f64 = 10.0;
/// Largest number of loads in one command.
const LOADS_MAX: usize = 16;

/// Arguments of `weir simulate validate`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Scenario of the demo.
    #[arg(long, value_enum, default_value = "deadline")]
    scenario: Scenario,
    /// Number of runs of the demo at each load.
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Duration of arrivals in each run, in seconds (default 20); or of the measurement of shares (default 10).
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Scenario deadline: sums of service times divided by the span (default 0.4,0.55,0.7).
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = positive)]
    loads: Option<Vec<f64>>,
    /// Scenario deadline: slice of the demo's trace.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seed: u64,
    /// Hop latencies from this file instead of measuring them.
    #[arg(long, value_name = "FILE")]
    hops: Option<PathBuf>,
    /// Write the measured hop latencies into this file.
    #[arg(long, value_name = "FILE", conflicts_with = "hops")]
    write_hops: Option<PathBuf>,
    /// Only simulate: the live demo is not run, and nothing is judged.
    #[arg(long, requires = "hops", conflicts_with = "rounds")]
    simulated_only: bool,
    /// Address on which the queue-proxies listen, one after the other.
    #[arg(long, value_name = "IP", default_value_t = BIND)]
    bind: IpAddr,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Runs the command. Returns exit code 1 if a figure differs by more than allowed.
///
/// # Errors
/// Every error is a usage error: exit code 2.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match arguments.scenario {
        Scenario::Deadline => {
            let loads = arguments.loads.clone().unwrap_or_else(|| LOADS.to_vec());
            ensure!(
                (1..=LOADS_MAX).contains(&loads.len()),
                "--loads has {} loads; allowed: 1 to {LOADS_MAX}",
                loads.len()
            );
            let seconds = arguments.seconds.unwrap_or(DEADLINE_SECONDS);
            let deadline = deadline::Deadline::new(arguments, seconds, loads)?;
            match only_simulated(arguments) {
                Some(hops) => deadline.simulated_only(hops),
                None => until_interrupted(deadline.run()),
            }
        }
        Scenario::Route | Scenario::Evict | Scenario::Swap => anyhow::bail!(
            "--scenario {} has no simulation of its processes; allowed: deadline, shares",
            match arguments.scenario {
                Scenario::Evict => "evict",
                Scenario::Swap => "swap",
                _ => "route",
            }
        ),
        Scenario::Shares => {
            ensure!(
                arguments.loads.is_none(),
                "--loads belongs to --scenario deadline"
            );
            let seconds = arguments.seconds.unwrap_or(SHARES_SECONDS);
            let shares = shares::Shares::new(arguments, seconds)?;
            match only_simulated(arguments) {
                Some(hops) => shares.simulated_only(hops),
                None => until_interrupted(shares.run()),
            }
        }
    }
}

/// Returns the file of hops if the command only simulates.
fn only_simulated(arguments: &Arguments) -> Option<&Path> {
    let hops = arguments.hops.as_deref();
    hops.filter(|_| arguments.simulated_only)
}

/// Prints the expected duration to stderr.
fn announce(is_json: bool, seconds: f64) {
    if !is_json {
        // A failed write to stderr cannot be reported.
        let _written = writeln!(
            std::io::stderr(),
            "This takes about {:.1} minutes.",
            seconds / 60.0
        );
    }
}

/// Prints a warning about the result to stderr.
fn warn(line: &str) {
    // A failed write to stderr cannot be reported.
    let _written = writeln!(std::io::stderr(), "weir: {line}");
}

/// Prints a progress line to stderr, if that is a terminal.
fn print_progress(is_json: bool, line: &str) {
    if is_json || !std::io::stderr().is_terminal() {
        return;
    }
    // A failed write to stderr cannot be reported.
    let _written = writeln!(std::io::stderr(), "{line}");
}

/// A run is disturbed if the 99th percentile of the software GPU's lag exceeds this, in µs.
const LAG_US: f64 = 1_000.0;
/// A run is disturbed if the steal time exceeds this share of it.
const STEAL_PART: f64 = 0.01;

/// Returns why a live run is disturbed, if it is.
fn disturbed(device: &Device, seconds: f64) -> Option<String> {
    let lag = device.lag_us.p99;
    if lag > LAG_US {
        return Some(format!(
            "the software GPU was late: lag p99 {lag:.0} µs, above {LAG_US:.0} µs"
        ));
    }
    let steal = device.steal_ms / 1e3 / seconds;
    (steal > STEAL_PART).then(|| {
        format!(
            "cores were stolen for {:.1} % of the time, above {:.0} %",
            steal * 100.0,
            STEAL_PART * 100.0
        )
    })
}
