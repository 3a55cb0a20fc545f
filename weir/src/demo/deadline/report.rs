//! Result of both runs and its JSON; docs/demo.md describes the keys.

use serde::Serialize;

use super::super::gpu::Device;
use super::super::replay::Answer;
use super::super::report::{Figures, was_answered_once};
use super::super::workload::Workload;

/// Complete result of the scenario, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Name of the scenario.
    pub(super) scenario: &'static str,
    /// Slice of the trace, counted from 1.
    pub(super) seed: u64,
    /// Requested load: sum of service times divided by the span.
    pub(super) load: f64,
    /// Share in time of the best order found offline, 0 to 1.
    pub(super) best_found_hit_rate: f64,
    /// Whether the software GPU lagged too much for the result to be trusted.
    pub(super) disturbed: bool,
    /// Reason for a disturbed result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disturbed_why: Option<String>,
    /// The software GPU used.
    pub(super) device: Device,
    /// Results with Knative's settings, then with Weir's.
    pub(super) runs: Vec<Run>,
}

/// Result with one setting.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) total: Figures,
    pub(super) classes: Vec<Class>,
    #[serde(skip)]
    answered_once: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Class {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

impl Run {
    /// Evaluates the answers; `served` is the number of requests completed by the model-server.
    pub(super) fn new(
        name: &'static str,
        workload: &Workload,
        answers: &[Answer],
        served: u64,
    ) -> Self {
        let classes = workload
            .classes
            .iter()
            .enumerate()
            .map(|(class, name)| Class {
                name: name.clone(),
                figures: Figures::new(workload, answers, |at| workload.requests[at].class == class),
            });
        Self {
            name,
            total: Figures::of(workload, answers),
            classes: classes.collect(),
            answered_once: was_answered_once(workload, answers, served),
        }
    }
}

impl Report {
    /// Returns whether each request of each run got one answer, and the model-server served exactly those answered 200.
    pub(super) fn every_request_was_answered_once(&self) -> bool {
        self.runs.iter().all(|run| run.answered_once)
    }

    /// Returns the report as one line of JSON.
    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// Returns the result in one sentence.
    pub(super) fn sentence(&self) -> String {
        let whole = |share: f64| format!("{:.0}", share * 100.0);
        let rate = |name: &str| {
            let run = self.runs.iter().find(|run| run.name == name);
            whole(run.map_or(0.0, |run| run.total.hit_rate))
        };
        format!(
            "Weir answered {} of 100 requests in time; Knative's settings {}; the best order that a search found, {}.",
            rate("weir"),
            rate("stock"),
            whole(self.best_found_hit_rate)
        )
    }

    /// Returns names and shares in time of the compared orders.
    pub(super) fn bars(&self) -> [(&'static str, f64); 3] {
        let rate = |name: &str| {
            let run = self.runs.iter().find(|run| run.name == name);
            run.map_or(0.0, |run| run.total.hit_rate)
        };
        [
            ("Knative's settings", rate("stock")),
            ("Weir", rate("weir")),
            ("best order found", self.best_found_hit_rate),
        ]
    }
}
