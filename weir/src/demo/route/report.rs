//! Result of the runs as a table and as JSON.

use serde::Serialize;

use super::super::gpu::Device;
use super::super::replay::{Answer, Outcome};
use super::super::report::{Figures, was_answered_once};
use super::super::shares::new_table;
use super::super::workload::Workload;
use super::measure::Measurement;

/// Complete result of the scenario, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) scenario: &'static str,
    /// Number of the slice of the trace that was replayed, from 1.
    pub(super) seed: u64,
    /// Requested load: sum of service times divided by the span and by the sum of the speeds.
    pub(super) load: f64,
    pub(super) speeds: Vec<f64>,
    /// The software GPU used.
    pub(super) device: Device,
    pub(super) disturbed: bool,
    /// Reason for a disturbed result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disturbed_why: Option<String>,
    pub(super) runs: Vec<Run>,
    /// Why Knative's own programs were not run; `None` if they were.
    #[serde(skip)]
    pub(super) skipped: Option<String>,
}

/// Result of one run.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    name: &'static str,
    #[serde(flatten)]
    figures: Figures,
    /// Requests without a complete answer, or with one that is neither 200 nor 503.
    broken: usize,
    idle_while_waiting: f64,
    requests_max_over_mean: f64,
    /// Hand-over times; `None` if no request waited.
    hand_over_us: Option<HandOver>,
    reported_over_true: f64,
    #[serde(skip)]
    answered_once: bool,
}

#[derive(Debug, Serialize)]
struct HandOver {
    p50: f64,
    p99: f64,
}

impl Run {
    /// Evaluates the answers; `served` is the number of requests completed by the model-servers.
    pub(super) fn new(
        name: &'static str,
        workload: &Workload,
        answers: &[Answer],
        served: u64,
        measured: &Measurement,
        reported_over_true: f64,
    ) -> Self {
        let is_broken = |answer: &&Answer| matches!(answer.outcome, None | Some(Outcome::Other(_)));
        let missing = workload.requests.len().saturating_sub(answers.len());
        let rank = |percent: usize| {
            let rank = (measured.hand_overs.len() * percent).div_ceil(100).max(1);
            #[expect(clippy::cast_precision_loss, reason = "ns, far below 2^53")]
            let us = *measured.hand_overs.get(rank - 1)? as f64 / 1e3;
            Some(us)
        };
        let both = rank(50).zip(rank(99));
        Self {
            name,
            figures: Figures::of(workload, answers),
            broken: answers.iter().filter(is_broken).count() + missing,
            idle_while_waiting: measured.idle_while_waiting,
            requests_max_over_mean: measured.requests_max_over_mean,
            hand_over_us: both.map(|(p50, p99)| HandOver { p50, p99 }),
            reported_over_true,
            answered_once: was_answered_once(workload, answers, served),
        }
    }

    fn row(&self) -> Vec<String> {
        let mut row = self.figures.row("", self.name).split_off(1);
        row.extend([
            self.broken.to_string(),
            format!("{:.1} %", self.idle_while_waiting * 100.0),
            format!("{:.2}", self.requests_max_over_mean),
            self.hand_over_us.as_ref().map_or_else(
                || "–".to_owned(),
                |both| format!("{:.0} / {:.0}", both.p50, both.p99),
            ),
            format!("{:.3}", self.reported_over_true),
        ]);
        row
    }
}

impl Report {
    pub(super) fn every_request_was_answered_once(&self) -> bool {
        self.runs.iter().all(|run| run.answered_once)
    }

    /// Returns the result as a table.
    pub(super) fn table(&self, workload: &Workload) -> String {
        let columns = [
            "run",
            "requests",
            "in time",
            "p50 ms",
            "p95 ms",
            "p99 ms",
            "in time/s",
            "refused",
            "shed",
            "broken",
            "idle while waiting",
            "max/mean requests",
            "hand-over µs p50/p99",
            "reported/true",
        ];
        let table = new_table(&columns, self.runs.iter().map(Run::row).collect(), 1);
        let speeds: Vec<_> = self.speeds.iter().map(f64::to_string).collect();
        let mut text = self
            .disturbed_why
            .as_ref()
            .map_or_else(String::new, |why| format!("Disturbed: {why}.\n"));
        text.push_str(&format!(
            "Instances of speed {}, {} requests in {:.1} s, load {:.2}, slice {}; containerConcurrency 1.\n\
             stock: Knative's rules, in order of arrival. queue-proxies: any instance at once, deadline queues there. \
             weir: one deadline queue before all. knative: {}\n{table}\n{}\n",
            speeds.join(", "),
            workload.requests.len(),
            workload.span.as_secs_f64(),
            self.load,
            self.seed,
            self.skipped.as_ref().map_or_else(
                || "its own activator and queue-proxies.".to_owned(),
                |why| format!("not run, {why}."),
            ),
            self.device.line(),
        ));
        if !self.every_request_was_answered_once() {
            text.push_str("Not every request was answered exactly once.\n");
        }
        text
    }
}
