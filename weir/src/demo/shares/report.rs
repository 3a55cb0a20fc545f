//! Result of a measurement as a table and as JSON.

use std::fmt::Write as _;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::super::gpu::{Lag, Scale};
use super::Outcome;
use super::measure::float;

/// Allowed error of a share, relative to the entitlement.
const ERROR_PART: f64 = 0.02;
/// Returns the allowed error of a pod's share: [`ERROR_PART`] of the entitlement; or, if that is greater, the longest of the
/// pod's own launches and any pod's single launch of `once`, as a share of the span.
pub(crate) fn allowed(outcome: &Outcome, pod: usize) -> f64 {
    let pods = outcome.plan.pods.iter();
    let once = pods.map(|pod| pod.once.as_secs_f64()).fold(0.0, f64::max);
    let launch = (float(outcome.achieved[pod].longest_ns) / 1e9).max(once);
    (outcome.entitled[pod] * ERROR_PART).max(launch / outcome.plan.seconds)
}

/// Returns the achieved share minus the entitlement.
pub(crate) fn error(outcome: &Outcome, pod: usize) -> f64 {
    outcome.achieved[pod].share - outcome.entitled[pod]
}

/// The complete result, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Json {
    scenario: &'static str,
    seconds: f64,
    scale: Scale,
    lag_us: Lag,
    pods: Vec<PodJson>,
    /// Sum of the quotas, if above 1 so that shares are scaled.
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

/// Returns the JSON object of an outcome.
pub(crate) fn json(outcome: &Outcome) -> Json {
    let pods = outcome.plan.pods.iter().enumerate().map(|(at, pod)| {
        let achieved = outcome.achieved[at];
        PodJson {
            name: pod.name.clone(),
            sm_percent: pod.sm_percent,
            quota_request: pod.request,
            quota_limit: pod.limit,
            work: pod.work.to_string(),
            share_asked: outcome.entitled[at],
            share_achieved: achieved.share,
            share_reported: outcome.reported[at],
            share_error: error(outcome, at),
            share_error_allowed: allowed(outcome, at),
            sm_seconds: achieved.sm_seconds,
            requests: achieved.requests,
            requests_per_second: rate(outcome, at),
            p99_ms: achieved.p99_ms,
        }
    });
    let device = &outcome.device;
    Json {
        scenario: "shares",
        seconds: outcome.plan.seconds,
        scale: device.scale,
        lag_us: device.lag_us,
        pods: pods.collect(),
        quotas_scaled_from: quota_sum_above_one(outcome),
        idle_while_waiting: outcome.idle_while_waiting,
        busy: outcome.busy,
        hand_overs: outcome.hand_overs,
        rule: outcome.plan.rule.name(),
        part: device.part.clone(),
        disturbed: outcome.disturbed.is_some(),
        disturbed_why: outcome.disturbed.clone(),
        runs: outcome.runs,
        run_delay_ms: device.run_delay_ms,
        steal_ms: device.steal_ms,
    }
}

/// Returns the sum of the pods' requested quotas if it exceeds the available time.
pub(super) fn quota_sum_above_one(outcome: &Outcome) -> Option<f64> {
    let pods = outcome.plan.pods.iter();
    let sum: f64 = pods.clone().map(|pod| pod.request).sum();
    // Pods that run concurrently may add up to more than 1.
    let is_scaled = pods
        .zip(&outcome.entitled)
        .any(|(pod, asked)| pod.idle_for <= 0.0 && *asked < pod.request.min(pod.demand()) - 1e-6);
    (sum > 1.0 + 1e-9 && is_scaled).then_some(sum)
}

/// Returns batches per second, as on a GPU with unscaled times.
pub(crate) fn rate(outcome: &Outcome, pod: usize) -> f64 {
    let seconds = outcome.plan.seconds / f64::from(outcome.plan.time);
    float(outcome.achieved[pod].requests) / seconds
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Creates a table with these columns and rows; the columns from `right` on are right-aligned for numbers.
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

/// Returns an outcome as a table with notes.
pub(crate) fn table(outcome: &Outcome) -> String {
    let plan = &outcome.plan;
    let rows = plan.pods.iter().enumerate().map(|(at, pod)| {
        let achieved = outcome.achieved[at];
        vec![
            pod.name.clone(),
            pod.work.to_string(),
            format!("{} %", pod.sm_percent),
            format!("{} / {}", pod.request, pod.limit),
            percent(outcome.entitled[at]),
            percent(achieved.share),
            percent(outcome.reported[at]),
            format!("{:+.2} %", error(outcome, at) * 100.0),
            format!("± {:.2} %", allowed(outcome, at) * 100.0),
            achieved.requests.to_string(),
            achieved
                .p99_ms
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
    // Writing to a string cannot fail.
    let _written = write!(
        text,
        "{} pods on one GPU for {} s, rule {}; shares of time in which at least one kernel of the pod ran, by the device's ledger.\n{}\n",
        plan.pods.len(),
        plan.seconds,
        plan.rule.name(),
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
            "Quotas add up to {:.0} %: the entitlements are scaled to add up to 100 %.",
            sum * 100.0
        );
    }
    text
}
