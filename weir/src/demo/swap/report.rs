//! Result of the scenario.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::super::gpu::{Lag, Scale};
use super::load::Outcome;
use super::node::{REASONS, Run};
use super::plan::{MODELS, PERCENTILE, Plan};

/// Result in the form of its JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    scenario: &'static str,
    functions: usize,
    gpus: u32,
    instances: u32,
    rate: u32,
    seconds: f64,
    seed: u64,
    models_memory: u64,
    scale: Option<Scale>,
    lag_us: Option<Lag>,
    disturbed: Option<String>,
    /// Whether models moved for a fifth of the requests, and stock hosts at most six tenths of the functions.
    pub(super) valid: bool,
    why: Option<String>,
    runs: Vec<RunReport>,
}

/// Figures of a run.
#[derive(Debug, Serialize)]
struct RunReport {
    name: &'static str,
    functions: usize,
    hosted: usize,
    compliant: usize,
    requests: usize,
    answered: usize,
    right: usize,
    slo_hit_rate: f64,
    /// Share of the answered requests whose model was there.
    residency_hit_rate: f64,
    /// Share of the answered requests whose model came for them.
    swapped_share: f64,
    /// Number of models which came to a GPU, for requests or otherwise.
    loads: u64,
    swaps: BTreeMap<&'static str, u64>,
    evictions: BTreeMap<&'static str, u64>,
    siblings: SiblingsReport,
    /// Mean times of an eviction and of a load.
    evict_ms: f64,
    load_ms: f64,
    copied_out_bytes: u64,
    restored_bytes: u64,
    /// Share of the GPUs' time in which no kernel ran although a request waited whose model was there.
    idle_while_waiting: f64,
    /// Variance of the shares of time in which kernels ran on each GPU, divided by the largest (M2.20).
    load_variance: f64,
    /// Kernels that began while one of another process ran on the same GPU, by the ledger: none under leases.
    overlaps: u64,
    models: Vec<ModelReport>,
}

/// Requests which were to be forwarded to another instance of their function.
#[derive(Debug, Serialize)]
struct SiblingsReport {
    sent: u64,
    returned: u64,
}

/// Latencies of the functions with one model.
#[derive(Debug, Serialize)]
struct ModelReport {
    name: &'static str,
    objective_ms: u64,
    requests: usize,
    in_time: usize,
    p50_ms: Option<f64>,
    p98_ms: Option<f64>,
    /// Mean time of a request on its GPU, from its first kernel to the end of its last one, if its model is there.
    resident_ms: Option<f64>,
    /// The same from the creation of its model's first memory, if that comes for it.
    swapped_ms: Option<f64>,
}

impl Report {
    pub(super) fn new(plan: &Plan, runs: &[Run]) -> Self {
        let reports: Vec<RunReport> = runs.iter().map(|run| run_report(plan, run)).collect();
        let device = runs.get(1).map(|run| &run.device);
        let (stock, weir) = (reports.first(), reports.get(1));
        let mut why = Vec::new();
        if weir.is_some_and(|run| run.swapped_share < 0.2) {
            why.push("models moved for fewer than a fifth of the requests");
        }
        if stock.is_some_and(|run| run.hosted * 10 > plan.functions.len() * 6) {
            why.push("stock hosts more than six tenths of the functions");
        }
        // The shortest request takes 9 ms.
        let lag_max = 450.0 * f64::from(plan.slow);
        let late = device.filter(|device| device.lag_us.p99 > lag_max);
        Self {
            scenario: "swap",
            functions: plan.functions.len(),
            gpus: plan.gpus,
            instances: plan.instances,
            rate: plan.rate,
            seconds: plan.seconds,
            seed: plan.seed,
            models_memory: plan.models_memory,
            scale: device.map(|device| device.scale),
            lag_us: device.map(|device| device.lag_us),
            disturbed: late.map(|device| {
                format!(
                    "the software GPUs were late: lag p99 {:.0} µs, above {lag_max:.0} µs, 5 % of the shortest request",
                    device.lag_us.p99
                )
            }),
            valid: why.is_empty(),
            why: (!why.is_empty()).then(|| why.join("; ")),
            runs: reports,
        }
    }

    /// Returns whether every request under leases was answered, and rightly, and no two processes computed on a GPU at a time. Without the rule by
    /// default a request may time out.
    pub(super) fn is_right(&self) -> bool {
        let mut leased = self.runs.iter().skip(1);
        leased.next().is_some_and(|run| {
            run.right == run.requests && run.answered == run.requests && run.overlaps == 0
        }) && leased.all(|run| run.right == run.answered && run.overlaps == 0)
    }

    pub(super) const fn is_disturbed(&self) -> bool {
        self.disturbed.is_some()
    }
}

fn run_report(plan: &Plan, run: &Run) -> RunReport {
    let mut in_time = vec![0_usize; plan.functions.len()];
    let mut requests = vec![0_usize; plan.functions.len()];
    let (mut answered, mut right) = (0, 0);
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for (arrival, outcome) in plan.arrivals.iter().zip(&run.outcomes) {
        let function = &plan.functions[arrival.function];
        requests[arrival.function] += 1;
        match outcome {
            Outcome::Right(time, _) => {
                (answered, right) = (answered + 1, right + 1);
                in_time[arrival.function] += usize::from(*time <= function.objective);
                took.entry(function.model).or_default().push(*time);
            }
            Outcome::Wrong => answered += 1,
            Outcome::Refused | Outcome::Lost => {}
        }
    }
    let compliant = in_time.iter().zip(&requests);
    let compliant = compliant.filter(|(in_time, all)| **in_time * 100 >= **all * PERCENTILE);
    let share = |part: usize| ratio(part as u64, plan.arrivals.len() as u64);
    let measured = &run.measured;
    let slow = f64::from(plan.slow);
    // Mean over the functions with a model.
    let mean = |name: &str, of: usize| {
        let own = measured.times.iter();
        let own = own.filter(|(function, _)| plan.functions[**function].model == name);
        let sum = own.fold((0, 0), |sum: (u64, u64), (_, times)| {
            (sum.0 + times[of].0, sum.1 + times[of].1)
        });
        (sum.1 > 0).then(|| ratio(sum.0, sum.1) / slow / 1e6)
    };
    let models = MODELS
        .iter()
        .map(|name| {
            let own = plan.functions.iter().zip(in_time.iter().zip(&requests));
            let own: Vec<_> = own.filter(|(own, _)| own.model == *name).collect();
            let mut times = took.remove(name).unwrap_or_default();
            times.sort_unstable();
            let percentile = |percent| {
                let time = super::super::report::percentile(&times, percent, times.len())?;
                Some(time.as_secs_f64() / slow * 1e3)
            };
            ModelReport {
                name,
                objective_ms: own.first().map_or(0, |(own, _)| {
                    let objective = own.objective / plan.slow;
                    u64::try_from(objective.as_millis()).unwrap_or(0)
                }),
                requests: own.iter().map(|(_, (_, all))| **all).sum(),
                in_time: own.iter().map(|(_, (in_time, _))| **in_time).sum(),
                p50_ms: percentile(50),
                p98_ms: percentile(PERCENTILE),
                resident_ms: mean(name, 0),
                swapped_ms: mean(name, 1),
            }
        })
        .collect();
    let swapped = measured.swapped;
    let of_answered = |part: u64| ratio(part, right as u64);
    RunReport {
        name: run.name,
        functions: plan.functions.len(),
        hosted: run.hosted,
        compliant: compliant.count(),
        requests: plan.arrivals.len(),
        answered,
        right,
        slo_hit_rate: share(in_time.iter().sum()),
        residency_hit_rate: of_answered((right as u64).saturating_sub(swapped)),
        swapped_share: of_answered(swapped),
        loads: measured.loads,
        swaps: BTreeMap::from([
            ("none", (right as u64).saturating_sub(swapped)),
            ("host", swapped),
            ("nvlink", 0),
        ]),
        evictions: REASONS.into_iter().zip(run.moves.evictions).collect(),
        siblings: SiblingsReport {
            sent: run.moves.siblings.0,
            returned: run.moves.siblings.1,
        },
        evict_ms: ratio(run.moves.evict_ns, run.moves.evictions.iter().sum()) / slow / 1e6,
        load_ms: ratio(run.moves.restore_ns, run.moves.restores) / slow / 1e6,
        copied_out_bytes: run.moves.copied_out_bytes,
        restored_bytes: run.moves.restored_bytes,
        idle_while_waiting: measured.idle_while_waiting,
        load_variance: measured.load_variance,
        overlaps: measured.overlaps,
        models,
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Returns the result as a table.
pub(super) fn table(report: &Report) -> String {
    let slowed = match &report.scale {
        Some(scale) if scale.time > 1 => format!(", times multiplied by {}", scale.time),
        _ => String::new(),
    };
    let mut text = format!(
        "{} functions with {} instances each on {} GPUs, {} requests/s for {} s{slowed}\n\n{:8} {:>7} {:>10} {:>9} {:>9} {:>8} {:>9} {:>10} {:>7}\n",
        report.functions,
        report.instances,
        report.gpus,
        report.rate,
        report.seconds,
        "run",
        "hosted",
        "compliant",
        "answered",
        "right",
        "in time",
        "swapped",
        "copied out",
        "idle"
    );
    for run in &report.runs {
        // Writing to a string cannot fail.
        let _written = writeln!(
            text,
            "{:8} {:>7} {:>10} {:>9} {:>9} {:>6.1} % {:>7.1} % {:>6} KiB {:>5.1} %",
            run.name,
            run.hosted,
            run.compliant,
            run.answered,
            run.right,
            run.slo_hit_rate * 100.0,
            run.swapped_share * 100.0,
            run.copied_out_bytes >> 10,
            run.idle_while_waiting * 100.0
        );
    }
    if let Some(weir) = report.runs.get(1) {
        let _written = writeln!(
            text,
            "\nmean eviction {:.1} ms, mean load {:.1} ms; {} requests to the other instance of their function, of which {} came back",
            weir.evict_ms, weir.load_ms, weir.siblings.sent, weir.siblings.returned
        );
        let _written = writeln!(
            text,
            "\n{:14} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "model (weir)", "objective", "requests", "in time", "p50", "p98", "there", "swapped"
        );
        for model in &weir.models {
            let ms = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"))
            };
            let _written = writeln!(
                text,
                "{:14} {:>6} ms {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
                model.name,
                model.objective_ms,
                model.requests,
                model.in_time,
                ms(model.p50_ms),
                ms(model.p98_ms),
                ms(model.resident_ms),
                ms(model.swapped_ms)
            );
        }
    }
    if let Some(why) = &report.why {
        let _written = writeln!(text, "\nnot valid: {why}");
    }
    if let Some(why) = &report.disturbed {
        let _written = writeln!(text, "\ndisturbed: {why}");
    }
    text.truncate(text.trim_end().len());
    text
}
