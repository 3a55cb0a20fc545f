//! Settings of a revision, as its annotations state them.

use std::time::Duration;

use units::{SHARE_WHOLE, SM_WHOLE};

use crate::keys::{self, KEYS, Key, Part};
use crate::limits::Limits;
use crate::values::{decimal, dns_label, integer, positive_duration, quantity};

/// Largest allowed value of `queue-depth`, in requests; the smallest is 1.
pub const QUEUE_DEPTH_MAX: usize = 10_000;
/// Requests that may wait per request that may run, unless `queue-depth` is set, as under Knative.
const DEPTH_PER_CONCURRENCY: usize = 10;
/// Default of `slo-percentile`, in percent: the percentile of M1.12 and M2.13.
pub const SLO_PERCENTILE_DEFAULT: f64 = 98.0;
/// Default of `keep-alive`: idle time after which a function is cold.
pub const KEEP_ALIVE_DEFAULT: Duration = Duration::from_secs(600);

/// Handling of a request whose latest start time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Late {
    /// The request is served after all timely ones.
    #[default]
    Serve,
    /// The request is answered with 503 as soon as it becomes late.
    Shed,
}

/// Which stated request budgets are used for ordering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TrustBudget {
    /// Budgets stated by any client.
    #[default]
    All,
    /// Budgets stated by any client, raised to at least half of the objective.
    Floor,
    /// Only budgets stated by Weir's own hops.
    None,
}

/// How a response that has begun is ended when a timeout expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MidStreamTimeout {
    /// The text of the timeout is appended and the message is terminated normally, as under Knative.
    #[default]
    Text,
    /// The message is truncated, so that the client detects the error.
    Abort,
}

/// How a variant runs its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Variant {
    /// The whole function on one slot.
    #[default]
    Monolith,
    /// Stages on several slots.
    Pipeline,
}

/// Isolation between the pods on one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// The slot holds the data of one instance at a time.
    Strict,
    /// The slot holds the data of one namespace at a time.
    #[default]
    Tenant,
    /// Several pods compute at the same time; requires an MPS slot.
    Shared,
}

/// Whether a pod's model may be evicted from its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Evict {
    /// The model may be evicted to host memory.
    #[default]
    Host,
    /// The model stays on the device.
    Never,
}

/// Defines the annotation values of an enum: `name` and `parse`.
macro_rules! words {
    ($kind:ident: $($variant:ident = $word:literal),+) => {
        impl $kind {
            /// Returns the value of the annotation that selects this variant.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("allowed: {}", [$($word),+].join(", "))),
                }
            }
        }
    };
}

words!(Late: Serve = "serve", Shed = "shed");
words!(TrustBudget: All = "all", Floor = "floor", None = "none");
words!(MidStreamTimeout: Text = "text", Abort = "abort");
words!(Variant: Monolith = "monolith", Pipeline = "pipeline");
words!(Isolation: Strict = "strict", Tenant = "tenant", Shared = "shared");
words!(Evict: Host = "host", Never = "never");

/// The reason why an annotation is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The key is unknown.
    #[error("is not a known key; allowed: {}", keys::names())]
    Key,
    /// The value is invalid; the message lists the allowed values.
    #[error("{0}")]
    Value(String),
}

/// Settings of a revision. The default values are those of contracts §1.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `weir.dev/slo`: the latency objective, above zero; `None` if requests are served first in, first out.
    pub slo: Option<Duration>,
    /// `weir.dev/concurrency`: largest number of concurrent requests at the user container where Knative sets no limit;
    /// at least 1.
    pub concurrency: Option<u32>,
    /// `weir.dev/slo-percentile`: share of requests to be answered within the objective, 50 to 99.9 percent.
    pub slo_percentile: f64,
    /// `weir.dev/late`: handling of requests whose latest start time has passed.
    pub late: Late,
    /// `weir.dev/queue-depth`: requests that may wait, 1 to [`QUEUE_DEPTH_MAX`]; `None`: ten times the concurrency.
    pub queue_depth: Option<usize>,
    /// `weir.dev/function`: name of the function, a DNS label; `None` if the revision is a function of its own.
    pub function: Option<String>,
    /// `weir.dev/version`: version of the function, a DNS label or empty.
    pub version: String,
    /// `weir.dev/variant`: how the revision runs its function.
    pub variant: Variant,
    /// `weir.dev/isolation`: isolation between the pods on one slot.
    pub isolation: Isolation,
    /// `weir.dev/sm-percent`, in hundredths of a percent: 100 to [`SM_WHOLE`].
    pub sm_hundredths: u32,
    /// `weir.dev/quota-request`, in millionths of wall time: 0 to [`SHARE_WHOLE`].
    pub quota_request_ppm: u32,
    /// `weir.dev/quota-limit`, in millionths of wall time: 1 to [`SHARE_WHOLE`].
    pub quota_limit_ppm: u32,
    /// `weir.dev/gpu-memory`: device memory of the pod in bytes, above zero; `None`: all of the slot's.
    pub gpu_memory: Option<u64>,
    /// `weir.dev/trust-budget`: which stated request budgets are used for ordering.
    pub trust_budget: TrustBudget,
    /// `weir.dev/evict`: whether the model may be evicted from its slot.
    pub evict: Evict,
    /// `weir.dev/keep-alive`: idle time after which the function is cold, above zero.
    pub keep_alive: Duration,
    /// `weir.dev/mid-stream-timeout`: how a response that has begun is ended when a timeout expires.
    pub mid_stream_timeout: MidStreamTimeout,
    /// `weir.dev/limit-…`: resource limits of one client.
    pub limits: Limits,
    /// `weir.dev/skip-containers`: names of containers that get no preload library, separated by commas.
    pub skip_containers: Vec<String>,
    /// Bit set over the indices of [`KEYS`]: the keys that have been set.
    set: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slo: None,
            concurrency: None,
            slo_percentile: SLO_PERCENTILE_DEFAULT,
            late: Late::default(),
            queue_depth: None,
            function: None,
            version: String::new(),
            variant: Variant::default(),
            isolation: Isolation::default(),
            sm_hundredths: SM_WHOLE,
            quota_request_ppm: 0,
            quota_limit_ppm: SHARE_WHOLE,
            gpu_memory: None,
            trust_budget: TrustBudget::default(),
            evict: Evict::default(),
            keep_alive: KEEP_ALIVE_DEFAULT,
            mid_stream_timeout: MidStreamTimeout::default(),
            limits: Limits::default(),
            skip_containers: Vec::new(),
            set: 0,
        }
    }
}

impl Settings {
    /// Applies the value of a key, which is given without its prefix.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the key is unknown or the value is invalid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let at = KEYS.iter().position(|key| key.name == name);
        let at = at.ok_or(SettingError::Key)?;
        self.assign(KEYS[at], value).map_err(SettingError::Value)?;
        self.set |= 1 << at;
        Ok(())
    }

    fn assign(&mut self, key: Key, value: &str) -> Result<(), String> {
        match key.name {
            "concurrency" => self.concurrency = Some(integer(value, 1, u32::MAX)?),
            "evict" => self.evict = Evict::parse(value)?,
            "function" => {
                dns_label(value)?;
                self.function = Some(value.to_owned());
            }
            "gpu-memory" => match quantity(value)? {
                0 => return Err("allowed: a quantity of bytes above 0, such as 8Gi".to_owned()),
                bytes => self.gpu_memory = Some(bytes),
            },
            "isolation" => self.isolation = Isolation::parse(value)?,
            "keep-alive" => self.keep_alive = positive_duration(value)?,
            "late" => self.late = Late::parse(value)?,
            "mid-stream-timeout" => self.mid_stream_timeout = MidStreamTimeout::parse(value)?,
            "queue-depth" => self.queue_depth = Some(integer(value, 1, QUEUE_DEPTH_MAX)?),
            "quota-limit" => {
                let allowed = "allowed: above 0, up to 1, with at most six decimals";
                self.quota_limit_ppm = in_range(value, 6, 1, SHARE_WHOLE).ok_or(allowed)?;
            }
            "quota-request" => {
                let allowed = "allowed: 0 to 1, with at most six decimals";
                self.quota_request_ppm = in_range(value, 6, 0, SHARE_WHOLE).ok_or(allowed)?;
            }
            "skip-containers" => self.skip_containers = container_names(value)?,
            "slo" => self.slo = Some(positive_duration(value)?),
            "slo-percentile" => match value.parse() {
                Ok(percentile) if (50.0..=99.9).contains(&percentile) => {
                    self.slo_percentile = percentile;
                }
                _ => return Err("allowed: a number from 50 to 99.9".to_owned()),
            },
            "sm-percent" => {
                let allowed = "allowed: 1 to 100, with at most two decimals";
                self.sm_hundredths = in_range(value, 2, 100, SM_WHOLE).ok_or(allowed)?;
            }
            "trust-budget" => self.trust_budget = TrustBudget::parse(value)?,
            "variant" => self.variant = Variant::parse(value)?,
            "version" => {
                if !value.is_empty() {
                    dns_label(value)?;
                }
                value.clone_into(&mut self.version);
            }
            limit => self.limits.set(limit, value)?,
        }
        Ok(())
    }

    /// Returns the largest number of concurrent requests at the user container, or `None` without a limit.
    /// `container_concurrency` is Knative's limit, which takes precedence.
    #[must_use]
    pub fn concurrency(&self, container_concurrency: Option<u32>) -> Option<u32> {
        container_concurrency.or(self.concurrency)
    }

    /// Returns the number of requests that may wait, given that `concurrency` of them may run at the same time.
    #[must_use]
    pub fn queue_depth(&self, concurrency: usize) -> usize {
        self.queue_depth
            .unwrap_or_else(|| DEPTH_PER_CONCURRENCY.saturating_mul(concurrency))
    }

    /// Returns the name by which metrics label a revision: `weir.dev/function`, else the first non-empty one of `names`,
    /// else the revision's own. If `names` are those of Knative's Service and Configuration, in this order, a roll-out
    /// does not begin new series.
    #[must_use]
    pub fn label<'a>(&'a self, names: [&'a str; 2], revision: &'a str) -> &'a str {
        let explicit = self.function.as_deref().into_iter();
        let mut named = explicit.chain(names);
        named.find(|name| !name.is_empty()).unwrap_or(revision)
    }

    /// Returns whether a key, given without its prefix, has been set to a valid value.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        let at = KEYS.iter().position(|key| key.name == name);
        at.is_some_and(|at| self.set & (1 << at) != 0)
    }

    /// Returns whether the revision has opted in, which it does by setting any key that is not a limit.
    #[must_use]
    pub fn opted_in(&self) -> bool {
        self.any_of(|part| part != Part::Limit)
    }

    /// Returns whether any GPU key is set.
    #[must_use]
    pub fn uses_gpu(&self) -> bool {
        self.any_of(|part| part == Part::Gpu)
    }

    fn any_of(&self, wanted: impl Fn(Part) -> bool) -> bool {
        let mut keys = KEYS.iter().enumerate();
        keys.any(|(at, key)| self.set & (1 << at) != 0 && wanted(key.part))
    }
}

fn in_range(text: &str, places: u32, min: u32, max: u32) -> Option<u32> {
    let value = u32::try_from(decimal(text, places)?).ok()?;
    (min..=max).contains(&value).then_some(value)
}

fn container_names(text: &str) -> Result<Vec<String>, String> {
    let names = text.split(',').map(str::trim);
    let checked = names.map(|name| dns_label(name).map(|()| name.to_owned()));
    checked
        .collect::<Result<_, _>>()
        .map_err(|_| "allowed: names of containers, separated by commas".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_accepts_only_its_own_values() {
        for (key, good, bad) in [
            (
                "concurrency",
                &["1", "4294967295"][..],
                &["0", "-1", "1.5", ""][..],
            ),
            ("evict", &["host", "never"], &["no", ""]),
            ("function", &["a", "resnet-50"], &["A", "", "-a", "a.b"]),
            ("gpu-memory", &["8Gi", "1"], &["0", "8GB", "-1"]),
            ("isolation", &["strict", "tenant", "shared"], &["none"]),
            ("keep-alive", &["10m", "1s"], &["0", "0s", "10"]),
            ("late", &["serve", "shed"], &["drop"]),
            ("limit-buffered-bytes", &["1048576"], &["1"]),
            ("limit-head-bytes", &["8192"], &["1"]),
            ("limit-head-lines", &["32"], &["1"]),
            ("limit-head-time", &["1s"], &["0.5s"]),
            ("limit-streams", &["1"], &["0"]),
            ("mid-stream-timeout", &["text", "abort"], &["cut"]),
            ("queue-depth", &["1", "10000"], &["0", "10001"]),
            (
                "quota-limit",
                &["1", "0.000001"],
                &["0", "1.1", "0.0000001"],
            ),
            ("quota-request", &["0", "1"], &["-0.1", "1.000001"]),
            ("skip-containers", &["a", "a, b-c"], &["", "a,,b", "A"]),
            ("slo", &["200ms", "1m30s"], &["0s", "200", "", "-1s"]),
            ("slo-percentile", &["50", "99.9"], &["49", "100", "NaN", ""]),
            (
                "sm-percent",
                &["1", "12.5", "100"],
                &["0", "101", "0.5", "1.001"],
            ),
            ("trust-budget", &["all", "floor", "none"], &["some"]),
            ("variant", &["monolith", "pipeline"], &["x"]),
            ("version", &["", "v2"], &["V2", "-"]),
        ] {
            for good in good {
                let mut settings = Settings::default();
                assert_eq!(settings.set(key, good), Ok(()), "{key}={good}");
                assert!(settings.is_set(key));
            }
            for bad in bad {
                let mut settings = Settings::default();
                let why = settings.set(key, bad).unwrap_err();
                assert!(matches!(why, SettingError::Value(_)), "{key}={bad}: {why}");
                assert_eq!(settings, Settings::default(), "{key}={bad}");
            }
        }
    }

    #[test]
    fn each_key_changes_the_settings() {
        let values = [
            "7", "never", "f", "1Gi", "shared", "1s", "shed", "1048576", "8192", "32", "1s", "1",
            "abort", "7", "0.5", "0.5", "a", "1s", "99", "50", "floor", "pipeline", "v",
        ];
        for (key, value) in KEYS.iter().zip(values) {
            let mut settings = Settings::default();
            settings.set(key.name, value).unwrap();
            let set = settings.set;
            settings.set = 0;
            assert_ne!(settings, Settings::default(), "{}", key.name);
            assert_eq!(set.count_ones(), 1);
        }
    }

    #[test]
    fn limits_do_not_opt_in_and_only_gpu_keys_request_a_gpu() {
        for key in KEYS {
            let settings = Settings {
                set: 1 << KEYS.iter().position(|other| *other == key).unwrap(),
                ..Settings::default()
            };
            assert_eq!(settings.opted_in(), key.part != Part::Limit, "{}", key.name);
            assert_eq!(settings.uses_gpu(), key.part == Part::Gpu, "{}", key.name);
        }
        assert!(!Settings::default().opted_in());
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_list_of_known_ones() {
        let why = Settings::default().set("sm-percnt", "5").unwrap_err();
        assert!(
            why.to_string()
                .starts_with("is not a known key; allowed: concurrency, evict, function, ")
        );
        assert!(why.to_string().ends_with(", variant, version"));
    }
}
