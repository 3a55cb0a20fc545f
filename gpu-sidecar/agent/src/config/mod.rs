//! The agent's one configuration file, `/etc/weir/agent.toml`. Every key has a default; a file may be empty or missing.
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `node.run-directory` | where the agent keeps what lives as long as the node runs | `/run/weir` |
//! | `node.control-address` | control API; only on loopback in this release | `127.0.0.1:9470` |
//! | `node.metrics-address` | Prometheus metrics | `0.0.0.0:9471` |
//! | `node.nvml-library` | NVML, by path or as the loader finds it | `libnvidia-ml.so.1` |
//! | `node.mps-control` | the MPS control program, by path or as `PATH` finds it | `nvidia-cuda-mps-control` |
//! | `node.mps-multiuser` | one MPS server for clients of all users; else they wait for each other | `true` |
//! | `node.preload` | the folder of `libweir_preload.so` and `libweir_preload_core.so` | that of the executable |
//! | `node.host-memory` | host memory that models may take | no bound |
//! | `node.log` | `error`, `warn`, `info`, `debug` or `trace` | `info` |
//! | `tokens.rule` | by what rule tokens are given | `weir` |
//! | `tokens.sm-limit` | SMs that may be occupied at once, in per cent: above 0, up to 400 | 100 |
//! | `tokens.window` | the most that a pod can save up, in time at its share | `1s` |
//! | `tokens.horizon` | over any span of this length a pod gets at most its limit | `10s` |
//! | `tokens.cycle` | in one, each of those that compete has its turn | `100ms` |
//! | `tokens.slice-min` | nobody is closed for another before it has held for this long | `2ms` |
//! | `tokens.slice-max` | a token is renewed in steps of this length while nobody else wants it | `100ms` |
//! | `tokens.backfill` | how long one that waits and does not fit may be overtaken by smaller ones; `0`: never | `20ms` |
//! | `tokens.inflight` | work of a process in flight while others wait, or have within the last `tokens.window`, or its pod has a limit | `2ms` |
//! | `tokens.inflight-alone` | the same of a pod without a limit while nobody has waited for that long | `100ms` |
//! | `tokens.time-scale` | multiplies all durations of this table: 1 to 8, for a software GPU whose time is scaled | 1 |
//! | `slots.kind` | `mps` or `exclusive` | `mps` |
//! | `slots.seats` | pods on a slot, at most | what MPS allows; 64 on an exclusive slot |
//! | `slots.plan` | Σ `sm-percent` × `quota-request` that an mps slot takes, in per cent of it; more than 100 promises what there is not | 90 |
//! | `slots.context-residue.mps`, `.exclusive` | device memory that stays with a context | measured by each process |
//! | `[[slot]]` | for slots that match `uuid` or `index` (`0`, `0-3`, `*`, `1:2`, `1:*`): `kind`, `seats`, `context-residue` | |
//! | `pods.directory` | one folder for each pod | `pods` in the run directory |
//!
//! The last `[[slot]]` that matches and names a key wins.

pub(crate) mod reader;
pub(crate) mod units;

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Serialize, Serializer};
use toml::de::DeTable;

use crate::state::{ALL_HUNDREDTHS, SlotKind};
pub use reader::Problem;
use reader::{Document, Table};
use units::{decimal, duration, quantity, show_decimal, show_duration, show_quantity};

/// Where the file is unless a path is given.
pub const PATH_DEFAULT: &str = "/etc/weir/agent.toml";
/// Bytes of the file, at most.
pub const FILE_MAX: u64 = 1 << 20;
/// `[[slot]]` tables, at most.
const OVERRIDES_MAX: usize = 1_024;
/// Pods on a slot, at most: what a file can ask for.
const SEATS_MAX: u32 = 1_024;
/// SMs that may be occupied at once, in per cent, at most.
const SM_LIMIT_MAX: u64 = 400;
/// `tokens.time-scale`, at most.
const TIME_SCALE_MAX: u32 = 8;
/// The longest duration of a token setting before it is scaled.
const DURATION_MAX: Duration = Duration::from_secs(100);

/// By what rule tokens are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Guarantees and limits as accounts that survive windows.
    Weir,
    /// As FaST-GShare's text has it.
    Paper,
    /// Time sharing without space.
    TimeOnly,
    /// The GPU belongs to the pod that came first.
    Exclusive,
    /// Nobody is ever held.
    Racing,
    /// A token bucket for each pod, filled by feedback, as in HAMi.
    ReactiveBucket,
}

const RULES: [(&str, Rule); 6] = [
    ("weir", Rule::Weir),
    ("paper", Rule::Paper),
    ("time-only", Rule::TimeOnly),
    ("exclusive", Rule::Exclusive),
    ("racing", Rule::Racing),
    ("reactive-bucket", Rule::ReactiveBucket),
];

/// Rule and lengths of the token scheduler. Durations are as they hold: multiplied by `time_scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TokenSettings {
    /// By what rule tokens are given.
    pub rule: Rule,
    /// SMs that may be occupied at once, in hundredths of a per cent.
    #[serde(rename = "sm-limit", serialize_with = "as_percent")]
    pub sm_limit_hundredths: u32,
    /// The most that a pod can save up, in time at its share.
    #[serde(serialize_with = "as_duration")]
    pub window: Duration,
    /// Over any span of this length a pod gets at most its limit.
    #[serde(serialize_with = "as_duration")]
    pub horizon: Duration,
    /// In one, each of those that compete has its turn.
    #[serde(serialize_with = "as_duration")]
    pub cycle: Duration,
    /// Nobody is closed for another before it has held for this long.
    #[serde(serialize_with = "as_duration")]
    pub slice_min: Duration,
    /// A token is renewed in steps of this length while nobody else wants it.
    #[serde(serialize_with = "as_duration")]
    pub slice_max: Duration,
    /// How long one that waits and does not fit may be overtaken by smaller ones.
    #[serde(serialize_with = "as_duration")]
    pub backfill: Duration,
    /// Work of a process in flight while others wait, or have within the last window, or its pod has a limit.
    #[serde(serialize_with = "as_duration")]
    pub inflight: Duration,
    /// The same of a pod without a limit while nobody has waited for that long.
    #[serde(serialize_with = "as_duration")]
    pub inflight_alone: Duration,
    /// By what the durations of the file were multiplied.
    pub time_scale: u32,
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self {
            rule: Rule::Weir,
            sm_limit_hundredths: ALL_HUNDREDTHS,
            window: Duration::from_secs(1),
            horizon: Duration::from_secs(10),
            cycle: Duration::from_millis(100),
            slice_min: Duration::from_millis(2),
            slice_max: Duration::from_millis(100),
            backfill: Duration::from_millis(20),
            inflight: Duration::from_millis(2),
            inflight_alone: Duration::from_millis(100),
            time_scale: 1,
        }
    }
}

/// What holds for slots unless a `[[slot]]` says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotDefaults {
    /// How they are shared.
    pub kind: SlotKind,
    /// Pods on a slot; `None`: what MPS allows, [`EXCLUSIVE_SEATS`] on an exclusive slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Requests (`sm-percent` × `quota-request`) that an mps slot takes, in per cent of it.
    pub plan: u32,
    /// Device memory that stays with a context.
    pub context_residue: Residues,
}

/// What is planned for unless the file says otherwise: the rest is what tokens of different lengths leave over
/// (papers: §4.2).
pub const PLAN_PERCENT: u32 = 90;
/// More would be promised than there is four times over.
const PLAN_MAX: u32 = 400;
/// Pods on an exclusive slot unless the file says otherwise.
pub const EXCLUSIVE_SEATS: u32 = 64;

/// Device memory that stays with a context, in bytes, by the kind of the slot; `None`: each process measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "by the kind of the slot")]
pub struct Residues {
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub mps: Option<u64>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub exclusive: Option<u64>,
}

impl Residues {
    /// For a kind.
    #[must_use]
    pub const fn of(self, kind: SlotKind) -> Option<u64> {
        match kind {
            SlotKind::Mps => self.mps,
            SlotKind::Exclusive => self.exclusive,
        }
    }
}

/// Which slots a `[[slot]]` is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotMatch {
    /// One, by its UUID.
    Uuid(String),
    /// Those of GPUs of these numbers: whole, or with the second pattern the MIG instances of these numbers.
    Index(Numbers, Option<Numbers>),
}

/// Some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// All.
    All,
    /// From the first to the second.
    Range(u32, u32),
}

impl Numbers {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::All);
        }
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(Self::Range(first, last))
    }

    /// Whether a number is one of them.
    #[must_use]
    pub fn contains(self, number: u32) -> bool {
        match self {
            Self::All => true,
            Self::Range(first, last) => (first..=last).contains(&number),
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => formatter.write_str("*"),
            Self::Range(first, last) if first == last => write!(formatter, "{first}"),
            Self::Range(first, last) => write!(formatter, "{first}-{last}"),
        }
    }
}

impl SlotMatch {
    fn parse_index(text: &str) -> Result<Self, String> {
        let (gpus, instances) = match text.split_once(':') {
            None => (text, None),
            Some((gpus, instances)) => (gpus, Some(instances)),
        };
        let parsed = Numbers::parse(gpus).and_then(|gpus| match instances {
            None => Some(Self::Index(gpus, None)),
            Some(instances) => Some(Self::Index(gpus, Some(Numbers::parse(instances)?))),
        });
        parsed.ok_or_else(|| {
            "allowed: a GPU's number, a range or *, as 0, 0-3 or *; with the MIG instances of it, as 1:2 or 1:*"
                .to_owned()
        })
    }

    /// Whether it is about this slot: a whole GPU, or the instance of this number of it. Without a pattern for instances a
    /// pattern matches whole GPUs and all instances.
    #[must_use]
    pub fn matches(&self, uuid: &str, gpu: u32, instance: Option<u32>) -> bool {
        match self {
            Self::Uuid(own) => own.eq_ignore_ascii_case(uuid),
            Self::Index(gpus, instances) => {
                gpus.contains(gpu)
                    && match (instances, instance) {
                        (None, _) => true,
                        (Some(instances), Some(instance)) => instances.contains(instance),
                        (Some(_), None) => false,
                    }
            }
        }
    }
}

impl fmt::Display for SlotMatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => formatter.write_str(uuid),
            Self::Index(gpus, None) => write!(formatter, "{gpus}"),
            Self::Index(gpus, Some(instances)) => write!(formatter, "{gpus}:{instances}"),
        }
    }
}

/// A `[[slot]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotOverride {
    /// Which slots.
    #[serde(serialize_with = "as_text")]
    pub slot: SlotMatch,
    /// How they are shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<SlotKind>,
    /// Pods on a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// Device memory that stays with a context.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub context_residue: Option<u64>,
}

/// What the file says of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotConfig {
    /// How it is shared.
    pub kind: SlotKind,
    /// Pods on it; `None`: what MPS allows, [`EXCLUSIVE_SEATS`] on an exclusive slot.
    pub seats: Option<u32>,
    /// Device memory that stays with a context.
    pub context_residue: Option<u64>,
}

/// Everything that the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// `[node]`.
    pub node: NodeConfig,
    /// `[tokens]`.
    pub tokens: TokenSettings,
    /// `[slots]`.
    pub slots: SlotDefaults,
    /// `[[slot]]`, in the order of the file.
    #[serde(rename = "slot", skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<SlotOverride>,
    /// `[pods]`.
    pub pods: PodsConfig,
}

/// `[node]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeConfig {
    /// Where the agent keeps what lives as long as the node runs.
    pub run_directory: PathBuf,
    /// Control API.
    pub control_address: SocketAddr,
    /// Prometheus metrics.
    pub metrics_address: SocketAddr,
    /// NVML.
    pub nvml_library: PathBuf,
    /// The MPS control program.
    pub mps_control: PathBuf,
    /// One MPS server serves clients of all users. Else clients of another user than the first wait until its are gone.
    pub mps_multiuser: bool,
    /// The folder of the preload libraries; `None`: that of the executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preload: Option<PathBuf>,
    /// Host memory that models may take, in bytes; `None`: no bound.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub host_memory: Option<u64>,
    /// What is logged.
    pub log: LogLevel,
}

/// What is logged: this and what is graver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "they are tracing's")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

const LOG_LEVELS: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

/// `[pods]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PodsConfig {
    /// One folder for each pod.
    pub directory: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        let run_directory = PathBuf::from("/run/weir");
        Self {
            pods: PodsConfig {
                directory: run_directory.join("pods"),
            },
            node: NodeConfig {
                run_directory,
                control_address: SocketAddr::from(([127, 0, 0, 1], 9470)),
                metrics_address: SocketAddr::from(([0, 0, 0, 0], 9471)),
                nvml_library: PathBuf::from("libnvidia-ml.so.1"),
                mps_control: PathBuf::from("nvidia-cuda-mps-control"),
                mps_multiuser: true,
                preload: None,
                host_memory: None,
                log: LogLevel::Info,
            },
            tokens: TokenSettings::default(),
            slots: SlotDefaults {
                kind: SlotKind::Mps,
                seats: None,
                plan: PLAN_PERCENT,
                context_residue: Residues::default(),
            },
            overrides: Vec::new(),
        }
    }
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It says what it cannot.
    #[error("{}", show_problems(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// In the order of their lines; at least one.
        problems: Vec<Problem>,
    },
}

fn show_problems(path: &Path, problems: &[Problem]) -> String {
    let mut text = String::new();
    for (number, problem) in problems.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        let Problem { line, key, .. } = problem;
        let _infallible = write!(text, "{}:{line}: ", path.display());
        if !key.is_empty() {
            let _infallible = write!(text, "{key}: ");
        }
        text.push_str(&problem.text);
    }
    text
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or says what it cannot.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read_bounded(path, FILE_MAX).map_err(|why| ConfigError::Unreadable {
            path: path.to_path_buf(),
            why,
        })?;
        Self::parse(&text).map_err(|problems| ConfigError::Invalid {
            path: path.to_path_buf(),
            problems,
        })
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// Everything that is wrong in it.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let document = Document::new(text);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            // A message of several lines would not stay with its line's number.
            let message = error.message().replace('\n', ", ");
            document.wrong(error.span().unwrap_or(0..0), "", message);
        }
        if !errors.is_empty() {
            return Err(document.problems());
        }
        let root = Table::new(&document, "", 0..0, Some(root.get_ref()));
        let config = Self::from_table(&document, root);
        let problems = document.problems();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(problems)
        }
    }

    fn from_table(document: &Document<'_>, root: Table<'_, '_>) -> Self {
        let mut config = Self::default();
        config.node.read(root.table("node"));
        config.tokens.read(root.table("tokens"));
        config.slots.read(root.table("slots"));
        let overrides = root.tables("slot");
        if let Some(one_more) = overrides.get(OVERRIDES_MAX) {
            document.wrong(
                one_more.at(),
                "slot",
                format!("at most {OVERRIDES_MAX} are allowed"),
            );
        }
        let overrides = overrides.into_iter().take(OVERRIDES_MAX);
        config.overrides = overrides.filter_map(SlotOverride::read).collect();
        let pods = root.table("pods");
        config.pods.directory = pods
            .value("directory", absolute)
            .unwrap_or_else(|| config.node.run_directory.join("pods"));
        pods.end();
        root.end();
        config
    }

    /// What holds for a slot: a whole GPU by its number, or the MIG instance of this number of it.
    #[must_use]
    pub fn slot(&self, uuid: &str, gpu: u32, instance: Option<u32>) -> SlotConfig {
        let matching = || {
            let all = self.overrides.iter().rev();
            all.filter(|own| own.slot.matches(uuid, gpu, instance))
        };
        let kind = matching()
            .find_map(|own| own.kind)
            .unwrap_or(self.slots.kind);
        let residue = matching().find_map(|own| own.context_residue);
        SlotConfig {
            kind,
            seats: matching().find_map(|own| own.seats).or(self.slots.seats),
            context_residue: residue.or_else(|| self.slots.context_residue.of(kind)),
        }
    }
}

impl NodeConfig {
    fn read(&mut self, table: Table<'_, '_>) {
        if let Some(path) = table.value("run-directory", absolute) {
            self.run_directory = path;
        }
        if let Some(address) = table.value("control-address", address) {
            if address.ip().is_loopback() {
                self.control_address = address;
            } else {
                table.wrong(
                    "control-address",
                    format!(
                        "{:?}: allowed: a loopback address, as 127.0.0.1:9470 or [::1]:9470; others need TLS, \
                         which is not in this release",
                        address.to_string()
                    ),
                );
            }
        }
        if let Some(address) = table.value("metrics-address", address) {
            self.metrics_address = address;
        }
        if let Some(path) = table.value("nvml-library", file) {
            self.nvml_library = path;
        }
        if let Some(path) = table.value("mps-control", file) {
            self.mps_control = path;
        }
        let flags = [("true", true), ("false", false)];
        if let Some(flag) = table.value("mps-multiuser", |text| one_of(text, &flags)) {
            self.mps_multiuser = flag;
        }
        self.preload = table.value("preload", absolute);
        self.host_memory = table.value("host-memory", quantity);
        if let Some(level) = table.value("log", |text| one_of(text, &LOG_LEVELS)) {
            self.log = level;
        }
        table.end();
    }
}

impl TokenSettings {
    fn read(&mut self, table: Table<'_, '_>) {
        if let Some(rule) = table.value("rule", |text| one_of(text, &RULES)) {
            self.rule = rule;
        }
        let sm_limit = table.value("sm-limit", |text| {
            decimal(text, 2)
                .filter(|hundredths| (1..=SM_LIMIT_MAX * 100).contains(hundredths))
                .and_then(|hundredths| u32::try_from(hundredths).ok())
                .ok_or_else(|| {
                    format!(
                        "allowed: per cent above 0, up to {SM_LIMIT_MAX}, with at most two decimals"
                    )
                })
        });
        if let Some(hundredths) = sm_limit {
            self.sm_limit_hundredths = hundredths;
        }
        let positive = |text: &str| {
            duration(text).and_then(|duration| {
                if duration.is_zero() || duration > DURATION_MAX {
                    let max = show_duration(DURATION_MAX);
                    Err(format!("allowed: above 0, up to {max}"))
                } else {
                    Ok(duration)
                }
            })
        };
        for (key, own) in [
            ("window", &mut self.window),
            ("horizon", &mut self.horizon),
            ("cycle", &mut self.cycle),
            ("slice-min", &mut self.slice_min),
            ("slice-max", &mut self.slice_max),
            ("inflight", &mut self.inflight),
            ("inflight-alone", &mut self.inflight_alone),
        ] {
            if let Some(duration) = table.value(key, positive) {
                *own = duration;
            }
        }
        let backfill = table.value("backfill", |text| {
            duration(text).and_then(|duration| {
                let max = show_duration(DURATION_MAX);
                let allowed = || format!("allowed: 0 to {max}");
                (duration <= DURATION_MAX)
                    .then_some(duration)
                    .ok_or_else(allowed)
            })
        });
        if let Some(duration) = backfill {
            self.backfill = duration;
        }
        for (shorter, key, longer, than) in [
            (self.window, "window", self.horizon, "horizon"),
            (self.cycle, "cycle", self.window, "window"),
            (self.slice_min, "slice-min", self.cycle, "cycle"),
            (self.slice_min, "slice-min", self.slice_max, "slice-max"),
            (
                self.inflight,
                "inflight",
                self.inflight_alone,
                "inflight-alone",
            ),
        ] {
            if shorter > longer {
                // The one of the two that the file names.
                let place = if table.place(key).is_some() {
                    key
                } else {
                    than
                };
                let [shorter, longer] = [shorter, longer].map(show_duration);
                table.wrong(
                    place,
                    format!("{key} ({shorter}) must not be longer than {than} ({longer})"),
                );
            }
        }
        if let Some(scale) = table.value("time-scale", |text| integer(text, 1, TIME_SCALE_MAX)) {
            self.scale(scale);
        }
        table.end();
    }

    fn scale(&mut self, scale: u32) {
        self.time_scale = scale;
        for own in [
            &mut self.window,
            &mut self.horizon,
            &mut self.cycle,
            &mut self.slice_min,
            &mut self.slice_max,
            &mut self.backfill,
            &mut self.inflight,
            &mut self.inflight_alone,
        ] {
            *own = own.saturating_mul(scale);
        }
    }
}

impl SlotDefaults {
    fn read(&mut self, table: Table<'_, '_>) {
        if let Some(kind) = table.value("kind", slot_kind) {
            self.kind = kind;
        }
        self.seats = table.value("seats", |text| integer(text, 1, SEATS_MAX));
        if let Some(plan) = table.value("plan", |text| integer(text, 1, PLAN_MAX)) {
            self.plan = plan;
        }
        let residue = table.table("context-residue");
        self.context_residue.mps = residue.value("mps", quantity);
        self.context_residue.exclusive = residue.value("exclusive", quantity);
        residue.end();
        table.end();
    }
}

impl SlotOverride {
    fn read(table: Table<'_, '_>) -> Option<Self> {
        let uuid = table.value("uuid", |text| {
            if text.starts_with("GPU-") || text.starts_with("MIG-") {
                Ok(SlotMatch::Uuid(text.to_owned()))
            } else {
                Err(
                    "allowed: a UUID as nvidia-smi -L prints it, beginning with GPU- or MIG-"
                        .to_owned(),
                )
            }
        });
        let index = table.value("index", SlotMatch::parse_index);
        let is_named = ["uuid", "index"].map(|key| table.place(key).is_some());
        let slot = match is_named {
            [true, true] => {
                table.wrong(
                    "index",
                    "uuid is given as well; only one of the two is allowed",
                );
                None
            }
            [false, false] => {
                table.wrong("uuid", "missing: a [[slot]] needs uuid or index");
                None
            }
            _ => uuid.or(index),
        };
        let kind = table.value("kind", slot_kind);
        let seats = table.value("seats", |text| integer(text, 1, SEATS_MAX));
        let context_residue = table.value("context-residue", quantity);
        table.end();
        Some(Self {
            slot: slot?,
            kind,
            seats,
            context_residue,
        })
    }
}

/// Reads a text file of at most `max` bytes.
pub(crate) fn read_bounded(path: &Path, max: u64) -> Result<String, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    // A pipe of that name is not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map(std::fs::File::from)
        .map_err(|errno| std::io::Error::from(errno).to_string())?;
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_file {
        return Err("is no regular file".to_owned());
    }
    file.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > max {
        return Err(format!("is larger than {max} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("is not UTF-8 at byte {at}")
    })
}

fn one_of<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        format!("allowed: {}", names.join(", "))
    })
}

fn slot_kind(text: &str) -> Result<SlotKind, String> {
    one_of(
        text,
        &[SlotKind::Mps, SlotKind::Exclusive].map(|kind| (kind.name(), kind)),
    )
}

fn integer(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("allowed: a whole number from {min} to {max}"))
}

pub(crate) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() && !text.contains('\0') {
        Ok(path)
    } else {
        Err("allowed: an absolute path".to_owned())
    }
}

/// A path, or a name that is looked for.
fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_name = path.components().count() == 1 && !text.ends_with('/');
    if !text.contains('\0') && (path.is_absolute() || is_name) {
        Ok(path)
    } else {
        Err("allowed: an absolute path or a file name".to_owned())
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "allowed: an IP address and a port, as 127.0.0.1:9470 or [::1]:9470".to_owned()
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn as_percent<S: Serializer>(hundredths: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show_decimal(u64::from(*hundredths), 2))
}

fn as_duration<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show_duration(*duration))
}

#[expect(clippy::ref_option, reason = "as serde calls it")]
fn as_quantity<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => serializer.serialize_str(&show_quantity(*bytes)),
        None => serializer.serialize_none(),
    }
}

fn as_text<S: Serializer>(slot: &SlotMatch, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(slot)
}

#[cfg(test)]
mod tests;
