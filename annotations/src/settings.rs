//! What a revision's annotations ask for.

use std::time::Duration;

use crate::keys::{self, KEYS, Key, Part};
use crate::limits::Limits;
use crate::values::{decimal, dns_label, integer, positive_duration, quantity};

/// `queue-depth` may be 1 to this.
pub const QUEUE_DEPTH_MAX: usize = 10_000;
/// Requests that may wait for each that may run, unless `queue-depth` is set: Knative's.
const DEPTH_PER_CONCURRENCY: usize = 10;
/// The percentile of papers' rows M1.12 and M2.13.
pub const SLO_PERCENTILE_DEFAULT: f64 = 98.0;
/// All of a device's SMs, in hundredths of a per cent.
pub const ALL_HUNDREDTHS: u32 = 10_000;
/// All of a device's time, in millionths.
pub const ALL_PPM: u32 = 1_000_000;
/// Idle time until cold, unless `keep-alive` is set.
pub const KEEP_ALIVE_DEFAULT: Duration = Duration::from_secs(600);

/// What becomes of a request whose latest start is past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Late {
    /// It is served after all others.
    #[default]
    Serve,
    /// It is answered 503 at that moment.
    Shed,
}

/// Whose statements on a request's budget order requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TrustBudget {
    /// Any client's.
    #[default]
    All,
    /// Any client's, but not below half of the objective.
    Floor,
    /// Only those of Weir's own hops.
    None,
}

/// How a response that has begun ends when a timeout strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MidStreamTimeout {
    /// As Knative does it: the text of the timeout is appended and the message ends well.
    #[default]
    Text,
    /// The message is cut, so that the client notices.
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

/// What holds between pods on a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// One instance's data on the slot at a time.
    Strict,
    /// One namespace's data at a time.
    #[default]
    Tenant,
    /// Several compute at once; needs an mps slot.
    Shared,
}

/// Whether a pod's model may leave its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Evict {
    /// To host memory.
    #[default]
    Host,
    /// It stays.
    Never,
}

/// A closed set of words.
macro_rules! words {
    ($kind:ident: $($variant:ident = $word:literal),+) => {
        impl $kind {
            /// Returns the word that stands for it in an annotation.
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

/// Why an annotation cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no such key.
    #[error("is no key of Weir; allowed: {}", keys::names())]
    Key,
    /// The value is not allowed.
    #[error("{0}")]
    Value(String),
}

/// What a revision's annotations ask for. A new one has the defaults of design 4.1.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `weir.dev/slo`: the latency objective, above zero; `None`: first in, first out.
    pub slo: Option<Duration>,
    /// `weir.dev/concurrency`: requests at the user container at once where Knative sets no limit, at least 1.
    pub concurrency: Option<u32>,
    /// `weir.dev/slo-percentile`: the part of requests to be answered within the objective, 50 to 99.9 per cent.
    pub slo_percentile: f64,
    /// `weir.dev/late`.
    pub late: Late,
    /// `weir.dev/queue-depth`: requests that may wait, 1 to [`QUEUE_DEPTH_MAX`]; `None`: ten times the concurrency.
    pub queue_depth: Option<usize>,
    /// `weir.dev/function`: a label of DNS; `None`: the revision is a function alone.
    pub function: Option<String>,
    /// `weir.dev/version`: a label of DNS, or empty.
    pub version: String,
    /// `weir.dev/variant`.
    pub variant: Variant,
    /// `weir.dev/isolation`.
    pub isolation: Isolation,
    /// `weir.dev/sm-percent`, in hundredths of a per cent: 100 to [`ALL_HUNDREDTHS`].
    pub sm_hundredths: u32,
    /// `weir.dev/quota-request`, in millionths of wall time: 0 to [`ALL_PPM`].
    pub quota_request_ppm: u32,
    /// `weir.dev/quota-limit`, in millionths of wall time: 1 to [`ALL_PPM`].
    pub quota_limit_ppm: u32,
    /// `weir.dev/gpu-memory`, in bytes, above zero; `None`: as much as the slot has.
    pub gpu_memory: Option<u64>,
    /// `weir.dev/trust-budget`.
    pub trust_budget: TrustBudget,
    /// `weir.dev/evict`.
    pub evict: Evict,
    /// `weir.dev/keep-alive`: idle time until cold, above zero.
    pub keep_alive: Duration,
    /// `weir.dev/mid-stream-timeout`.
    pub mid_stream_timeout: MidStreamTimeout,
    /// `weir.dev/limit-…`.
    pub limits: Limits,
    /// `weir.dev/skip-containers`: names of containers that get no preload library, separated by commas.
    pub skip_containers: Vec<String>,
    /// A bit for each of [`KEYS`] that was set.
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
            sm_hundredths: ALL_HUNDREDTHS,
            quota_request_ppm: 0,
            quota_limit_ppm: ALL_PPM,
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
    /// Sets what a key, without its prefix, asks for.
    ///
    /// # Errors
    /// The key is not known, or the value is not allowed: nothing has changed then.
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
                0 => return Err("allowed: a quantity of bytes above 0, as 8Gi".to_owned()),
                bytes => self.gpu_memory = Some(bytes),
            },
            "isolation" => self.isolation = Isolation::parse(value)?,
            "keep-alive" => self.keep_alive = positive_duration(value)?,
            "late" => self.late = Late::parse(value)?,
            "mid-stream-timeout" => self.mid_stream_timeout = MidStreamTimeout::parse(value)?,
            "queue-depth" => self.queue_depth = Some(integer(value, 1, QUEUE_DEPTH_MAX)?),
            "quota-limit" => {
                let allowed = "allowed: above 0, up to 1, with at most six decimals";
                self.quota_limit_ppm = in_range(value, 6, 1, ALL_PPM).ok_or(allowed)?;
            }
            "quota-request" => {
                let allowed = "allowed: 0 to 1, with at most six decimals";
                self.quota_request_ppm = in_range(value, 6, 0, ALL_PPM).ok_or(allowed)?;
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
                self.sm_hundredths = in_range(value, 2, 100, ALL_HUNDREDTHS).ok_or(allowed)?;
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

    /// Returns how many requests may be at the user container at once; `None`: no limit. `container_concurrency` is
    /// Knative's limit, which counts first.
    #[must_use]
    pub fn concurrency(&self, container_concurrency: Option<u32>) -> Option<u32> {
        container_concurrency.or(self.concurrency)
    }

    /// Returns how many requests may wait where `concurrency` of them may be at the user container at once.
    #[must_use]
    pub fn queue_depth(&self, concurrency: usize) -> usize {
        self.queue_depth
            .unwrap_or_else(|| DEPTH_PER_CONCURRENCY.saturating_mul(concurrency))
    }

    /// Returns the name under which metrics count a revision: `weir.dev/function`, else the first of `names` that is not
    /// empty, else the revision's own. With the names of Knative's Service and Configuration, in this order, a roll-out
    /// begins no new series.
    #[must_use]
    pub fn label<'a>(&'a self, names: [&'a str; 2], revision: &'a str) -> &'a str {
        let explicit = self.function.as_deref().into_iter();
        let mut named = explicit.chain(names);
        named.find(|name| !name.is_empty()).unwrap_or(revision)
    }

    /// Whether a key, without its prefix, was set to a value that is allowed.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        let at = KEYS.iter().position(|key| key.name == name);
        at.is_some_and(|at| self.set & (1 << at) != 0)
    }

    /// Whether the revision has opted in: a key is set that is no limit.
    #[must_use]
    pub fn opted_in(&self) -> bool {
        self.any_of(|part| part != Part::Limit)
    }

    /// Whether a key is set that is about the GPU.
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
    fn each_key_takes_its_values_and_no_others() {
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
    fn each_key_changes_what_is_asked_for() {
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
    fn limits_opt_nothing_in_and_a_gpu_is_asked_for_by_its_own_keys() {
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
    fn a_key_that_is_not_known_is_refused_with_all_that_are() {
        let why = Settings::default().set("sm-percnt", "5").unwrap_err();
        assert!(
            why.to_string()
                .starts_with("is no key of Weir; allowed: concurrency, evict, function, ")
        );
        assert!(why.to_string().ends_with(", variant, version"));
    }
}
