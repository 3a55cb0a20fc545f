//! What came of both runs, and one JSON object of it; docs/demo.md has the keys.

use serde::Serialize;

use super::super::gpu::Device;
use super::super::replay::Answer;
use super::super::report::{Figures, was_answered_once};
use super::super::workload::Workload;

/// The whole result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Which scenario.
    pub(super) scenario: &'static str,
    /// Which slice.
    pub(super) seed: u64,
    /// As it was asked for.
    pub(super) load: f64,
    /// What the best order found offline answers in time.
    pub(super) best_found_hit_rate: f64,
    /// Whether the machine kept time too badly for the result to be trusted.
    pub(super) disturbed: bool,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disturbed_why: Option<String>,
    /// What the functions computed on.
    pub(super) device: Device,
    /// Knative's settings, then Weir's.
    pub(super) runs: Vec<Run>,
}

/// One setting's result.
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
    /// Counts the answers; `served`: how many requests the model-server says it has served.
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
    /// Whether each request of each run got one answer, and the model-server served what was answered 200.
    pub(super) fn every_request_was_answered_once(&self) -> bool {
        self.runs.iter().all(|run| run.answered_once)
    }

    /// One object on one line.
    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// What came of it, in one sentence.
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

    /// Name and share in time, of what is compared.
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
