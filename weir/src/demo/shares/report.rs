//! What came of a measurement: a table for people, JSON for programs.

use std::fmt::Write as _;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::super::gpu::{Lag, Scale};
use super::Outcome;
use super::measure::float;

/// What a share may miss of what was asked, as a part of it …
const ERROR_PART: f64 = 0.02;
/// … or, as a part of the span, one of the pod's own launches, or a launch that somebody makes but once: whichever is more.
pub(crate) fn allowed(outcome: &Outcome, pod: usize) -> f64 {
    let pods = outcome.ask.pods.iter();
    let once = pods.map(|pod| pod.once.as_secs_f64()).fold(0.0, f64::max);
    let launch = (float(outcome.got[pod].longest_ns) / 1e9).max(once);
    (outcome.asked[pod] * ERROR_PART).max(launch / outcome.ask.seconds)
}

/// Achieved less asked.
pub(crate) fn error(outcome: &Outcome, pod: usize) -> f64 {
    outcome.got[pod].share - outcome.asked[pod]
}

/// Everything, as it is printed with --json.
#[derive(Debug, Serialize)]
pub(crate) struct Json {
    scenario: &'static str,
    seconds: f64,
    scale: Scale,
    lag_us: Lag,
    pods: Vec<PodJson>,
    /// What quotas add up to where that is above 1 and shares are scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    quotas_scaled_from: Option<f64>,
    idle_while_waiting: f64,
    busy: f64,
    hand_overs: u64,
    rule: String,
    part: String,
    disturbed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    disturbed_why: Option<String>,
    runs: usize,
    run_delay_ms: f64,
    steal_ms: f64,
}

#[derive(Debug, Serialize)]
struct PodJson {
    name: String,
    sm_percent: f64,
    quota_request: f64,
    quota_limit: f64,
    work: String,
    share_asked: f64,
    share_achieved: f64,
    share_reported: f64,
    share_error: f64,
    share_error_allowed: f64,
    sm_seconds: f64,
    requests: u64,
    requests_per_second: f64,
    p99_ms: Option<f64>,
}

/// The JSON object of an outcome.
pub(crate) fn json(outcome: &Outcome) -> Json {
    let pods = outcome.ask.pods.iter().enumerate().map(|(at, pod)| {
        let got = outcome.got[at];
        PodJson {
            name: pod.name.clone(),
            sm_percent: pod.sm_percent,
            quota_request: pod.request,
            quota_limit: pod.limit,
            work: pod.work.to_string(),
            share_asked: outcome.asked[at],
            share_achieved: got.share,
            share_reported: outcome.reported[at],
            share_error: error(outcome, at),
            share_error_allowed: allowed(outcome, at),
            sm_seconds: got.sm_seconds,
            requests: got.requests,
            requests_per_second: rate(outcome, at),
            p99_ms: got.p99_ms,
        }
    });
    let device = &outcome.device;
    Json {
        scenario: "shares",
        seconds: outcome.ask.seconds,
        scale: device.scale,
        lag_us: device.lag_us,
        pods: pods.collect(),
        quotas_scaled_from: quota_sum_above_one(outcome),
        idle_while_waiting: outcome.idle_while_waiting,
        busy: outcome.busy,
        hand_overs: outcome.hand_overs,
        rule: outcome.ask.rule.name(),
        part: device.part.clone(),
        disturbed: outcome.disturbed.is_some(),
        disturbed_why: outcome.disturbed.clone(),
        runs: outcome.runs,
        run_delay_ms: device.run_delay_ms,
        steal_ms: device.steal_ms,
    }
}

/// Returns what the pods' requested quotas add up to, if that is more than there is.
pub(super) fn quota_sum_above_one(outcome: &Outcome) -> Option<f64> {
    let pods = outcome.ask.pods.iter();
    let sum: f64 = pods.clone().map(|pod| pod.request).sum();
    // Pods that run side by side may add up to more than 1.
    let is_scaled = pods
        .zip(&outcome.asked)
        .any(|(pod, asked)| pod.idle_for <= 0.0 && *asked < pod.request.min(pod.demand()) - 1e-6);
    (sum > 1.0 + 1e-9 && is_scaled).then_some(sum)
}

/// Batches per second, as on a GPU whose times are not scaled.
pub(crate) fn rate(outcome: &Outcome, pod: usize) -> f64 {
    let seconds = outcome.ask.seconds / f64::from(outcome.ask.time);
    float(outcome.got[pod].requests) / seconds
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// An empty table with these columns; those from `right` on are numbers.
pub(crate) fn new_table(columns: &[&str], rows: Vec<Vec<String>>, right: usize) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(columns);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(right) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The table of an outcome, and what else there is to say.
pub(crate) fn table(outcome: &Outcome) -> String {
    let ask = &outcome.ask;
    let rows = ask.pods.iter().enumerate().map(|(at, pod)| {
        let got = outcome.got[at];
        vec![
            pod.name.clone(),
            pod.work.to_string(),
            format!("{} %", pod.sm_percent),
            format!("{} / {}", pod.request, pod.limit),
            percent(outcome.asked[at]),
            percent(got.share),
            percent(outcome.reported[at]),
            format!("{:+.2} %", error(outcome, at) * 100.0),
            format!("± {:.2} %", allowed(outcome, at) * 100.0),
            got.requests.to_string(),
            got.p99_ms
                .map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}")),
        ]
    });
    let columns = [
        "pod",
        "work",
        "SMs",
        "request / limit",
        "asked",
        "achieved",
        "reported",
        "error",
        "allowed",
        "batches",
        "p99 ms",
    ];
    let mut text = String::new();
    if let Some(why) = &outcome.disturbed {
        let _written = writeln!(text, "Disturbed, after {} runs: {why}.", outcome.runs);
    }
    // A string takes everything.
    let _written = write!(
        text,
        "{} pods on one GPU for {} s, rule {}; shares of time in which at least one kernel of the pod ran, by the device's ledger.\n{}\n",
        ask.pods.len(),
        ask.seconds,
        ask.rule.name(),
        new_table(&columns, rows.collect(), 2),
    );
    let _written = writeln!(
        text,
        "The device was busy for {}; idle although a pod with quota left waited: {}; {} hand-overs.",
        percent(outcome.busy),
        percent(outcome.idle_while_waiting),
        outcome.hand_overs,
    );
    let _written = writeln!(text, "{}", outcome.device.line());
    if let Some(sum) = quota_sum_above_one(outcome) {
        let _written = writeln!(
            text,
            "Quotas add up to {:.0} %: what each pod was asked to get is scaled so that they add up to 100 %.",
            sum * 100.0
        );
    }
    text
}
