//! Profile rows computed in closed form instead of by trials (mechanisms §4.5, workloads §8): 5 quotas × 7 shares of SMs.
//!
//! **Throughput** is Q · T1 · f(S): that of a pod without neighbours that always has work.
//!
//! **Latency** is that of the profiler's closed loop with two requests in flight, by which the trial keeps the pod busy: a
//! request waits for the one before it and then runs, so it ends when the pod has run for L = 2 / (T1 · f(S)). A pod
//! whose limit is its quota alternately runs for r and pauses for p, and L begins anywhere in r: it spans ⌊L/r⌋
//! pauses, and one more in frac(L/r) of all cases. The percentile q is therefore L + p · (⌊L/r⌋ + [1 − q < frac(L/r)]).
//! The lengths of r and p depend on the rule:
//!
//! | rule | pause p | run r |
//! |---|---|---|
//! | Weir | one cycle (`policy::tokens`), and (1 − Q) / Q of f, the work in flight at the close | Q / (1 − Q) of a cycle, and f |
//! | windows (as printed) | (1 − Q) of the window | Q of it |
//!
//! Each pause adds a hand-over. Noise and neighbours are not included: the profiler has neither.

use policy::Span;
use policy::rectangles::FunctionId;
use policy::scaling::Rate;
use policy::scaling::profile::{
    DriverId, GpuModelId, ImageId, Latency, Origin, Row, RowError, Rows, Subject,
};
use policy::tokens::{Rule, Settings, Share};

use super::models::{Model, Models};
use crate::generate::nanos;

/// Quotas of the grid, in percent (FaST-GShare §5.2).
pub const QUOTAS: [u32; 5] = [20, 40, 60, 80, 100];
/// Shares of the SMs of the grid, in percent (FaST-GShare §5.2).
pub const SMS: [u32; 7] = [6, 12, 24, 50, 60, 80, 100];
/// Number of requests that a trial keeps in flight: twice the number that a pod serves at a time.
pub const IN_FLIGHT: u32 = 2;

/// Returns the subject of a function's rows: one GPU model, one driver, one image.
#[must_use]
pub const fn subject(function: FunctionId) -> Subject {
    Subject {
        function,
        gpu: GpuModelId(0),
        driver: DriverId(0),
        batch: 1,
        image: ImageId(0),
    }
}

/// Returns all rows of a function that runs this model under these tokens, marked as derived.
///
/// # Errors
/// Returns an error if the model is too slow to be profiled.
pub fn rows(
    models: &Models,
    model: &Model,
    tokens: &Settings,
    function: FunctionId,
) -> Result<Rows, RowError> {
    let in_flight = models.gate.in_flight_us * 1e3;
    let mut rows = Rows::new();
    for sm in SMS.map(|percent| percent * 100) {
        for quota in QUOTAS.map(Share::from_percent) {
            let part = f64::from(quota.parts_per_million()) / 1e6;
            let speed = model.speed(sm);
            rows.insert(Row {
                subject: subject(function),
                sm,
                quota,
                throughput: Rate::from_f64(part * model.requests_per_s * speed),
                latency: latency(model.work() / speed, quota, tokens, in_flight),
                memory: models.footprint(&model.name),
                origin: Origin::Derived,
            })?;
        }
    }
    Ok(rows)
}

/// Returns the latencies of requests that run for `runs` ns each, on a pod with `in_flight` ns of work in flight at a close; see
/// the [module](self).
fn latency(runs: f64, quota: Share, tokens: &Settings, in_flight: f64) -> Latency {
    let busy = f64::from(IN_FLIGHT) * runs;
    let part = f64::from(quota.parts_per_million()) / 1e6;
    #[expect(clippy::cast_precision_loss, reason = "settings of a scheduler")]
    let (window, cycle, slice, hand_over) = (
        tokens.window.0 as f64,
        tokens.cycle.0 as f64,
        tokens.slice_min.0 as f64,
        tokens.hand_over.0 as f64,
    );
    let (pause, run) = if quota.is_whole() {
        (0.0, f64::INFINITY)
    } else if matches!(tokens.rule, Rule::Paper | Rule::TimeOnly) {
        ((1.0 - part) * window, part * window)
    } else {
        let pause = cycle.max(slice / part).min(window / 2.0);
        let run = part * pause / (1.0 - part) + in_flight;
        (run * (1.0 - part) / part, run)
    };
    let spanned = busy / run;
    let more = spanned - spanned.floor();
    let at = |percentile: f64| {
        let one = if 1.0 - percentile < more { 1.0 } else { 0.0 };
        let pauses = spanned.floor() + one;
        Span(nanos(busy + pauses * (pause + hand_over)))
    };
    Latency {
        p50: at(0.5),
        p95: at(0.95),
        p98: at(0.98),
        p99: at(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_closed_form() {
        let models = Models::fast_gshare();
        let model = &models.models[models.model("ResNet").unwrap()];
        let rows = rows(&models, model, &Settings::default(), FunctionId(3)).unwrap();
        let of = rows.of(&subject(FunctionId(3)));
        assert_eq!(of.len(), 35);
        assert!(of.iter().all(|row| row.origin == Origin::Derived));
        let row = |sm, quota| {
            *of.iter()
                .find(|row| (row.sm, row.quota) == (sm, Share::from_percent(quota)))
                .unwrap()
        };
        assert_eq!(row(10_000, 100).throughput, Rate::from_f64(71.37));
        assert_eq!(row(10_000, 40).throughput, Rate::from_f64(28.548));
        let whole = row(2_400, 100);
        // 2 / (71.37 × 0.98)
        assert!((whole.latency.p99.as_secs_f64() - 0.028_59).abs() < 1e-4);
        assert_eq!(whole.latency.p50, whole.latency.p99);
        // Runs of 402 ms: one pause of 100.5 ms in 7 % of all cases.
        let most = row(2_400, 80).latency;
        assert_eq!(most.p50, whole.latency.p50);
        let added = most.p95.less(most.p50);
        assert_eq!(added, Span(100_750_000));
        // Runs of 27 ms: one pause of 108 ms, and one more in 6 % of all cases.
        let least = row(2_400, 20).latency;
        assert_eq!(least.p50.less(whole.latency.p50), Span(108_250_000));
        assert_eq!(least.p95.less(whole.latency.p50), Span(216_500_000));
    }

    #[test]
    fn windows_pause_for_the_rest_of_the_window() {
        let models = Models::fast_gshare();
        let model = &models.models[0];
        let settings = Settings {
            rule: Rule::Paper,
            ..Settings::default()
        };
        let of = rows(&models, model, &settings, FunctionId(0)).unwrap();
        let row = of.of(&subject(FunctionId(0)))[1];
        assert_eq!(row.quota, Share::from_percent(40));
        // Two of 22.6 ms each in runs of 400 ms: a pause in a ninth of all cases.
        assert!(row.latency.p50 < Span::from_millis(60));
        assert_eq!(row.latency.p95.less(row.latency.p50), Span(600_250_000));
    }
}
