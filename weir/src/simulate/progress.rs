//! How far it is, for people who wait.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Steps of one run.
const STEPS: u64 = 1_000;

/// A bar on stderr, if that is a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// `wanted`: not for programs.
    pub(super) fn new(wanted: bool) -> Self {
        let bar = if wanted && std::io::stderr().is_terminal() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        Self { bar }
    }

    /// While a trace is read: how many requests there are so far.
    pub(super) fn reads(&self, requests: usize) {
        self.bar.set_message(format!("{requests} requests read"));
        self.bar.tick();
    }

    /// So many runs begin.
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

    /// A run, from 0, is so far.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of the steps"
    )]
    pub(super) fn at(&self, run: usize, share: f64) {
        let steps = (share.clamp(0.0, 1.0) * 1e3) as u64;
        self.bar.set_position(run as u64 * STEPS + steps);
    }

    /// All is done.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
