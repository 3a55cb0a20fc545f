//! The request log: one line per request on standard output, formatted by a template.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::lines;
use crate::template::{Record, RevisionInfo, RunError, Template};

/// Writer of the request log.
#[derive(Debug)]
pub struct RequestLog {
    template: Template,
    revision: RevisionInfo,
    /// Whether probes are logged as well.
    pub probes: bool,
    /// Fields at which the template has failed, each of which is logged once; at most as many as the template names.
    failed: Mutex<BTreeSet<String>>,
}

impl RequestLog {
    /// Creates a log with this template. If the template cannot be parsed, logs an error to the process's log and returns
    /// `None`; requests are served without the log then.
    pub fn start(template: &str, probes: bool, revision: RevisionInfo) -> Option<Self> {
        let template = Template::parse(template)
            .inspect_err(|error| {
                tracing::error!(
                    %error,
                    "cannot parse logging.request-log-template: the request log is disabled"
                );
            })
            .ok()?;
        Some(Self {
            template,
            revision,
            probes,
            failed: Mutex::default(),
        })
    }

    /// Writes the line of a request. If the template fails on it, Knative's line for that case is written.
    pub fn write(&self, record: &Record) {
        let line = self
            .template
            .run(record, &self.revision)
            .unwrap_or_else(|error| {
                self.note_failed(&error);
                record.unwritten()
            });
        lines::stdout().write(line);
    }

    fn note_failed(&self, error: &RunError) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.insert(error.field.clone()) {
            tracing::warn!(
                field = error.field,
                %error,
                "logging.request-log-template failed on a request; further failures at this field are not logged"
            );
        }
    }
}
