//! What a pod's annotations ask for: the keys of `weir.dev/` and their ranges. Whatever cannot be used refuses the pod.

use crate::config::units::{decimal, duration, quantity};
use crate::state::{ALL_HUNDREDTHS, ALL_PPM, Evict, Isolation, PodSettings};

/// The annotations file's form is that of queue-proxy's podinfo, and so is its reader.
#[path = "../../../../queue-proxy/src/podinfo.rs"]
mod podinfo;

pub(crate) use podinfo::SIZE_MAX;

/// The domain of Weir's annotations.
const PREFIX: &str = "weir.dev/";
/// Annotations that mean something here.
const OWN_KEYS: [&str; 9] = [
    "evict",
    "function",
    "gpu-memory",
    "isolation",
    "quota-limit",
    "quota-request",
    "slo",
    "sm-percent",
    "variant",
];
/// Those that are for Weir's other parts.
const OTHER_KEYS: [&str; 12] = [
    "concurrency",
    "keep-alive",
    "late",
    "limit-head-bytes",
    "limit-head-lines",
    "limit-head-time",
    "limit-streams",
    "mid-stream-timeout",
    "queue-depth",
    "skip-containers",
    "slo-percentile",
    "version",
];

/// The settings, and the function where one is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Annotations {
    pub(crate) settings: PodSettings,
    pub(crate) function: Option<String>,
}

/// Reads the file's text.
///
/// # Errors
/// Everything that is wrong, each with its key and what is allowed.
pub(crate) fn read(text: &str) -> Result<Annotations, Vec<String>> {
    let (lines, bad) = podinfo::parse(text);
    let mut problems: Vec<_> = bad.iter().map(ToString::to_string).collect();
    let mut settings = PodSettings {
        isolation: Isolation::Tenant,
        sm_hundredths: ALL_HUNDREDTHS,
        quota_request_ppm: 0,
        quota_limit_ppm: ALL_PPM,
        gpu_memory: None,
        evict: Evict::Host,
        slo: None,
        is_pipeline: false,
    };
    let mut function = None;
    let mut only_shared = Vec::new();
    let mut names_request = false;
    for (key, value) in &lines {
        let Some(key) = key.strip_prefix(PREFIX) else {
            continue;
        };
        let outcome = match key {
            "isolation" => match value.as_str() {
                "strict" => Ok(Isolation::Strict),
                "tenant" => Ok(Isolation::Tenant),
                "shared" => Ok(Isolation::Shared),
                _ => Err("allowed: strict, tenant, shared".to_owned()),
            }
            .map(|isolation| settings.isolation = isolation),
            "sm-percent" => {
                only_shared.push("sm-percent");
                let allowed = || "allowed: 1 to 100, with at most two decimals".to_owned();
                in_range(value, 2, 100, ALL_HUNDREDTHS)
                    .map(|hundredths| settings.sm_hundredths = hundredths)
                    .ok_or_else(allowed)
            }
            "quota-request" => {
                only_shared.push("quota-request");
                names_request = true;
                let allowed = || "allowed: 0 to 1, with at most six decimals".to_owned();
                in_range(value, 6, 0, ALL_PPM)
                    .map(|ppm| settings.quota_request_ppm = ppm)
                    .ok_or_else(allowed)
            }
            "quota-limit" => {
                only_shared.push("quota-limit");
                let allowed = || "allowed: above 0, up to 1, with at most six decimals".to_owned();
                in_range(value, 6, 1, ALL_PPM)
                    .map(|ppm| settings.quota_limit_ppm = ppm)
                    .ok_or_else(allowed)
            }
            "gpu-memory" => quantity(value).and_then(|bytes| {
                if bytes == 0 {
                    return Err("allowed: a quantity of bytes above 0, as 8Gi".to_owned());
                }
                settings.gpu_memory = Some(bytes);
                Ok(())
            }),
            "evict" => match value.as_str() {
                "host" => Ok(Evict::Host),
                "never" => Ok(Evict::Never),
                _ => Err("allowed: host, never".to_owned()),
            }
            .map(|evict| settings.evict = evict),
            "slo" => match duration(value) {
                Ok(slo) if !slo.is_zero() => {
                    settings.slo = Some(slo);
                    Ok(())
                }
                _ => Err("a duration above zero is needed, as 200ms, 1.5s or 1m30s".to_owned()),
            },
            "variant" => match value.as_str() {
                "monolith" => Ok(false),
                "pipeline" => Ok(true),
                _ => Err("allowed: monolith, pipeline".to_owned()),
            }
            .map(|is_pipeline| settings.is_pipeline = is_pipeline),
            "function" => dns_label(value).map(|()| function = Some(value.clone())),
            known if OTHER_KEYS.contains(&known) => Ok(()),
            _ => {
                let mut known: Vec<_> = OWN_KEYS.into_iter().chain(OTHER_KEYS).collect();
                known.sort_unstable();
                Err(format!("is no key of Weir; allowed: {}", known.join(", ")))
            }
        };
        if let Err(why) = outcome {
            let value: String = value.chars().take(80).collect();
            let key: String = key.chars().take(80).collect();
            problems.push(format!("{PREFIX}{key}={value:?}: {why}"));
        }
    }
    if settings.isolation != Isolation::Shared {
        for key in only_shared {
            problems.push(format!(
                "{PREFIX}{key}: allowed only with {PREFIX}isolation=\"shared\""
            ));
        }
    }
    if names_request && settings.quota_request_ppm > settings.quota_limit_ppm {
        problems.push(format!(
            "{PREFIX}quota-request: must not be above {PREFIX}quota-limit"
        ));
    }
    if problems.is_empty() {
        Ok(Annotations { settings, function })
    } else {
        problems.truncate(PROBLEMS_MAX);
        Err(problems)
    }
}

/// Problems of a file that are told, at most.
const PROBLEMS_MAX: usize = 32;

fn in_range(text: &str, places: u32, min: u32, max: u32) -> Option<u32> {
    let value = u32::try_from(decimal(text, places)?).ok()?;
    (min..=max).contains(&value).then_some(value)
}

/// RFC 1123: what may name a namespace or a revision.
pub(crate) fn dns_label(text: &str) -> Result<(), String> {
    if is_dns(text, 63, false) {
        Ok(())
    } else {
        Err("allowed: 1 to 63 of a-z, 0-9 and -, no - at either end".to_owned())
    }
}

/// RFC 1123: what may name a pod.
pub(crate) fn dns_subdomain(text: &str) -> Result<(), String> {
    if is_dns(text, 253, true) {
        Ok(())
    } else {
        Err("allowed: 1 to 253 of a-z, 0-9, - and ., no - or . at either end".to_owned())
    }
}

fn is_dns(text: &str, length_max: usize, has_dots: bool) -> bool {
    let is_inner = |byte: u8| {
        byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || byte == b'-'
            || has_dots && byte == b'.'
    };
    (1..=length_max).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_contract() {
        let settings = read("other.dev/key=\"x\"\nweir.dev/queue-depth=\"7\"\n")
            .unwrap()
            .settings;
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
    fn every_key_is_read() {
        let read = read(
            "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"12.5\"\nweir.dev/quota-request=\"0.3\"\n\
             weir.dev/quota-limit=\"0.800001\"\nweir.dev/gpu-memory=\"8Gi\"\nweir.dev/evict=\"never\"\n\
             weir.dev/slo=\"200ms\"\nweir.dev/function=\"resnet\"\nweir.dev/variant=\"pipeline\"\n",
        )
        .unwrap();
        assert_eq!(read.function.as_deref(), Some("resnet"));
        assert_eq!(
            read.settings,
            PodSettings {
                isolation: Isolation::Shared,
                sm_hundredths: 1_250,
                quota_request_ppm: 300_000,
                quota_limit_ppm: 800_001,
                gpu_memory: Some(8 << 30),
                evict: Evict::Never,
                slo: Some(Duration::from_millis(200)),
                is_pipeline: true,
            }
        );
    }

    #[test]
    fn what_cannot_be_used_is_said_with_its_key_and_what_is_allowed() {
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
                "weir.dev/gpu-memory=\"8GB\": a quantity of bytes is needed, as 8Gi, 512Mi, 1.5G or 1000000",
            ),
            (
                "weir.dev/gpu-memory=\"0\"",
                "weir.dev/gpu-memory=\"0\": allowed: a quantity of bytes above 0, as 8Gi",
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
                "weir.dev/slo=\"0s\": a duration above zero is needed, as 200ms, 1.5s or 1m30s",
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
                "weir.dev/sm-percnt=\"5\": is no key of Weir; allowed: concurrency, evict, function, gpu-memory, \
                 isolation, keep-alive, late, limit-head-bytes, limit-head-lines, limit-head-time, limit-streams, \
                 mid-stream-timeout, queue-depth, quota-limit, quota-request, skip-containers, slo, \
                 slo-percentile, sm-percent, variant, version",
            ),
            ("nonsense", "line 2: no '=' between key and value"),
            (
                "weir.dev/quota-request=\"0.5\"\nweir.dev/quota-limit=\"0.4\"",
                "weir.dev/quota-request: must not be above weir.dev/quota-limit",
            ),
        ] {
            let problems = read(&format!("{shared}{line}\n")).unwrap_err();
            assert_eq!(problems, [expected], "{line}");
        }
        let problems = read("weir.dev/sm-percent=\"50\"\n").unwrap_err();
        assert_eq!(
            problems,
            ["weir.dev/sm-percent: allowed only with weir.dev/isolation=\"shared\""]
        );
    }

    #[test]
    fn what_is_told_is_bounded() {
        let many: String = (0..1_000)
            .map(|number| {
                format!(
                    "weir.dev/{}{number}=\"{}\"\n",
                    "k".repeat(200),
                    "v".repeat(200)
                )
            })
            .collect();
        let problems = read(&many).unwrap_err();
        assert_eq!(problems.len(), PROBLEMS_MAX);
        assert!(problems.iter().all(|problem| problem.len() < 1_000));
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        for name in ["a", "resnet-00001", &"x".repeat(63)] {
            assert_eq!(dns_label(name), Ok(()));
        }
        for name in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a_b",
            "a b",
            "ü",
            "a/b",
            &"x".repeat(64),
        ] {
            assert!(dns_label(name).is_err(), "{name}");
        }
        assert_eq!(dns_subdomain("resnet-00001.deployment-x"), Ok(()));
        for name in ["..", ".a", "a.", "a\n", "a%", "\u{202e}a"] {
            assert!(dns_subdomain(name).is_err(), "{name:?}");
        }
    }
}
