//! Interrupts (Ctrl-C or SIGTERM): the first requests the partial result, the second ends the process.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::INTERRUPTED;

/// Flag that an interrupt has arrived.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs work which polls the interrupt flag, and returns its exit code; a second interrupt abandons it.
pub(super) fn until_done(
    command: impl FnOnce(&Interrupt) -> anyhow::Result<ExitCode> + Send + 'static,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(async {
        let mut interrupts =
            signal(SignalKind::interrupt()).context("cannot listen for interrupts")?;
        let mut ends = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let interrupt = Interrupt::default();
        let own = interrupt.clone();
        let mut work = tokio::task::spawn_blocking(move || command(&own));
        loop {
            tokio::select! {
                done = &mut work => return done.context("the simulation panicked")?,
                _signal = interrupts.recv() => {}
                _signal = ends.recv() => {}
            }
            if interrupt.0.swap(true, Ordering::Relaxed) {
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
    });
    // After a second interrupt the work is abandoned.
    runtime.shutdown_background();
    outcome
}
