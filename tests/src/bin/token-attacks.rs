//! Measures the cost of a pod that does not use its tokens for the pod beside it, by the software GPU's own ledger.
//!
//! `cargo build --release -p weir && cargo run --release -p tests --bin token-attacks -- [--seconds S] [--weir BINARY]...`
//!
//! Pods with requests of 30 and 70 % share a GPU. The first computes, is stopped and continued, is throttled by a cgroup (which
//! needs root), or requests tokens and never launches; the second always computes. Each run is one of `weir demo --scenario
//! shares`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

const USAGE: &str = "usage: token-attacks [--seconds S] [--weir BINARY]...\n\
    --seconds S    how long each is measured, 1 to 600 (10)\n\
    --weir BINARY  the program to try, may be repeated (the build beside this program)";

/// Behaviour of the first pod, and its addition to the demo's `--pods`.
const ATTACKS: [(&str, &str); 6] = [
    ("computes", ""),
    ("stopped 400 ms, runs 300 ms", ",runs=300ms,stands=400ms"),
    ("stopped 60 ms of each 100", ",runs=40ms,stands=60ms"),
    ("stopped 20 ms of each 100", ",runs=80ms,stands=20ms"),
    ("at a CPU limit of 0.4", ",cpu=0.4"),
    ("asks, hangs up after 500 ms", ",asks=500ms"),
];

struct Options {
    seconds: u32,
    weir: Vec<PathBuf>,
}

impl Options {
    fn parse() -> anyhow::Result<Self> {
        let mut options = Self {
            seconds: 10,
            weir: Vec::new(),
        };
        let mut arguments = std::env::args_os().skip(1);
        while let Some(argument) = arguments.next() {
            let option = argument.to_string_lossy().into_owned();
            let value = arguments
                .next()
                .with_context(|| format!("{option} needs a value"))?;
            match option.as_str() {
                "--seconds" => {
                    let text = value.to_string_lossy();
                    let seconds = text
                        .parse()
                        .ok()
                        .filter(|seconds| (1..=600).contains(seconds));
                    options.seconds =
                        seconds.with_context(|| format!("--seconds {text}: allowed: 1 to 600"))?;
                }
                "--weir" => options.weir.push(value.into()),
                _ => bail!("{option}: allowed: --seconds, --weir"),
            }
        }
        if options.weir.is_empty() {
            let own = std::env::current_exe().context("cannot find this program")?;
            options.weir.push(own.with_file_name("weir"));
        }
        for weir in &options.weir {
            let text = weir.display();
            ensure!(
                weir.is_file(),
                "{text} is not a program: `cargo build --release -p weir` builds it"
            );
        }
        Ok(options)
    }
}

/// Result of one run.
struct Row {
    /// Achieved shares of the first and the second pod, in percent of the time.
    achieved: [f64; 2],
    idle_percent: f64,
    is_disturbed: bool,
}

fn measure(weir: &Path, attack: &str, seconds: u32) -> anyhow::Result<Row> {
    let output = Command::new(weir)
        .args([
            "demo",
            "--scenario",
            "shares",
            "--json",
            "--seconds",
            &seconds.to_string(),
            "--pods",
        ])
        .arg(format!("request=0.3,limit=1{attack}:request=0.7,limit=1"))
        .output()
        .with_context(|| format!("cannot start {}", weir.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}: {}",
        weir.display(),
        said.trim()
    );
    let result: Value =
        serde_json::from_slice(&output.stdout).context("unexpected output: not JSON")?;
    let number = |value: &Value, name: &str| {
        let found = value[name].as_f64();
        found.with_context(|| format!("unexpected output: no number {name}: {value}"))
    };
    let share = |pod: usize| number(&result["pods"][pod], "share_achieved");
    Ok(Row {
        achieved: [share(0)? * 100.0, share(1)? * 100.0],
        idle_percent: number(&result, "idle_while_waiting")? * 100.0,
        is_disturbed: result["disturbed"] == true,
    })
}

fn run() -> anyhow::Result<()> {
    let options = Options::parse()?;
    for weir in &options.weir {
        println!(
            "{}, {} s each, shares of the time by the ledger:",
            weir.display(),
            options.seconds
        );
        println!(
            "{:<30} {:>9} {:>9} {:>9}",
            "the pod of 30 %", "it", "of 70 %", "idle"
        );
        for (name, attack) in ATTACKS {
            match measure(weir, attack, options.seconds) {
                Ok(row) => println!(
                    "{name:<30} {:>7.2} % {:>7.2} % {:>7.2} %{}",
                    row.achieved[0],
                    row.achieved[1],
                    row.idle_percent,
                    if row.is_disturbed {
                        " (disturbed: the software GPU was late)"
                    } else {
                        ""
                    }
                ),
                // The other attacks are still tried: throttling needs root.
                Err(error) => println!("{name:<30} {error:#}"),
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args()
        .skip(1)
        .any(|it| matches!(it.as_str(), "-h" | "--help"))
    {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("token-attacks: {error:#}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
