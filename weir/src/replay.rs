//! `weir replay`: runs the recorded events of a node's agent again, and compares what it does.

use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use agent_core::record::{self, ReplayError};
use anyhow::Context as _;
use clap::Args;

/// Arguments of `weir replay`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Record written by `gpu-sidecar run --record FILE`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the command. Returns exit code 0 if all actions are the recorded ones, 1 after the first which differs.
///
/// # Errors
/// Returns an error for a file which cannot be read, or is not a record.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let path = arguments.file.display();
    let file = File::open(&arguments.file).with_context(|| path.to_string())?;
    match record::replay(&mut BufReader::new(file)) {
        Ok(replayed) => {
            let span = Duration::from_nanos(replayed.span_ns);
            let (runs, commit) = (replayed.runs, replayed.commit);
            writeln!(
                std::io::stdout(),
                "{} events over {:.3} s, {} actions: all as recorded by {commit}{}",
                replayed.events,
                span.as_secs_f64(),
                replayed.actions,
                if runs > 1 {
                    format!(", in {runs} runs")
                } else {
                    String::new()
                }
            )?;
            Ok(ExitCode::SUCCESS)
        }
        Err(difference @ ReplayError::Difference { .. }) => {
            writeln!(std::io::stderr(), "weir: {path}: {difference}")?;
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(anyhow::anyhow!("{path}: {error}")),
    }
}
