//! Result of the demo as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::queries::QueryResults;
use super::traces::Waterfall;

/// A query that failed or was empty.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Failure {
    pub(super) file: String,
    pub(super) panel: String,
    pub(super) expr: String,
    pub(super) why: String,
}

/// Expected cause of a function's missed objectives, and the first cause in "Why missed".
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cause {
    pub(super) function: &'static str,
    pub(super) made: &'static str,
    pub(super) named: String,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Targets {
    up: usize,
    down: usize,
}

#[derive(Debug, Clone, Serialize)]
struct File {
    file: String,
    queries: usize,
}

/// Complete result of the demo, as `--json` prints it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    /// Number of queries sent.
    queries: usize,
    errors: usize,
    empty: usize,
    targets: Targets,
    files: Vec<File>,
    failures: Vec<Failure>,
    causes: Vec<Cause>,
    alerts_firing: Vec<String>,
    prometheus: String,
    /// Duration of the demo, in s.
    seconds: f64,
    /// Request which missed its objective by most; `None` without `--traces`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worst: Option<Waterfall>,
}

impl Report {
    pub(super) fn new(
        sent: QueryResults,
        (up, down): (usize, usize),
        causes: Vec<Cause>,
        alerts_firing: Vec<String>,
        prometheus: String,
        seconds: f64,
    ) -> Self {
        let mut files: BTreeMap<String, usize> = BTreeMap::new();
        for query in &sent.queries {
            *files.entry(query.file.clone()).or_default() += 1;
        }
        let (errors, empty) = (sent.errors.len(), sent.empty.len());
        Self {
            queries: sent.queries.len(),
            errors,
            empty,
            targets: Targets { up, down },
            files: files
                .into_iter()
                .map(|(file, queries)| File { file, queries })
                .collect(),
            failures: sent.errors.into_iter().chain(sent.empty).collect(),
            causes,
            alerts_firing,
            prometheus,
            seconds: (seconds * 10.0).round() / 10.0,
            worst: None,
        }
    }

    /// Returns whether every query had series, and each expected cause was named.
    pub(super) fn is_good(&self) -> bool {
        let are_named = self.causes.iter().all(|cause| cause.made == cause.named);
        self.failures.is_empty() && are_named
    }

    /// Returns the result as text for a terminal.
    pub(super) fn text(&self) -> String {
        let Self {
            queries,
            errors,
            empty,
            targets,
            prometheus,
            seconds,
            ..
        } = self;
        let mut text = format!(
            "Prometheus {prometheus} scraped {} targets, {} of them down, and answered {queries} queries of Weir's dashboards and rules \
             in {seconds} s: {errors} errors, {empty} empty.\n\n",
            targets.up + targets.down,
            targets.down,
        );
        // Writing to a string cannot fail.
        for File { file, queries } in &self.files {
            let _written = writeln!(text, "  {file:<22} {queries:>3} queries");
        }
        for Failure {
            file,
            panel,
            expr,
            why,
        } in &self.failures
        {
            let _written = write!(text, "\n{file}, {panel}: {why}\n  {expr}\n");
        }
        text.push_str("\nWhy requests missed their objectives:\n\n");
        for Cause {
            function,
            made,
            named,
        } in &self.causes
        {
            let _written = writeln!(
                text,
                "  {function:<8} expected cause {made:<11} named: {named}"
            );
        }
        let _written = writeln!(text, "\nFiring alerts: {}", self.alerts_firing.join(", "));
        if let Some(worst) = &self.worst {
            text.push_str(&worst.text());
        }
        text
    }
}
