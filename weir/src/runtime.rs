//! Commands that run until they are done or interrupted.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Runs something to its end. An interrupt (Ctrl-C) ends it with exit code 130, the signal to end with 143; what it holds is dropped then.
pub(crate) fn until_interrupted(
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
