//! Runtime of commands that run until they complete or are interrupted.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Runs a future to completion. An interrupt (Ctrl-C) ends it with exit code 130, SIGTERM with 143; the future is dropped then.
pub(crate) fn until_interrupted(
    future: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(async {
        // Installed before the first child starts: until then an interrupt ends the process directly, afterwards no child is left
        // behind.
        let mut interrupt =
            signal(SignalKind::interrupt()).context("cannot listen for interrupts")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
        tokio::select! {
            done = future => done,
            // Dropping the future kills the children and removes the software GPU's folder.
            _signal = interrupt.recv() => Ok(ExitCode::from(130)),
            _signal = terminate.recv() => Ok(ExitCode::from(143)),
        }
    });
    // A running search is abandoned.
    runtime.shutdown_background();
    outcome
}
