//! What came of the runs: one table for people, one JSON object for programs.

use std::io::{self, Write as _};
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::gpu::Device;
use super::replay::{Answer, Outcome};
use super::workload::Workload;

/// The whole result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Which scenario.
    pub(crate) scenario: &'static str,
    /// Which slice.
    pub(crate) seed: u64,
    /// Sum of service times divided by the span.
    pub(crate) load: f64,
    /// What the best order found offline answers in time.
    pub(crate) best_found_hit_rate: f64,
    /// What the functions computed on.
    pub(crate) device: Device,
    /// One for each setting.
    pub(crate) runs: Vec<Run>,
}

/// One setting's result.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    name: &'static str,
    #[serde(flatten)]
    total: Figures,
    classes: Vec<Class>,
    #[serde(skip)]
    answered_once: bool,
}

#[derive(Debug, Serialize)]
struct Class {
    name: String,
    #[serde(flatten)]
    figures: Figures,
}

/// Hit rate = answers 200 within the objective ÷ requests sent; percentiles over answers 200.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    requests: usize,
    answered: usize,
    pub(crate) hit_rate: f64,
    p50_ms: Option<f64>,
    pub(crate) p95_ms: Option<f64>,
    p99_ms: Option<f64>,
    goodput_rps: f64,
    refused: usize,
    shed: usize,
}

impl Run {
    /// Counts the answers; `served`: how many requests the model-server says it has served.
    pub(crate) fn new(
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

/// Whether each request got one answer, and the model-server served what was answered 200.
pub(crate) fn was_answered_once(workload: &Workload, answers: &[Answer], served: u64) -> bool {
    let mut times = vec![0_u32; workload.requests.len()];
    for answer in answers.iter().filter(|answer| answer.outcome.is_some()) {
        times[answer.request] += 1;
    }
    let ok = answers
        .iter()
        .filter(|answer| answer.outcome == Some(Outcome::Served))
        .count();
    times.iter().all(|&n| n == 1) && ok as u64 == served
}

impl Figures {
    /// Those of all requests.
    pub(crate) fn of(workload: &Workload, answers: &[Answer]) -> Self {
        Self::new(workload, answers, |_| true)
    }

    fn new(workload: &Workload, answers: &[Answer], of: impl Fn(usize) -> bool) -> Self {
        let requests = (0..workload.requests.len()).filter(|&at| of(at)).count();
        let answers: Vec<&Answer> = answers.iter().filter(|answer| of(answer.request)).collect();
        let count = |outcome| {
            answers
                .iter()
                .filter(|a| a.outcome == Some(outcome))
                .count()
        };
        let mut latencies: Vec<Duration> = answers
            .iter()
            .filter(|answer| answer.outcome == Some(Outcome::Served))
            .map(|answer| answer.latency)
            .collect();
        latencies.sort_unstable();
        let hits = answers
            .iter()
            .filter(|answer| {
                answer.outcome == Some(Outcome::Served)
                    && answer.latency <= workload.requests[answer.request].objective
            })
            .count();
        #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
        let (hits, sent) = (hits as f64, requests as f64);
        Self {
            requests,
            answered: answers
                .iter()
                .filter(|answer| answer.outcome.is_some())
                .count(),
            hit_rate: hits / sent.max(1.0),
            p50_ms: percentile(&latencies, 50),
            p95_ms: percentile(&latencies, 95),
            p99_ms: percentile(&latencies, 99),
            goodput_rps: hits / workload.span.as_secs_f64(),
            refused: count(Outcome::Refused),
            shed: count(Outcome::Shed),
        }
    }

    pub(crate) fn row(&self, name: &str, run: &str) -> Vec<String> {
        let ms = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.0}"));
        vec![
            name.to_owned(),
            run.to_owned(),
            self.requests.to_string(),
            format!("{:.1} %", self.hit_rate * 100.0),
            ms(self.p50_ms),
            ms(self.p95_ms),
            ms(self.p99_ms),
            format!("{:.1}", self.goodput_rps),
            self.refused.to_string(),
            self.shed.to_string(),
        ]
    }
}

/// Nearest rank, in milliseconds.
fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted
        .get(rank - 1)
        .map(|latency| latency.as_secs_f64() * 1e3)
}

impl Report {
    /// Whether each request of each run got one answer, and the model-server served what was answered 200.
    pub(crate) fn every_request_was_answered_once(&self) -> bool {
        self.runs.iter().all(|run| run.answered_once)
    }

    /// One object on one line.
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// A table, and what to make of it.
    pub(crate) fn table(&self, workload: &Workload) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header([
            "class",
            "run",
            "requests",
            "in time",
            "p50 ms",
            "p95 ms",
            "p99 ms",
            "goodput/s",
            "refused",
            "shed",
        ]);
        for run in &self.runs {
            table.add_row(run.total.row("all", run.name));
        }
        for class in 0..workload.classes.len() {
            for run in &self.runs {
                let class = &run.classes[class];
                table.add_row(class.figures.row(&class.name, run.name));
            }
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!(
            "One instance, {} requests in {:.1} s, load {:.2}, slice {}; containerConcurrency 1, queue depth 10.\n{table}\n",
            workload.requests.len(),
            workload.span.as_secs_f64(),
            self.load,
            self.seed,
        );
        text.push_str(&format!(
            "The best order that a search found with all arrivals known in advance: {:.1} % in time.\n",
            self.best_found_hit_rate * 100.0
        ));
        text.push_str(&self.device.line());
        text.push('\n');
        if !self.every_request_was_answered_once() {
            text.push_str("Not every request was answered exactly once.\n");
        }
        text
    }
}

/// Writes to stdout.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end())?;
    stdout.flush()
}
