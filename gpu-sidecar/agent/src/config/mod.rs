//! The agent's one configuration file, `/etc/weir/agent.toml`. Every key has a default; a file may be empty or missing.
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `node.run-directory` | directory of runtime state, kept until the node reboots | `/run/weir` |
//! | `node.control-address` | address of the control API; on loopback unless certificates are configured | `127.0.0.1:9470` |
//! | `node.metrics-address` | address of the Prometheus metrics | `0.0.0.0:9471` |
//! | `node.nvml-library` | NVML library, a path or a name for the loader | `libnvidia-ml.so.1` |
//! | `node.mps-control` | MPS control program, a path or a name in `PATH` | `nvidia-cuda-mps-control` |
//! | `node.mps-multiuser` | one MPS server for clients of all users; otherwise users wait for each other | `true` |
//! | `node.preload` | folder of `libweir_preload.so` and `libweir_preload_core.so` | folder of the executable |
//! | `node.host-memory` | host memory available to models that leave their devices; `0`: none leaves | half of the node's memory |
//! | `node.pinned-memory` | part of it that processes may register with the driver, which pins its pages and makes copies as fast as the link | an eighth of the node's memory |
//! | `node.staging` | part of `node.pinned-memory` that a process gets whose copies are not all registered: they pass through it in pieces, copied by threads of the process, instead of at the pace of the driver's own staging. `0`: none is set aside; or 16Mi to 32Mi. It is memory of the process, beside `node.host-memory`, and counts for its pod | `32Mi` |
//! | `node.log` | log level: `error`, `warn`, `info`, `debug` or `trace` | `info` |
//! | `tokens.rule` | scheduling rule of the tokens | `weir` |
//! | `tokens.sm-limit` | SMs that may be occupied at once, in percent: above 0, up to 400 | 100 |
//! | `tokens.window` | largest credit that a pod can accumulate, in time at its share | `1s` |
//! | `tokens.horizon` | span over which a pod receives at most its limit | `10s` |
//! | `tokens.cycle` | span in which each competing pod has its turn | `100ms` |
//! | `tokens.slice-min` | shortest time of holding before a token is closed for another pod | `2ms` |
//! | `tokens.slice-max` | length of each renewal of a token while no other pod wants it | `100ms` |
//! | `tokens.backfill` | longest time for which smaller requests may overtake a waiting one that does not fit; `0`: never | `20ms` |
//! | `tokens.inflight` | bound of a process's work in flight while others wait or have waited within the last `tokens.window`, or its pod has a limit | `2ms` |
//! | `tokens.inflight-alone` | bound of a process's work in flight for a pod without a limit while no other has waited for that long | `100ms` |
//! | `tokens.time-scale` | factor of all durations of this table, 1 to 8, for a software GPU with scaled time | 1 |
//! | `slots.kind` | sharing mode, `mps` or `exclusive` | `mps` |
//! | `slots.seats` | maximum number of pods on a slot | the limit of MPS; 64 on an exclusive slot |
//! | `slots.plan` | limit of Σ `sm-percent` × `quota-request` on an mps slot, in percent of it; above 100 the slot is overcommitted | 90 |
//! | `slots.placement` | which of the mps slots with room for a pod it gets: `first-fit`; `best-fit`, the one with the least share of its plan left | `first-fit` |
//! | `slots.context-residue.mps`, `.exclusive` | device memory taken by a context | measured by each process; on an exclusive slot what the driver lists for a process beyond its allocations, once both have stayed the same for a second |
//! | `[[slot]]` | overrides for slots that match `uuid` or `index` (`0`, `0-3`, `*`, `1:2`, `1:*`): `kind`, `seats`, `context-residue` | |
//! | `pods.directory` | directory with one folder per pod | `pods` in the run directory |
//! | `memory.restore` | what brings an evicted model back: `demand`, a thread that waits for it; `order`, an order alone | `demand` |
//! | `memory.seal-after` | time without a launch or copy after which a process copies to the host what an eviction would copy, 1 ms to 1 h; `0`: never | `1s` |
//! | `memory.stream-restores` | whether a program computes amid a restore, each launch once what its arguments name is there; `poisoned`: and what is not there has every bit set, to find programs which use it all the same; not run on a GPU yet | `false` |
//! | `pool.rule` | rule by which pods on exclusive slots get leases and models leave: `weir`; for comparison `paper`, order and placement as Torpor prints them, `fifo`, heads in order of arrival, `random`, any free slot, `lru`, models leave by least recent use alone, and `no-ahead`, nothing is loaded while another pod computes | `weir` |
//! | `pool.end-faulted` | whether, where there are leases, a process is killed that computes no more: its driver has reported an error that stays, or its work has not progressed for five times as long as its requests usually take, from 10 s to 300 s; `false` for work under a debugger | `true` |
//! | `metrics.pods` | label `pod` on metrics of used and asked time, quotas and memory: one series per pod | `false` |
//! | `price.gpu-hour` | price of a whole GPU for an hour, in any currency: 0 to 1000000, at most six decimals | none |
//!
//! The last `[[slot]]` that matches and names a key wins.

pub(crate) mod reader;
mod slots;
mod tokens;
pub(crate) mod units;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use annotations::values::{decimal, duration, quantity};
use protocol::page::Streaming;
use rustix::fs::{Mode, OFlags};
use serde::{Serialize, Serializer};
use toml::de::DeTable;

use policy::pool::leases;

use agent_core::MemorySettings;
pub use agent_core::SlotKind;
pub use reader::Problem;
use reader::{Document, Table};
pub use slots::{
    EXCLUSIVE_SEATS, Numbers, PLAN_PERCENT, Residues, SlotConfig, SlotDefaults, SlotMatch,
    SlotOverride,
};
pub use tokens::{Rule, TokenSettings};
use units::{show_decimal, show_quantity};

/// Default path of the configuration file.
pub const PATH_DEFAULT: &str = "/etc/weir/agent.toml";
/// Maximum size of the file, in bytes.
pub const FILE_MAX: u64 = 1 << 20;
/// Maximum number of `[[slot]]` tables.
const OVERRIDES_MAX: usize = 1_024;
/// Contents of the configuration file, with defaults for missing keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// Settings of the agent itself: table `[node]`.
    pub node: NodeConfig,
    /// Settings of the token scheduler: table `[tokens]`.
    pub tokens: TokenSettings,
    /// Defaults for all slots: table `[slots]`.
    pub slots: SlotDefaults,
    /// Overrides for single slots: tables `[[slot]]`, in the order of the file.
    #[serde(rename = "slot", skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<SlotOverride>,
    /// Settings of pods: table `[pods]`.
    pub pods: PodsConfig,
    /// Settings of models that leave their devices: table `[memory]`.
    pub memory: MemoryConfig,
    /// Settings of leases: table `[pool]`.
    pub pool: PoolConfig,
    /// Settings of metrics: table `[metrics]`.
    pub metrics: MetricsConfig,
    /// Prices for cost metrics: table `[price]`.
    #[serde(skip_serializing_if = "PriceConfig::is_empty")]
    pub price: PriceConfig,
    /// Settings of volumes: table `[csi]`; `None`: another program creates the pods' folders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<CsiConfig>,
}

/// Table `[csi]`: the agent publishes volumes for the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CsiConfig {
    /// A process in the kubelet's mount namespace; `None`: the agent's own namespace is the kubelet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_process: Option<HostProcess>,
    /// Path of the kubelet's directory in its own file system; `None`: from the command line of a process named `kubelet`, else
    /// `/var/lib/kubelet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet_directory: Option<PathBuf>,
    /// Name of the node; `None`: environment variable `NODE_NAME`, else the host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Path on the host of the folder that MPS daemons and their clients have as `/dev/shm`.
    pub shared_memory: PathBuf,
    /// Path on the host of a software GPU's folder, shown to pods; `None`: the GPUs are real.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub software_gpu: Option<PathBuf>,
}

/// A process of the host, as seen in the agent's own PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostProcess {
    /// The process named `kubelet`; process 1 where there is none.
    Kubelet,
    /// The process with this ID.
    #[serde(untagged)]
    Id(u32),
}

impl HostProcess {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "kubelet" {
            return Ok(Self::Kubelet);
        }
        let id = integer(text, 1, u32::MAX).map(Self::Id);
        id.map_err(|_| "allowed: kubelet, or the id of a process".to_owned())
    }
}

impl CsiConfig {
    fn read(table: &Table<'_, '_>) -> Self {
        let shared_memory = table.value("shared-memory", absolute);
        Self {
            host_process: table.value("host-process", HostProcess::parse),
            kubelet_directory: table.value("kubelet-directory", absolute),
            node: table.value("node", |text| {
                annotations::values::dns_subdomain(text).map(|()| text.to_owned())
            }),
            shared_memory: shared_memory.unwrap_or_else(|| PathBuf::from("/dev/shm")),
            software_gpu: table.value("software-gpu", absolute),
        }
    }
}

/// Table `[node]`: paths, addresses and limits of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeConfig {
    /// Directory of runtime state, kept until the node reboots.
    pub run_directory: PathBuf,
    /// Address of the control API. Connections from outside the loopback use mutual TLS and need `certificates`.
    pub control_address: SocketAddr,
    /// Folder with `tls.crt`, `tls.key` and `ca.crt`, which are reloaded when they change; `None`: the control API is limited
    /// to the loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates: Option<PathBuf>,
    /// Address of the Prometheus metrics.
    pub metrics_address: SocketAddr,
    /// Path or name of the NVML library.
    pub nvml_library: PathBuf,
    /// Path of the MPS control program, or its name in `PATH`.
    pub mps_control: PathBuf,
    /// Whether one MPS server serves clients of all users. Otherwise clients of another user wait until those of the current
    /// user have disconnected.
    pub mps_multiuser: bool,
    /// Folder of the preload libraries; `None`: that of the executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preload: Option<PathBuf>,
    /// Host memory available to models that leave their devices, in bytes; `None`: half of the node's memory.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub host_memory: Option<u64>,
    /// Part of it that processes may register with the driver, in bytes; `None`: an eighth of the node's memory.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub pinned_memory: Option<u64>,
    /// Part of the registered memory through which the copies of a process pass that are not registered, in bytes; `None`: 32 MiB.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_quantity"
    )]
    pub staging: Option<u64>,
    /// Lowest level of the log lines that are written.
    pub log: LogLevel,
}

/// Log level: lines of this level and more severe ones are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the levels of tracing")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

const FLAGS: [(&str, bool); 2] = [("true", true), ("false", false)];

const LOG_LEVELS: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

/// Table `[pods]`: settings of pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PodsConfig {
    /// Directory with one folder per pod.
    pub directory: PathBuf,
}

/// Table `[memory]`: models that leave their devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemoryConfig {
    /// What brings an evicted model back.
    pub restore: Restore,
    /// Time without a launch or copy after which a process copies ahead of an eviction; 0: never.
    #[serde(serialize_with = "tokens::as_duration")]
    pub seal_after: Duration,
    /// Whether programs compute amid restores.
    #[serde(serialize_with = "as_streaming")]
    pub stream_restores: Streaming,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            restore: Restore::default(),
            seal_after: Duration::from_secs(1),
            stream_restores: Streaming::Off,
        }
    }
}

/// Values of `memory.stream-restores`.
const STREAMING: [(&str, Streaming); 3] = [
    ("true", Streaming::On),
    ("false", Streaming::Off),
    ("poisoned", Streaming::Poisoned),
];

fn as_streaming<S: Serializer>(streaming: &Streaming, serializer: S) -> Result<S::Ok, S::Error> {
    match streaming {
        Streaming::Off => serializer.serialize_bool(false),
        Streaming::On => serializer.serialize_bool(true),
        Streaming::Poisoned => serializer.serialize_str("poisoned"),
    }
}

/// Longest `memory.seal-after`.
const SEAL_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// What brings an evicted model back to its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restore {
    /// A thread that waits for the memory of its process.
    #[default]
    Demand,
    /// An order of an operator alone.
    Order,
}

const RESTORES: [(&str, Restore); 2] = [("demand", Restore::Demand), ("order", Restore::Order)];

/// Table `[pool]`: rule of the leases, and what becomes of processes that have failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PoolConfig {
    /// Rule by which leases are granted and models leave.
    #[serde(serialize_with = "as_rule")]
    pub rule: leases::Rule,
    /// Whether processes that compute no more are killed, so that their containers start again.
    pub end_faulted: bool,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            rule: leases::Rule::default(),
            end_faulted: true,
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the form that serde wants"
)]
fn as_rule<S: Serializer>(rule: &leases::Rule, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(rule.name())
}

/// Table `[metrics]`: settings of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MetricsConfig {
    /// Whether metrics of used and asked time, quotas and memory have the label `pod`.
    pub pods: bool,
}

/// Table `[price]`: prices for cost metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PriceConfig {
    /// Price of a whole GPU for an hour, in millionths of the currency's unit; a MIG instance costs its share of the compute
    /// slices (M3.12).
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_millionths"
    )]
    pub gpu_hour: Option<u64>,
}

/// Largest `price.gpu-hour`, in millionths.
const GPU_HOUR_MAX: u64 = 1_000_000 * 1_000_000;

impl PriceConfig {
    const fn is_empty(&self) -> bool {
        self.gpu_hour.is_none()
    }
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
                certificates: None,
                metrics_address: SocketAddr::from(([0, 0, 0, 0], 9471)),
                nvml_library: PathBuf::from("libnvidia-ml.so.1"),
                mps_control: PathBuf::from("nvidia-cuda-mps-control"),
                mps_multiuser: true,
                preload: None,
                host_memory: None,
                pinned_memory: None,
                staging: None,
                log: LogLevel::Info,
            },
            tokens: TokenSettings::default(),
            slots: SlotDefaults {
                kind: SlotKind::Mps,
                seats: None,
                plan: PLAN_PERCENT,
                placement: policy::placement::Rule::FirstFit,
                context_residue: Residues::default(),
                memory: None,
            },
            overrides: Vec::new(),
            memory: MemoryConfig::default(),
            pool: PoolConfig::default(),
            metrics: MetricsConfig::default(),
            price: PriceConfig::default(),
            csi: None,
        }
    }
}

/// Default of `node.staging`, and its maximum, in bytes: on a GPU, eight pieces of 4 MiB.
const STAGING_BYTES: u64 = 32 << 20;
/// Memory that the agent needs besides the copies of models, in bytes.
const AGENT_BYTES: u64 = 256 << 20;

/// Returns the staging memory of a process, in bytes: none where everything may be registered, so that nothing passes through it.
const fn staging_of(staging: u64, pinned_bytes: u64, host_bytes: u64) -> u64 {
    if pinned_bytes < host_bytes {
        staging
    } else {
        0
    }
}

/// Returns settings by which models take no more host memory than a limit of all the agent's memory leaves, in bytes.
#[must_use]
pub fn within(settings: MemorySettings, limit: u64) -> MemorySettings {
    let host_bytes = settings.host_bytes.min(limit.saturating_sub(AGENT_BYTES));
    let pinned_bytes = settings.pinned_bytes.min(host_bytes);
    MemorySettings {
        host_bytes,
        pinned_bytes,
        staging_bytes: staging_of(settings.staging_bytes, pinned_bytes, host_bytes),
        ..settings
    }
}

/// Error of reading the configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {why}", path.display())]
    Unreadable {
        /// Path of the configuration file.
        path: PathBuf,
        /// Cause, such as the error of the system call.
        why: String,
    },
    /// The file contains invalid settings.
    #[error("{}", show_problems(path, problems))]
    Invalid {
        /// Path of the configuration file.
        path: PathBuf,
        /// All problems found, ordered by line; at least one.
        problems: Vec<Problem>,
    },
}

/// Returns one line per problem: `path:line: key: text`.
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
    /// Reads and validates a configuration file.
    ///
    /// # Errors
    /// Returns an error when the file cannot be read, or contains invalid settings.
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

    /// Parses and validates the text of a configuration file.
    ///
    /// # Errors
    /// Returns all problems found, ordered by line.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let document = Document::new(text);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            // A message must stay on the line with its number.
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
        let memory = root.table("memory");
        if let Some(restore) = memory.value("restore", |text| one_of(text, &RESTORES)) {
            config.memory.restore = restore;
        }
        if let Some(after) = memory.value("seal-after", seal_after) {
            config.memory.seal_after = after;
        }
        if let Some(streams) = memory.value("stream-restores", |text| one_of(text, &STREAMING)) {
            config.memory.stream_restores = streams;
        }
        memory.end();
        let pool = root.table("pool");
        let rules = leases::Rule::ALL.map(|rule| (rule.name(), rule));
        if let Some(rule) = pool.value("rule", |text| one_of(text, &rules)) {
            config.pool.rule = rule;
        }
        if let Some(ends) = pool.value("end-faulted", |text| one_of(text, &FLAGS)) {
            config.pool.end_faulted = ends;
        }
        pool.end();
        let metrics = root.table("metrics");
        if let Some(pods) = metrics.value("pods", |text| one_of(text, &FLAGS)) {
            config.metrics.pods = pods;
        }
        metrics.end();
        let price = root.table("price");
        config.price.gpu_hour = price.value("gpu-hour", |text| {
            let millionths = decimal(text, 6).filter(|value| *value <= GPU_HOUR_MAX);
            millionths.ok_or_else(|| {
                "allowed: a number from 0 to 1000000 with at most six decimals".to_owned()
            })
        });
        price.end();
        if root.place("csi").is_some() {
            let csi = root.table("csi");
            config.csi = Some(CsiConfig::read(&csi));
            csi.end();
        }
        root.end();
        config
    }

    /// Returns how models are moved between devices and host. `node_bytes`: memory of the node.
    #[must_use]
    pub fn memory_settings(&self, node_bytes: u64) -> MemorySettings {
        let host_bytes = self.node.host_memory.unwrap_or(node_bytes / 2);
        let pinned_bytes = self.node.pinned_memory.unwrap_or(node_bytes / 8);
        let staging = self.node.staging.unwrap_or(STAGING_BYTES);
        MemorySettings {
            host_bytes,
            pinned_bytes: pinned_bytes.min(host_bytes),
            staging_bytes: staging_of(staging, pinned_bytes, host_bytes),
            restores_on_demand: self.memory.restore == Restore::Demand,
            streaming: self.memory.stream_restores,
            rule: self.pool.rule,
            ends_faulted: self.pool.end_faulted,
            seal_after_ms: u32::try_from(self.memory.seal_after.as_millis()).unwrap_or(u32::MAX),
        }
    }

    /// Returns the settings of a slot: a whole GPU by its index, or the MIG instance with this index on it.
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
            memory: matching().find_map(|own| own.memory).or(self.slots.memory),
        }
    }
}

impl NodeConfig {
    fn read(&mut self, table: Table<'_, '_>) {
        if let Some(path) = table.value("run-directory", absolute) {
            self.run_directory = path;
        }
        self.certificates = table.value("certificates", absolute);
        if let Some(address) = table.value("control-address", address) {
            if address.ip().is_loopback() || self.certificates.is_some() {
                self.control_address = address;
            } else {
                table.wrong(
                    "control-address",
                    format!(
                        "{:?}: allowed: a loopback address, as 127.0.0.1:9470 or [::1]:9470; others need node.certificates",
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
        if let Some(flag) = table.value("mps-multiuser", |text| one_of(text, &FLAGS)) {
            self.mps_multiuser = flag;
        }
        self.preload = table.value("preload", absolute);
        self.host_memory = table.value("host-memory", quantity);
        self.pinned_memory = table.value("pinned-memory", quantity);
        self.staging = table.value("staging", staging);
        if let Some(level) = table.value("log", |text| one_of(text, &LOG_LEVELS)) {
            self.log = level;
        }
        table.end();
    }
}

/// Reads a UTF-8 text file of at most `max` bytes; returns the reason when that fails.
pub(crate) fn read_bounded(path: &Path, max: u64) -> Result<String, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    // Does not block on a named pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())
        .map(std::fs::File::from)
        .map_err(|errno| std::io::Error::from(errno).to_string())?;
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_file {
        return Err("is not a regular file".to_owned());
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

fn integer(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("allowed: a whole number from {min} to {max}"))
}

/// Parses the size of the staging memory of a process: eight pieces of one or two granules of a GPU.
fn staging(text: &str) -> Result<u64, String> {
    let bytes = quantity(text)?;
    (bytes == 0 || (STAGING_BYTES / 2..=STAGING_BYTES).contains(&bytes))
        .then_some(bytes)
        .ok_or_else(|| "allowed: 0, or 16Mi to 32Mi".to_owned())
}

/// Parses the time after which a process copies ahead: whole milliseconds.
fn seal_after(text: &str) -> Result<Duration, String> {
    let allowed = || "allowed: 0, or 1ms to 1h in whole milliseconds".to_owned();
    let after = duration(text)?;
    let is_whole = after.subsec_nanos() % 1_000_000 == 0;
    (is_whole && after <= SEAL_AFTER_MAX)
        .then_some(after)
        .ok_or_else(allowed)
}

pub(crate) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() && !text.contains('\0') {
        Ok(path)
    } else {
        Err("allowed: an absolute path".to_owned())
    }
}

/// Parses an absolute path, or a file name to search for.
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

#[expect(clippy::ref_option, reason = "signature required by serde")]
fn as_millionths<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.serialize_str(&show_decimal(*value, 6)),
        None => serializer.serialize_none(),
    }
}

#[expect(clippy::ref_option, reason = "signature required by serde")]
fn as_quantity<S: Serializer>(bytes: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => serializer.serialize_str(&show_quantity(*bytes)),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests;
