//! Progress of the runs, on a terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Steps of the bar per run.
const STEPS: u64 = 1_000;

/// Progress bar on stderr; hidden if that is no terminal.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a progress bar, hidden unless `wanted`.
    pub(super) fn new(wanted: bool) -> Self {
        let bar = if wanted && std::io::stderr().is_terminal() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        Self { bar }
    }

    /// Shows the number of requests read so far.
    pub(super) fn reads(&self, requests: usize) {
        self.bar.set_message(format!("{requests} requests read"));
        self.bar.tick();
    }

    /// Starts the bar of this many runs.
    pub(super) fn begin(&self, runs: usize) {
        let template = "{msg} {bar:40} {percent} %, {elapsed} so far, about {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_length(runs as u64 * STEPS);
        self.bar.reset_eta();
        self.bar.reset_elapsed();
        self.bar.set_message("simulating");
    }

    /// Sets the progress of a run, counted from 0, to a share from 0 to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of the steps"
    )]
    pub(super) fn at(&self, run: usize, share: f64) {
        let steps = (share.clamp(0.0, 1.0) * 1e3) as u64;
        self.bar.set_position(run as u64 * STEPS + steps);
    }

    /// Clears the bar at the end of all runs.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
