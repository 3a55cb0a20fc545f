//! Result of the scenario as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::super::gpu::{Lag, Scale};
use super::super::shares::new_table;
use super::beside::Beside;
use super::measure::ms;
use super::{ModelRun, StationRun};

/// Largest 99th percentile of the lag, as a share of the shortest restore, of an undisturbed result.
const LAG_PART: f64 = 0.05;

/// Largest time in which memory is created, as a share of a restore, of an undisturbed result: on a GPU the link is the bound.
const CREATE_PART: f64 = 0.9;

/// The complete result, as `--json` prints it. Times are those of the device's ledger, but for `beside`, whose are the client's; sizes are those
/// before scaling.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    scenario: &'static str,
    part: String,
    scale: Scale,
    lag_us: Lag,
    seed: u64,
    disturbed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    disturbed_why: Option<String>,
    models: Vec<ModelJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<BesideJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles: Option<CyclesJson>,
}

#[derive(Debug, Serialize)]
struct ModelJson {
    name: String,
    part: String,
    scale: Scale,
    bytes: u64,
    handles: usize,
    evict_all_ms: f64,
    evict_all_copied_bytes: u64,
    evict_clean_ms: f64,
    evict_clean_copied_bytes: u64,
    evict_shared_ms: f64,
    shared_handles: usize,
    evict_sealed_first_copied_bytes: u64,
    restore_ms: f64,
    create_ms: f64,
    link_ms: f64,
    efficiency: f64,
    first_kernel_share: Option<f64>,
    hidden_first_kernel_share: Option<f64>,
    fixed_bytes: u64,
    residue_bytes: u64,
    requests_right: u32,
    requests_failed: u32,
}

/// Latencies of requests whose model is away.
#[derive(Debug, Serialize)]
struct BesideJson {
    model: &'static str,
    neighbour: &'static str,
    alone_ms: f64,
    beside_ms: f64,
    paper_alone_ms: u32,
    paper_beside_ms: u32,
    neighbour_returns: u32,
    requests_failed: u32,
}

#[derive(Debug, Serialize)]
struct CyclesJson {
    done: u32,
    requests: u32,
    wrong_bytes: u32,
    moved_addresses: u64,
    lost_requests: u32,
    refused: BTreeMap<String, u32>,
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn float(number: u64) -> f64 {
    number as f64
}

impl Report {
    pub(super) fn new(runs: &[StationRun], beside: Option<&Beside>, seed: u64) -> Self {
        let models: Vec<ModelJson> = runs
            .iter()
            .flat_map(|run| run.models.iter().map(move |model| model_json(run, model)))
            .collect();
        let worst = |own: fn(&Lag) -> f64| {
            let lags = runs.iter().map(|run| &run.device.lag_us);
            let lags = lags.chain(beside.map(|own| &own.lag_us));
            lags.map(own).fold(0.0, f64::max)
        };
        let lag_us = Lag {
            p50: worst(|lag| lag.p50),
            p99: worst(|lag| lag.p99),
            max: worst(|lag| lag.max),
        };
        let shortest = models.iter().map(|model| model.restore_ms);
        let bound = shortest.fold(f64::INFINITY, f64::min) * 1e3 * LAG_PART;
        let disturbed_why = (lag_us.p99 > bound).then(|| {
            format!(
                "the software GPU was late: lag p99 {:.0} µs, above {bound:.0} µs, 5 % of the shortest restore",
                lag_us.p99
            )
        });
        let disturbed_why = disturbed_why.or_else(|| {
            let early = models
                .iter()
                .find(|model| model.evict_all_copied_bytes != model.bytes)?;
            Some(format!(
                "this machine was too slow to evict {} before it had copied ahead",
                early.name
            ))
        });
        let bound_by_calls = models
            .iter()
            .find(|model| model.create_ms > model.restore_ms * CREATE_PART);
        let disturbed_why = disturbed_why.or_else(|| {
            let model = bound_by_calls?;
            Some(format!(
                "this machine took {:.0} ms of the {:.0} ms in which {} returned for the driver's calls: the link waited for them",
                model.create_ms, model.restore_ms, model.name
            ))
        });
        let scale = runs.first().map(|run| run.device.scale);
        let cycles = runs.iter().find_map(|run| run.cycles.as_ref());
        let mut parts: Vec<&str> = runs.iter().map(|run| run.part.name.as_str()).collect();
        parts.dedup();
        Self {
            scenario: "evict",
            part: parts.join(","),
            scale: scale.unwrap_or(Scale { time: 1, bytes: 1 }),
            lag_us,
            seed,
            disturbed: disturbed_why.is_some(),
            disturbed_why,
            models,
            beside: beside.map(|own| BesideJson {
                model: own.model,
                neighbour: own.neighbour,
                alone_ms: ms(own.alone_ns),
                beside_ms: ms(own.beside_ns),
                paper_alone_ms: own.paper_alone_ms,
                paper_beside_ms: own.paper_beside_ms,
                neighbour_returns: own.neighbour_returns,
                requests_failed: own.failed,
            }),
            cycles: cycles.map(|own| CyclesJson {
                done: own.done,
                requests: own.right + own.wrong + own.lost,
                wrong_bytes: own.wrong,
                moved_addresses: own.moved,
                lost_requests: own.lost,
                refused: own.refused.clone(),
            }),
        }
    }

    /// Returns whether every answer had the right bytes.
    pub(super) fn is_right(&self) -> bool {
        let cycles = self.cycles.as_ref();
        let beside = self.beside.as_ref();
        beside.is_none_or(|own| own.requests_failed == 0)
            && self.models.iter().all(|model| model.requests_failed == 0)
            && cycles.is_none_or(|own| {
                own.wrong_bytes == 0 && own.lost_requests == 0 && own.moved_addresses == 0
            })
    }

    /// Returns whether the machine was too slow for a trustworthy result.
    pub(super) const fn is_disturbed(&self) -> bool {
        self.disturbed
    }
}

fn model_json(run: &StationRun, model: &ModelRun) -> ModelJson {
    let scale = u64::from(run.device.scale.bytes);
    let bytes = model.bytes * scale;
    let link_ms = float(bytes) / float(run.part.host_link_bytes_per_second) * 1e3;
    let time = f64::from(run.device.scale.time);
    let restore_ms = ms(model.restore_ns) / time;
    ModelJson {
        name: model.name.clone(),
        part: run.part.name.clone(),
        scale: run.device.scale,
        bytes,
        handles: model.handles,
        evict_all_ms: ms(model.evict_all_ns) / time,
        evict_all_copied_bytes: model.evict_all_copied * scale,
        evict_clean_ms: ms(model.evict_clean_ns) / time,
        evict_clean_copied_bytes: model.evict_clean_copied * scale,
        evict_shared_ms: ms(model.evict_shared_ns) / time,
        shared_handles: model.shared_handles,
        evict_sealed_first_copied_bytes: model.sealed_first_copied * scale,
        restore_ms,
        create_ms: ms(model.creation_ns) / time,
        link_ms,
        efficiency: link_ms / restore_ms,
        first_kernel_share: model.first_kernel_share,
        hidden_first_kernel_share: model.hidden_first_kernel_share,
        fixed_bytes: model.fixed_bytes * scale,
        residue_bytes: model.residue_bytes * scale,
        requests_right: model.right,
        requests_failed: model.failed,
    }
}

/// Returns the result as a table with notes.
pub(super) fn table(report: &Report) -> String {
    let mut text = String::new();
    if let Some(why) = &report.disturbed_why {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "Disturbed: {why}.");
    }
    let share = |share: Option<f64>| {
        share.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share * 100.0))
    };
    let rows = report.models.iter().map(|model| {
        vec![
            model.name.clone(),
            model.part.clone(),
            model.scale.time.to_string(),
            format!("{:.2}", float(model.bytes) / 1e9),
            model.handles.to_string(),
            format!("{:.1}", model.evict_all_ms),
            format!("{:.1}", model.evict_clean_ms),
            format!("{:.1}", model.evict_shared_ms),
            model.shared_handles.to_string(),
            format!("{:.1}", model.restore_ms),
            format!("{:.1}", model.link_ms),
            format!("{:.0} %", model.efficiency * 100.0),
            share(model.first_kernel_share),
            share(model.hidden_first_kernel_share),
        ]
    });
    let columns = [
        "model",
        "GPU",
        "time ×",
        "GB",
        "handles",
        "evict ms, all",
        "unchanged",
        "in shared",
        "shared handles",
        "restore ms",
        "link ms",
        "efficiency",
        "first kernel",
        "hidden",
    ];
    let _written = write!(
        text,
        "Models that leave their GPU and return, by the device's ledger. First kernel: share of the bytes which was back when it started.\n{}\n",
        new_table(&columns, rows.collect(), 2),
    );
    let sealed: u64 = report
        .models
        .iter()
        .map(|model| model.evict_sealed_first_copied_bytes)
        .sum();
    let clean: u64 = report
        .models
        .iter()
        .map(|model| model.evict_clean_copied_bytes)
        .sum();
    let _written = writeln!(
        text,
        "Copied by evictions of which nothing had changed: {clean} bytes; by first evictions after the process had copied ahead: {sealed} bytes."
    );
    let failed: u32 = report
        .models
        .iter()
        .map(|model| model.requests_failed)
        .sum();
    if failed > 0 {
        let _written = writeln!(
            text,
            "{failed} requests were not answered with the model's bytes."
        );
    }
    if let Some(own) = &report.beside {
        let _written = writeln!(
            text,
            "A request to {} that was away: {:.0} ms alone, {:.0} ms while {} returned all the time behind the same switch ({} times); Torpor's \
             Table 3: {} and {} ms.",
            own.model,
            own.alone_ms,
            own.beside_ms,
            own.neighbour,
            own.neighbour_returns,
            own.paper_alone_ms,
            own.paper_beside_ms
        );
    }
    if let Some(cycles) = &report.cycles {
        let refused: Vec<String> = cycles
            .refused
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        let _written = writeln!(
            text,
            "{} random cycles (seed {}) under {} requests: {} wrong, {} lost, {} moved addresses; refused evictions: {}.",
            cycles.done,
            report.seed,
            cycles.requests,
            cycles.wrong_bytes,
            cycles.lost_requests,
            cycles.moved_addresses,
            if refused.is_empty() {
                "none".to_owned()
            } else {
                refused.join(", ")
            }
        );
    }
    let _written = writeln!(
        text,
        "Computed on software GPUs (times multiplied as shown, bytes ÷ {}): lag p50 {:.0} µs, p99 {:.0} µs, max {:.0} µs.",
        report.scale.bytes, report.lag_us.p50, report.lag_us.p99, report.lag_us.max
    );
    text
}
