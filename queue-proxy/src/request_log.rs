//! The request log: one line a request on standard output, in the form that a template gives.
//!
//! Lines go through a thread of their own, so that a reader of standard output that stands still holds up no
//! request: [`LINES_MAX`] wait, what comes beyond them is dropped and counted.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::template::{Record, RevisionInfo, Template};

/// Lines that wait for standard output.
const LINES_MAX: usize = 4_096;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct RequestLog {
    template: Template,
    revision: RevisionInfo,
    /// Probes are logged too.
    pub probes: bool,
    lines: SyncSender<Line>,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Line {
    Text(String),
    /// All before it has been written.
    Flushed(SyncSender<()>),
}

impl RequestLog {
    /// A log with this template. `None`, and one error in the process's log, if it cannot be read: traffic
    /// goes on without it.
    pub(crate) fn start(template: &str, probes: bool, revision: RevisionInfo) -> Option<Self> {
        let template = Template::parse(template)
            .inspect_err(|error| {
                tracing::error!(
                    %error,
                    "logging.request-log-template cannot be read: there is no request log"
                );
            })
            .ok()?;
        let (lines, written) = sync_channel(LINES_MAX);
        std::thread::Builder::new()
            .name("request-log".to_owned())
            .spawn(move || write_lines(&written))
            .inspect_err(|error| {
                tracing::error!(%error, "no thread can be had: there is no request log");
            })
            .ok()?;
        Some(Self {
            template,
            revision,
            probes,
            lines,
            dropped: AtomicU64::new(0),
        })
    }

    /// Writes a request's line.
    pub(crate) fn write(&self, record: &Record) {
        let line = self
            .template
            .run(record, &self.revision)
            .unwrap_or_else(|error| {
                tracing::debug!(%error, "the request log's template does not fit a request");
                format!(
                    "Invalid request log template: method: {}, response code: {}, latency: {}, url: {}\n",
                    record.method, record.code, record.latency_seconds, record.uri
                )
            });
        if self.lines.try_send(Line::Text(line)).is_err()
            && self
                .dropped
                .fetch_add(1, Ordering::Relaxed)
                .is_power_of_two()
        {
            tracing::warn!(
                dropped = self.dropped.load(Ordering::Relaxed),
                "standard output does not keep up: lines of the request log are dropped"
            );
        }
    }

    /// Waits until all lines so far have been written. Blocks.
    pub(crate) fn flush(&self) {
        let (tell, told) = sync_channel(1);
        if self.lines.send(Line::Flushed(tell)).is_ok() {
            // An error is the writer's end, which has flushed all it could.
            let _flushed = told.recv();
        }
    }
}

fn write_lines(lines: &Receiver<Line>) {
    // Whole lines, one write each: several processes may share the pipe. If it is gone there is nobody to tell.
    for line in lines {
        match line {
            Line::Text(text) => {
                let mut stdout = std::io::stdout().lock();
                let _written = stdout
                    .write_all(text.as_bytes())
                    .and_then(|()| stdout.flush());
            }
            Line::Flushed(tell) => {
                let _told = tell.send(());
            }
        }
    }
}
