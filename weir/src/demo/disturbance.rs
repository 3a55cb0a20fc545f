//! Detects a machine too slow for a trustworthy result.
//!
//! One rule for all scenarios: a result is disturbed if the software GPU's lag (publication time minus due time) is at its 99th
//! percentile more than 5 % of the result's shortest stretch: of a token where time is shared, of a request's service time where
//! requests are queued.

use std::time::Duration;

use super::gpu::Device;
use super::workload::Workload;

/// Largest 99th percentile of the lag, as a share of the shortest stretch, of an undisturbed result.
const LAG_PART: f64 = 0.05;

/// Returns why a result about shares of time is disturbed; `token` is the shortest one's length, unscaled.
pub(super) fn of_tokens(device: &Device, token: Duration) -> Option<String> {
    why(device, token, "the shortest token")
}

/// Returns why a result about requests is disturbed.
pub(super) fn of_requests(device: &Device, workload: &Workload) -> Option<String> {
    let shortest = workload.requests.iter().map(|own| own.service).min()?;
    why(device, shortest, "the shortest service time")
}

fn why(device: &Device, shortest: Duration, what: &str) -> Option<String> {
    let bound = shortest.as_secs_f64() * 1e6 * LAG_PART;
    let lag = device.lag_us.p99;
    (lag > bound).then(|| {
        format!(
            "the software GPU was late: lag p99 {lag:.0} µs, above {bound:.0} µs, 5 % of {what}; a machine with less to do besides gives \
             a result that can be trusted"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::gpu::{Lag, Scale};
    use super::super::trace::Trace;
    use super::*;

    fn device(p99: f64) -> Device {
        Device {
            part: "H100".to_owned(),
            scale: Scale { time: 1, bytes: 64 },
            lag_us: Lag {
                p50: 30.0,
                p99,
                max: p99 * 2.0,
            },
            run_delay_ms: 0.0,
            steal_ms: 0.0,
        }
    }

    #[test]
    fn one_rule_applies_to_tokens_and_requests() {
        let token = Duration::from_millis(2);
        // 5 % of 2 ms, and of twice that where times are doubled.
        assert_eq!(of_tokens(&device(100.0), token), None);
        assert!(of_tokens(&device(101.0), token).is_some());
        assert_eq!(of_tokens(&device(101.0), token * 2), None);
        let trace = "arrival_s,service_ms,objective_ms,class\n0,20,80,a\n1,8,80,a\n2,9,80,a\n";
        let trace = Trace::parse(trace).unwrap();
        let workload = Workload::new(&trace, 25.0, 1.0, 4.0, 1).unwrap();
        assert_eq!(of_requests(&device(400.0), &workload), None);
        let why = of_requests(&device(38_000.0), &workload).unwrap();
        assert!(
            why.contains("lag p99 38000 µs, above 400 µs, 5 % of the shortest service time"),
            "{why}"
        );
    }
}
