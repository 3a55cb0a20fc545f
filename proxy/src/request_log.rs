//! The request log: one line a request on standard output, in the form that a template gives.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::lines;
use crate::template::{Record, RevisionInfo, RunError, Template};

/// See the [module](self).
#[derive(Debug)]
pub struct RequestLog {
    template: Template,
    revision: RevisionInfo,
    /// Probes are logged too.
    pub probes: bool,
    /// What the template has failed at, of which each is logged once: as many as it names fields, at most.
    failed: Mutex<BTreeSet<String>>,
}

impl RequestLog {
    /// A log with this template. `None`, and one error in the process's log, if it cannot be read: traffic
    /// goes on without it.
    pub fn start(template: &str, probes: bool, revision: RevisionInfo) -> Option<Self> {
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
            failed: Mutex::default(),
        })
    }

    /// Writes a request's line.
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
                "logging.request-log-template cannot be written of a request; later ones are not logged here"
            );
        }
    }
}
