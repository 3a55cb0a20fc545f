//! The request log: one line a request on standard output, in the form that a template gives.

use crate::lines;
use crate::template::{Record, RevisionInfo, Template};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct RequestLog {
    template: Template,
    revision: RevisionInfo,
    /// Probes are logged too.
    pub probes: bool,
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
        Some(Self {
            template,
            revision,
            probes,
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
        lines::stdout().write(line);
    }
}
