//! Weir's own options for a revision: `weir.dev/some-key` from podinfo, `WEIR_SOME_KEY` from the
//! environment, which wins.
//!
//! A value that cannot be used never stops the process: it is reported once and the default holds.

use std::fs;
use std::io::Read as _;
use std::time::Duration;

use policy::gate::Late;
use policy::slo::Trust;

use crate::env::Environment;
use crate::limits::{self, Limits};
use crate::podinfo;

/// Where the kubelet's downward API puts the annotations when Knative mounts podinfo.
pub(crate) const PODINFO_DEFAULT: &str = "/etc/podinfo/annotations";
/// The domain of Weir's annotations.
pub(crate) const PREFIX: &str = "weir.dev/";
/// `queue-depth` may be 1 to this.
pub(crate) const QUEUE_DEPTH_MAX: usize = 10_000;

/// The percentile of papers' rows M1.12 and M2.13.
const SLO_PERCENTILE_DEFAULT: f64 = 98.0;

/// Every annotation of Weir. Those that this program does not act on belong to its other parts; setting one
/// opts the revision in all the same.
pub(crate) const KEYS: [&str; 17] = [
    "slo",
    "concurrency",
    "slo-percentile",
    "late",
    "queue-depth",
    "trust-budget",
    "mid-stream-timeout",
    "function",
    "version",
    "variant",
    "isolation",
    "sm-percent",
    "quota-request",
    "quota-limit",
    "gpu-memory",
    "evict",
    "keep-alive",
];

/// How a response that has begun ends when a timeout strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum MidStreamTimeout {
    /// As Knative does it: the text `request timeout` is appended and the message ends well.
    #[default]
    Text,
    /// The message is cut, so that the client can tell.
    Abort,
}

/// The options of this revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Options {
    opted_in: bool,
    /// The latency objective; `None`: first in, first out.
    pub slo: Option<Duration>,
    /// Requests at the user container at once where Knative sets no limit.
    pub concurrency: Option<u32>,
    /// What becomes of late requests.
    pub late: LateOption,
    /// The part of requests to be answered within the objective, in per cent.
    pub slo_percentile: f64,
    /// The function of which this revision is a variant.
    pub function: Option<String>,
    /// Which kind of variant it is.
    pub variant: Option<String>,
    /// How many requests may wait.
    pub queue_depth: Option<usize>,
    /// Whose word on a request's budget counts.
    pub trust_budget: Trust,
    /// How a response that has begun ends at a timeout.
    pub mid_stream_timeout: MidStreamTimeout,
    /// How much of the process one client may take.
    pub limits: Limits,
    /// What was found wrong, to be logged once.
    pub problems: Vec<String>,
}

/// [`Late`] with the default of design 4.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LateOption(pub Late);

impl Default for LateOption {
    fn default() -> Self {
        Self(Late::Serve)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            opted_in: false,
            slo: None,
            concurrency: None,
            late: LateOption::default(),
            slo_percentile: SLO_PERCENTILE_DEFAULT,
            function: None,
            variant: None,
            queue_depth: None,
            trust_budget: Trust::default(),
            mid_stream_timeout: MidStreamTimeout::default(),
            limits: Limits::default(),
            problems: Vec::new(),
        }
    }
}

impl Options {
    /// At least one key is set that is no limit: deadline features and `Weir-*` headers are on.
    #[must_use]
    pub(crate) const fn opted_in(&self) -> bool {
        self.opted_in
    }
}

/// Reads all options. `container_concurrency` is Knative's limit, if it has one.
pub(crate) fn read(environment: &impl Environment, container_concurrency: Option<u32>) -> Options {
    let mut options = Options::default();
    match environment.get("WEIR_DISABLED").as_deref() {
        Some("true" | "1" | "TRUE" | "True" | "t" | "T") => return options,
        None | Some("" | "false" | "0" | "FALSE" | "False" | "f" | "F") => {}
        Some(other) => {
            options
                .problems
                .push(format!("WEIR_DISABLED={other:?}: allowed: true, false"));
        }
    }
    let path = environment
        .get("WEIR_PODINFO")
        .unwrap_or_else(|| PODINFO_DEFAULT.to_owned());
    if let Some(text) = read_podinfo(&path, &mut options.problems) {
        let (annotations, bad) = podinfo::parse(&text);
        options
            .problems
            .extend(bad.iter().map(|bad| format!("{path}: {bad}")));
        for (key, value) in annotations {
            if let Some(key) = key.strip_prefix(PREFIX) {
                options.set(key, &value, || format!("{path}: {PREFIX}{key}={value:?}"));
            }
        }
    }
    for key in KEYS.into_iter().chain(limits::KEYS) {
        let name = format!("WEIR_{}", key.replace('-', "_").to_uppercase());
        if let Some(value) = environment.get(&name) {
            options.set(key, &value, || format!("{name}={value:?}"));
        }
    }
    if options.slo.is_some() && container_concurrency.or(options.concurrency).is_none() {
        options.problems.push(format!(
            "{PREFIX}slo needs containerConcurrency of at least 1, or {PREFIX}concurrency; ignored"
        ));
        options.slo = None;
    }
    options
}

impl Options {
    /// Sets an option; `place` says where it stands, if it cannot be used.
    pub(crate) fn set(&mut self, key: &str, value: &str, place: impl Fn() -> String) {
        let outcome = match key {
            "slo" => duration(value).map(|slo| self.slo = Some(slo)),
            "concurrency" => integer(value, 1, u32::MAX).map(|n| self.concurrency = Some(n)),
            "late" => match value {
                "serve" => {
                    self.late = LateOption(Late::Serve);
                    Ok(())
                }
                "shed" => {
                    self.late = LateOption(Late::Shed);
                    Ok(())
                }
                _ => Err("allowed: serve, shed".to_owned()),
            },
            "queue-depth" => integer(value, 1, QUEUE_DEPTH_MAX).map(|n| self.queue_depth = Some(n)),
            "trust-budget" => match value {
                "all" => {
                    self.trust_budget = Trust::All;
                    Ok(())
                }
                "floor" => {
                    self.trust_budget = Trust::Floor;
                    Ok(())
                }
                "none" => {
                    self.trust_budget = Trust::None;
                    Ok(())
                }
                _ => Err("allowed: all, floor, none".to_owned()),
            },
            "mid-stream-timeout" => match value {
                "text" => {
                    self.mid_stream_timeout = MidStreamTimeout::Text;
                    Ok(())
                }
                "abort" => {
                    self.mid_stream_timeout = MidStreamTimeout::Abort;
                    Ok(())
                }
                _ => Err("allowed: text, abort".to_owned()),
            },
            "slo-percentile" => match value.parse() {
                Ok(percentile) if (50.0..=99.9).contains(&percentile) => {
                    self.slo_percentile = percentile;
                    Ok(())
                }
                _ => Err("allowed: a number from 50 to 99.9".to_owned()),
            },
            "function" => dns_label(value).map(|name| self.function = Some(name)),
            "version" => dns_label(value).map(drop),
            "variant" => match value {
                "monolith" | "pipeline" => {
                    self.variant = Some(value.to_owned());
                    Ok(())
                }
                _ => Err("allowed: monolith, pipeline".to_owned()),
            },
            known if KEYS.contains(&known) => Ok(()),
            limit if limits::KEYS.contains(&limit) => self.limits.set(limit, value),
            _ => {
                self.problems.push(format!(
                    "{}: not a key of Weir; known: {}, {}",
                    place(),
                    KEYS.join(", "),
                    limits::KEYS.join(", ")
                ));
                return;
            }
        };
        match outcome {
            // A limit switches nothing on.
            Ok(()) => self.opted_in |= KEYS.contains(&key),
            Err(why) => self
                .problems
                .push(format!("{}: {why}; the default holds", place())),
        }
    }
}

fn read_podinfo(path: &str, problems: &mut Vec<String>) -> Option<String> {
    let mut text = String::new();
    let read = fs::File::open(path)
        .and_then(|file| file.take(podinfo::SIZE_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(size) if size as u64 > podinfo::SIZE_MAX => {
            problems.push(format!(
                "{path}: larger than {} bytes; ignored",
                podinfo::SIZE_MAX
            ));
            None
        }
        Ok(_) => Some(text),
        // Knative does not mount podinfo unless asked to.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            problems.push(format!("{path}: {error}; ignored"));
            None
        }
    }
}

/// RFC 1123: what may name an object in Kubernetes.
fn dns_label(value: &str) -> Result<String, String> {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let legal = (1..=63).contains(&value.len())
        && value.bytes().all(is_inner)
        && !value.starts_with('-')
        && !value.ends_with('-');
    if legal {
        Ok(value.to_owned())
    } else {
        Err("allowed: 1 to 63 of a-z, 0-9 and -, no - at either end".to_owned())
    }
}

pub(crate) fn integer<T>(value: &str, min: T, max: T) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    value
        .parse()
        .ok()
        .filter(|n| *n >= min && *n <= max)
        .ok_or_else(|| format!("allowed: a whole number from {min} to {max}"))
}

/// A Go duration above zero: decimal numbers with units `ns us µs ms s m h`, as `1m30s` or `1.5s`.
pub(crate) fn duration(value: &str) -> Result<Duration, String> {
    let bad = || "a duration above zero is needed, as 200ms, 1.5s or 1m30s".to_owned();
    let mut rest = value;
    let mut nanos = 0_u64;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_nanos: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(bad()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| bad())?
        };
        let mut part = whole.checked_mul(unit_nanos).ok_or_else(bad)?;
        let mut scale = unit_nanos;
        for digit in fraction.chars() {
            scale /= 10;
            part += u64::from(digit.to_digit(10).ok_or_else(bad)?) * scale;
        }
        nanos = nanos.checked_add(part).ok_or_else(bad)?;
        rest = tail;
    }
    if nanos == 0 {
        Err(bad())
    } else {
        Ok(Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Write as _;

    fn read_with(podinfo: &str, variables: &[(&'static str, &str)]) -> Options {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(podinfo.as_bytes()).unwrap();
        let mut environment: BTreeMap<&str, String> = variables
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        environment.insert("WEIR_PODINFO", file.path().to_str().unwrap().to_owned());
        read(&environment, Some(1))
    }

    #[test]
    fn nothing_set_is_not_opted_in() {
        let options = read_with("other.dev/key=\"1\"\n", &[]);
        assert!(!options.opted_in() && options.problems.is_empty());
        assert_eq!(
            read(
                &BTreeMap::from([("WEIR_PODINFO", "/nonexistent".to_owned())]),
                None
            ),
            Options::default()
        );
    }

    #[test]
    fn annotations_are_read_and_the_environment_wins() {
        let options = read_with(
            "weir.dev/slo=\"200ms\"\nweir.dev/late=\"shed\"\nweir.dev/queue-depth=\"7\"\n",
            &[("WEIR_SLO", "1m30s")],
        );
        assert!(options.opted_in());
        assert_eq!(options.slo, Some(Duration::from_secs(90)));
        assert_eq!(options.late, LateOption(Late::Shed));
        assert_eq!(options.queue_depth, Some(7));
    }

    #[test]
    fn whose_budget_counts_is_an_option() {
        let trust = |variables: &[(&'static str, &str)]| {
            let options = read_with("weir.dev/trust-budget=\"none\"\n", variables);
            assert!(options.opted_in());
            (options.trust_budget, options.problems)
        };
        assert_eq!(trust(&[]), (Trust::None, Vec::new()));
        for (value, expected) in [
            ("all", Trust::All),
            ("floor", Trust::Floor),
            ("none", Trust::None),
        ] {
            let variables = [("WEIR_TRUST_BUDGET", value)];
            assert_eq!(trust(&variables), (expected, Vec::new()));
        }
        let (kept, problems) = trust(&[("WEIR_TRUST_BUDGET", "some")]);
        assert_eq!(kept, Trust::None);
        assert!(problems[0].contains("allowed: all, floor, none"));
        assert_eq!(Options::default().trust_budget, Trust::All);
    }

    #[test]
    fn limits_are_set_and_opt_nothing_in() {
        let options = read_with(
            "weir.dev/limit-streams=\"7\"\nweir.dev/limit-head-time=\"2m\"\n",
            &[("WEIR_LIMIT_HEAD_LINES", "100")],
        );
        assert!(!options.opted_in());
        assert_eq!(
            (options.limits.streams, options.limits.head_lines),
            (7, 100)
        );
        assert_eq!(options.limits.head_time, Limits::default().head_time);
        assert_eq!(options.problems.len(), 1, "{:?}", options.problems);
        assert!(options.problems[0].contains("allowed: a duration from 1s to 60s"));
    }

    #[test]
    fn one_switch_turns_all_of_it_off() {
        let options = read_with(
            "weir.dev/slo=\"200ms\"\nweir.dev/limit-streams=\"7\"\n",
            &[("WEIR_DISABLED", "true")],
        );
        assert_eq!(options, Options::default());
    }

    #[test]
    fn what_cannot_be_used_is_reported_and_the_default_holds() {
        let options = read_with(
            "weir.dev/late=\"never\"\nweir.dev/queue-depth=\"10001\"\nweir.dev/slos=\"1s\"\nnonsense\n",
            &[],
        );
        assert_eq!(options.late, LateOption::default());
        assert_eq!(options.queue_depth, None);
        assert!(!options.opted_in());
        assert_eq!(options.problems.len(), 4, "{:?}", options.problems);
        assert!(
            options
                .problems
                .iter()
                .any(|p| p.contains("allowed: a whole number from 1 to 10000"))
        );
    }

    #[test]
    fn an_objective_without_a_concurrency_limit_is_refused_with_that_sentence() {
        let environment = BTreeMap::from([("WEIR_SLO", "1s".to_owned())]);
        let options = read(&environment, None);
        assert_eq!(options.slo, None);
        assert!(options.problems[0].contains("slo needs containerConcurrency of at least 1"));
        let environment = BTreeMap::from([
            ("WEIR_SLO", "1s".to_owned()),
            ("WEIR_CONCURRENCY", "2".to_owned()),
        ]);
        assert_eq!(read(&environment, None).slo, Some(Duration::from_secs(1)));
    }

    #[test]
    fn durations_are_gos() {
        let millis = |value: &str| duration(value).map(|d| d.as_millis());
        assert_eq!(millis("200ms"), Ok(200));
        assert_eq!(millis("1.5s"), Ok(1_500));
        assert_eq!(millis("1h2m3s4ms"), Ok(3_723_004));
        assert_eq!(duration("7µs"), Ok(Duration::from_micros(7)));
        for bad in [
            "",
            "0",
            "0s",
            "5",
            "-1s",
            "1d",
            "s",
            "1..5s",
            "9999999999999h",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
