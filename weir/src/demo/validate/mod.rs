//! `weir simulate validate`: the live demo against the simulation of the same load.
//!
//! The demo runs several rounds, the simulator the same arrivals, the same settings and the same decisions. What the simulator
//! is told of this machine are hop latencies, measured beforehand while one request is there at a time; nothing is fitted to the
//! rounds. What is near enough is in [`compare`].

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

/// Rounds unless told otherwise.
const ROUNDS: u32 = 5;
/// Loads at which both settings answer between 40 and 95 % in time.
const LOADS: [f64; 3] = [0.4, 0.55, 0.7];
/// How long requests arrive in each run unless told otherwise, in s.
const DEADLINE_SECONDS: f64 = 20.0;
/// How long shares are measured unless told otherwise, in s.
const SHARES_SECONDS: f64 = 10.0;
/// More loads are not compared at once.
const LOADS_MAX: usize = 16;

/// What can be chosen.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Which of the demo's scenarios.
    #[arg(long, value_enum, default_value = "deadline")]
    scenario: Scenario,
    /// How often the demo is run at each load.
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// How long requests arrive in each run, in seconds (default 20); how long shares are measured (default 10).
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Scenario deadline: sums of service times divided by the span (default 0.4,0.55,0.7).
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = positive)]
    loads: Option<Vec<f64>>,
    /// Scenario deadline: which slice of the demo's trace.
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
    /// The address on which the queue-proxies listen, one after the other.
    #[arg(long, value_name = "IP", default_value_t = BIND)]
    bind: IpAddr,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Runs it. An error is the user's to mend: exit code 2. Exit code 1: something is further off than allowed.
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
        Scenario::Route => anyhow::bail!(
            "--scenario route has no simulation of its processes; allowed: deadline, shares"
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

/// The file of hops, if nothing else is to be done than to simulate.
fn only_simulated(arguments: &Arguments) -> Option<&Path> {
    let hops = arguments.hops.as_deref();
    hops.filter(|_| arguments.simulated_only)
}

/// How long it will take, for everybody who waits.
fn announce(is_json: bool, seconds: f64) {
    if !is_json {
        // Nobody to tell if this fails.
        let _written = writeln!(
            std::io::stderr(),
            "This takes about {:.1} minutes.",
            seconds / 60.0
        );
    }
}

/// What whoever reads the result has to know.
fn complain(line: &str) {
    // Nobody to tell if this fails.
    let _written = writeln!(std::io::stderr(), "weir: {line}");
}

/// A line for people who wait.
fn say(is_json: bool, line: &str) {
    if is_json || !std::io::stderr().is_terminal() {
        return;
    }
    // Nobody to tell if this fails.
    let _written = writeln!(std::io::stderr(), "{line}");
}

/// A run is disturbed if the software GPU told the ends of its work later than this at the 99th percentile, in µs …
const LAG_US: f64 = 1_000.0;
/// … or cores were taken away for more than this part of the run.
const STEAL_PART: f64 = 0.01;

/// Why a live run cannot be trusted.
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
            "cores were taken away for {:.1} % of the time, above {:.0} %",
            steal * 100.0,
            STEAL_PART * 100.0
        )
    })
}
