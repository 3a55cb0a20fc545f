//! Progress of a replay on stderr: a bar on a terminal, a line now and then in a log.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use super::workload::Workload;

/// Interval between lines in a log.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of a run: the number of answered requests.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines(Lines),
}

#[derive(Debug)]
struct Lines {
    name: String,
    requests: usize,
    span: Duration,
    begin: Instant,
    answered: AtomicU64,
    /// Number of lines written.
    lines: AtomicU64,
}

impl Progress {
    /// Creates the progress of a named run; hidden unless `is_wanted`.
    pub(crate) fn new(name: &str, workload: &Workload, is_wanted: bool) -> Self {
        let requests = workload.requests.len();
        let span = workload.span;
        Self {
            shown: if !is_wanted {
                Shown::Nothing
            } else if std::io::stderr().is_terminal() {
                Shown::Bar(bar(name, requests, span))
            } else {
                Shown::Lines(Lines {
                    name: name.to_owned(),
                    requests,
                    span,
                    begin: Instant::now(),
                    answered: AtomicU64::new(0),
                    lines: AtomicU64::new(0),
                })
            },
        }
    }

    /// Creates a hidden progress.
    pub(crate) const fn hidden() -> Self {
        Self {
            shown: Shown::Nothing,
        }
    }

    /// Counts one more answered request.
    pub(crate) fn advance(&self) {
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => bar.inc(1),
            Shown::Lines(lines) => lines.advance(),
        }
    }

    /// Clears the bar after all answers.
    pub(crate) fn finish(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Creates a bar with the width left by the text, so that the line never wraps.
fn bar(name: &str, requests: usize, span: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:>6} {wide_bar} {pos}/{len}, {elapsed}/{prefix}");
    let bar = ProgressBar::new(requests as u64)
        .with_prefix(format!("{:.0}s", span.as_secs_f64()))
        .with_message(name.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

impl Lines {
    fn advance(&self) {
        let answered = self.answered.fetch_add(1, Ordering::Relaxed) + 1;
        let passed = self.begin.elapsed();
        let due = passed.as_secs() / LINE_EVERY.as_secs();
        if self.lines.fetch_max(due, Ordering::Relaxed) >= due {
            return;
        }
        // A failed write to stderr cannot be reported.
        let _written = writeln!(
            std::io::stderr(),
            "{}: {answered} of {} requests answered, {:.0} s of about {:.0} s",
            self.name,
            self.requests,
            passed.as_secs_f64(),
            self.span.as_secs_f64()
        );
    }
}
