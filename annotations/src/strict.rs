//! Strict parsing: one invalid annotation rejects all of them.

use crate::podinfo;
use crate::review::review;
use crate::settings::Settings;

/// Largest number of problems reported for one file.
pub const PROBLEMS_MAX: usize = 32;

/// Parses the text of a [podinfo] file. Keys of other domains are ignored.
///
/// # Errors
/// Returns a message for each problem, with its line or key and the allowed values; at most [`PROBLEMS_MAX`] of them.
pub fn read_strictly(text: &str) -> Result<Settings, Vec<String>> {
    let (lines, bad) = podinfo::parse(text);
    let mut problems: Vec<_> = bad.iter().map(ToString::to_string).collect();
    let (settings, refusals) = review(lines.iter().map(|(key, value)| (*key, value.as_str())));
    problems.extend(refusals.iter().map(ToString::to_string));
    if problems.is_empty() {
        Ok(settings)
    } else {
        problems.truncate(PROBLEMS_MAX);
        Err(problems)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::{Evict, Isolation, Variant};

    #[test]
    fn defaults_match_the_contract() {
        let settings = read_strictly("other.dev/key=\"x\"\nweir.dev/queue-depth=\"7\"\n").unwrap();
        assert_eq!(settings.isolation, Isolation::Tenant);
        assert_eq!(
            (settings.sm_hundredths, settings.quota_request_ppm),
            (10_000, 0)
        );
        assert_eq!(
            (settings.quota_limit_ppm, settings.gpu_memory),
            (1_000_000, None)
        );
        assert_eq!((settings.evict, settings.slo), (Evict::Host, None));
    }

    #[test]
    fn reads_every_key() {
        let read = read_strictly(
            "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"12.5\"\nweir.dev/quota-request=\"0.3\"\n\
             weir.dev/quota-limit=\"0.800001\"\nweir.dev/gpu-memory=\"8Gi\"\nweir.dev/evict=\"never\"\n\
             weir.dev/slo=\"200ms\"\nweir.dev/function=\"resnet\"\nweir.dev/variant=\"pipeline\"\n",
        )
        .unwrap();
        assert_eq!(read.function.as_deref(), Some("resnet"));
        assert_eq!(
            (read.isolation, read.evict),
            (Isolation::Shared, Evict::Never)
        );
        assert_eq!(read.sm_hundredths, 1_250);
        assert_eq!(
            (read.quota_request_ppm, read.quota_limit_ppm),
            (300_000, 800_001)
        );
        assert_eq!(read.gpu_memory, Some(8 << 30));
        assert_eq!(read.slo, Some(Duration::from_millis(200)));
        assert_eq!(read.variant, Variant::Pipeline);
    }

    #[test]
    fn unusable_values_are_reported_with_their_key_and_the_allowed_values() {
        let shared = "weir.dev/isolation=\"shared\"\n";
        for (line, expected) in [
            (
                "weir.dev/sm-percent=\"0\"",
                "weir.dev/sm-percent=\"0\": allowed: 1 to 100, with at most two decimals",
            ),
            (
                "weir.dev/sm-percent=\"101\"",
                "weir.dev/sm-percent=\"101\": allowed: 1 to 100, with at most two decimals",
            ),
            (
                "weir.dev/quota-request=\"1.1\"",
                "weir.dev/quota-request=\"1.1\": allowed: 0 to 1, with at most six decimals",
            ),
            (
                "weir.dev/quota-limit=\"0\"",
                "weir.dev/quota-limit=\"0\": allowed: above 0, up to 1, with at most six decimals",
            ),
            (
                "weir.dev/gpu-memory=\"8GB\"",
                "weir.dev/gpu-memory=\"8GB\": allowed: a quantity of bytes such as 8Gi, 512Mi, 1.5G or 1000000",
            ),
            (
                "weir.dev/gpu-memory=\"0\"",
                "weir.dev/gpu-memory=\"0\": allowed: a quantity of bytes above 0, such as 8Gi",
            ),
            (
                "weir.dev/evict=\"no\"",
                "weir.dev/evict=\"no\": allowed: host, never",
            ),
            (
                "weir.dev/isolation=\"none\"",
                "weir.dev/isolation=\"none\": allowed: strict, tenant, shared",
            ),
            (
                "weir.dev/slo=\"0s\"",
                "weir.dev/slo=\"0s\": allowed: a duration above zero such as 200ms, 1.5s or 1m30s",
            ),
            (
                "weir.dev/variant=\"x\"",
                "weir.dev/variant=\"x\": allowed: monolith, pipeline",
            ),
            (
                "weir.dev/function=\"A\"",
                "weir.dev/function=\"A\": allowed: 1 to 63 of a-z, 0-9 and -, no - at either end",
            ),
            (
                "weir.dev/sm-percnt=\"5\"",
                "weir.dev/sm-percnt=\"5\": is not a known key; allowed: concurrency, evict, function, gpu-memory, \
                 isolation, keep-alive, late, limit-buffered-bytes, limit-head-bytes, limit-head-lines, \
                 limit-head-time, limit-streams, mid-stream-timeout, queue-depth, quota-limit, quota-request, \
                 skip-containers, slo, slo-percentile, sm-percent, trust-budget, variant, version",
            ),
            ("nonsense", "line 2: no '=' between key and value"),
            (
                "weir.dev/quota-request=\"0.5\"\nweir.dev/quota-limit=\"0.4\"",
                "weir.dev/quota-request: must not be above weir.dev/quota-limit",
            ),
        ] {
            let problems = read_strictly(&format!("{shared}{line}\n")).unwrap_err();
            assert_eq!(problems, [expected], "{line}");
        }
        let problems = read_strictly("weir.dev/sm-percent=\"50\"\n").unwrap_err();
        assert_eq!(
            problems,
            ["weir.dev/sm-percent: allowed only with weir.dev/isolation=\"shared\""]
        );
    }

    #[test]
    fn the_number_and_length_of_problems_are_bounded() {
        let many: String = (0..1_000)
            .map(|number| {
                format!(
                    "weir.dev/{}{number}=\"{}\"\n",
                    "k".repeat(200),
                    "v".repeat(200)
                )
            })
            .collect();
        let problems = read_strictly(&many).unwrap_err();
        assert_eq!(problems.len(), PROBLEMS_MAX);
        assert!(problems.iter().all(|problem| problem.len() < 1_000));
    }
}
