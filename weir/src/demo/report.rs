//! Figures of a run's answers.

use std::time::Duration;

use serde::Serialize;

use super::replay::{Answer, Outcome};
use super::workload::Workload;

/// Counts and latencies of a set of a run's requests, as docs/demo.md describes them.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    /// Number of requests sent.
    pub(crate) requests: usize,
    /// Number answered 200 within the objective.
    pub(crate) in_time: usize,
    /// Number answered 200 by the application.
    answered: usize,
    /// Share of `in_time` in `requests`, 0 to 1.
    pub(crate) hit_rate: f64,
    /// Percentiles of answers 200, from the due time.
    p50_ms: Option<f64>,
    pub(crate) p95_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Percentile over all requests sent; `None` if it falls on a request not answered 200.
    p99_sent_ms: Option<f64>,
    goodput_rps: f64,
    refused: usize,
    shed: usize,
    /// Number answered neither 200 nor the queue-proxy's 503.
    failed: usize,
    /// Number without a complete answer.
    lost: usize,
}

/// Returns whether each request got one answer, and the model-server served exactly those answered 200.
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
    /// Returns the figures of all requests.
    pub(crate) fn of(workload: &Workload, answers: &[Answer]) -> Self {
        Self::new(workload, answers, |_| true)
    }

    /// Returns the figures of the requests for whose index `of` returns true.
    pub(crate) fn new(workload: &Workload, answers: &[Answer], of: impl Fn(usize) -> bool) -> Self {
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
        let (share, sent) = (hits as f64, requests as f64);
        let ms = |percent: usize, count: usize| {
            let latency = percentile(&latencies, percent, count);
            latency.map(|latency| latency.as_secs_f64() * 1e3)
        };
        let served = count(Outcome::Served);
        let is_failed = |answer: &&&Answer| matches!(answer.outcome, Some(Outcome::Other(_)));
        let given = answers.iter().filter(|a| a.outcome.is_some()).count();
        Self {
            requests,
            in_time: hits,
            answered: served,
            hit_rate: share / sent.max(1.0),
            p50_ms: ms(50, latencies.len()),
            p95_ms: ms(95, latencies.len()),
            p99_ms: ms(99, latencies.len()),
            // Unanswered requests rank last.
            p99_sent_ms: ms(99, requests),
            goodput_rps: share / workload.span.as_secs_f64(),
            refused: count(Outcome::Refused),
            shed: count(Outcome::Shed),
            failed: answers.iter().filter(is_failed).count(),
            lost: requests.saturating_sub(given),
        }
    }

    /// Returns the cells of a table row, in the order of docs/demo.md: name, run, requests, in time, p50, p95, p99, p99 of all,
    /// in time a second, refused, shed.
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
            ms(self.p99_sent_ms),
            format!("{:.1}", self.goodput_rps),
            self.refused.to_string(),
            self.shed.to_string(),
        ]
    }
}

/// Returns the nearest-rank percentile of `count` latencies; those missing from `sorted` count as longer than all others.
pub(crate) fn percentile(sorted: &[Duration], percent: usize, count: usize) -> Option<Duration> {
    let rank = (count * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}
