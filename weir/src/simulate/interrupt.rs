//! Interrupts (Ctrl-C, or the signal to end): the first asks for what is done so far, the second ends the process.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::INTERRUPTED;

/// Whether one has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Does something that looks now and then whether it is to end.
pub(super) fn until_done(
    does: impl FnOnce(&Interrupt) -> anyhow::Result<ExitCode> + Send + 'static,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(async {
        let mut interrupts =
            signal(SignalKind::interrupt()).context("cannot listen for interrupts")?;
        let mut ends =
            signal(SignalKind::terminate()).context("cannot listen for the signal to end")?;
        let interrupt = Interrupt::default();
        let own = interrupt.clone();
        let mut work = tokio::task::spawn_blocking(move || does(&own));
        loop {
            tokio::select! {
                done = &mut work => return done.context("the simulation broke off")?,
                _signal = interrupts.recv() => {}
                _signal = ends.recv() => {}
            }
            if interrupt.0.swap(true, Ordering::Relaxed) {
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
    });
    // Who asks twice does not wait.
    runtime.shutdown_background();
    outcome
}
