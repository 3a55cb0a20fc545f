//! Pods: settings, slot and folder of each.

use std::path::PathBuf;
use std::time::Duration;

use annotations::{Evict, Isolation, Settings, Variant};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::slots::SlotKey;

/// Maximum number of pods served on a node at a time.
pub const PODS_MAX: usize = 1_024;

/// Number of a pod, from 0 below [`PODS_MAX`]. A number is reused only when all numbers have been used, the one free for
/// longest first; [`Pod::serial`] is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey(pub u32);

/// Validated settings from a pod's annotations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSettings {
    /// Isolation from other pods (`weir.dev/isolation`).
    #[serde(serialize_with = "isolation_name", deserialize_with = "isolation")]
    pub isolation: Isolation,
    /// Share of the SMs (`weir.dev/sm-percent`), in hundredths of a percent: 100 to
    /// [`SM_WHOLE`](annotations::SM_WHOLE).
    pub sm_hundredths: u32,
    /// Guaranteed share of wall time (`weir.dev/quota-request`), in millionths: 0 to [`SHARE_WHOLE`](annotations::SHARE_WHOLE), at most
    /// the limit.
    pub quota_request_ppm: u32,
    /// Largest share of wall time (`weir.dev/quota-limit`), in millionths: 1 to [`SHARE_WHOLE`](annotations::SHARE_WHOLE).
    pub quota_limit_ppm: u32,
    /// Limit of device memory (`weir.dev/gpu-memory`), in bytes; `None`: as much as the slot has.
    pub gpu_memory: Option<u64>,
    /// Place of an evicted model (`weir.dev/evict`).
    #[serde(serialize_with = "evict_name", deserialize_with = "evict")]
    pub evict: Evict,
    /// Latency objective (`weir.dev/slo`), where there is one.
    pub slo: Option<Duration>,
    /// Share of requests to be answered within the objective (`weir.dev/slo-percentile`), in millionths.
    #[serde(default = "percentile_default")]
    pub slo_percentile_ppm: u32,
    /// Version of the function (`weir.dev/version`); empty: none.
    #[serde(default)]
    pub version: String,
    /// Whether `weir.dev/variant` is `pipeline`.
    pub is_pipeline: bool,
}

impl From<&Settings> for PodSettings {
    fn from(settings: &Settings) -> Self {
        Self {
            isolation: settings.isolation,
            sm_hundredths: settings.sm_hundredths,
            quota_request_ppm: settings.quota_request_ppm,
            quota_limit_ppm: settings.quota_limit_ppm,
            gpu_memory: settings.gpu_memory,
            evict: settings.evict,
            slo: settings.slo,
            slo_percentile_ppm: percentile_ppm(settings.slo_percentile),
            version: settings.version.clone(),
            is_pipeline: settings.variant == Variant::Pipeline,
        }
    }
}

/// Returns a percentile in millionths.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 50 and 99.9 percent"
)]
fn percentile_ppm(percent: f64) -> u32 {
    (percent * 10_000.0).round() as u32
}

fn percentile_default() -> u32 {
    percentile_ppm(annotations::SLO_PERCENTILE_DEFAULT)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes it by reference"
)]
fn isolation_name<S: Serializer>(isolation: &Isolation, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(isolation.name())
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes it by reference"
)]
fn evict_name<S: Serializer>(evict: &Evict, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(evict.name())
}

fn isolation<'de, D: Deserializer<'de>>(from: D) -> Result<Isolation, D::Error> {
    named(
        from,
        &[Isolation::Strict, Isolation::Tenant, Isolation::Shared],
        Isolation::name,
    )
}

fn evict<'de, D: Deserializer<'de>>(from: D) -> Result<Evict, D::Error> {
    named(from, &[Evict::Host, Evict::Never], Evict::name)
}

/// Returns the value with the name that is read.
fn named<'de, D: Deserializer<'de>, T: Copy>(
    from: D,
    values: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
    let value = values.iter().find(|value| name(**value) == text);
    value
        .copied()
        .ok_or_else(|| de::Error::custom(format_args!("unknown value {text:?}")))
}

/// A pod served on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Key in commands, unique among the pods served at a time.
    pub key: PodKey,
    /// Serial number, increasing with each pod and never reused.
    pub serial: u64,
    /// Name of the pod's folder in the directory of pods.
    pub name: String,
    /// Namespace in the cluster.
    pub namespace: String,
    /// Function of which the revision is a variant.
    pub function: String,
    /// Name of the pod's revision.
    pub revision: String,
    /// UID in the cluster, where it is known: it identifies processes of other pods.
    pub uid: Option<String>,
    /// Path of the pod's cgroup, where it is known.
    pub cgroup: Option<PathBuf>,
    /// Name in the cluster, where it differs from the folder's name.
    pub pod_name: Option<String>,
    /// Path of the MPS pipe directory in its containers; `None` when it is the daemon's own path.
    pub mps_mount: Option<PathBuf>,
    /// Settings from the pod's annotations.
    pub settings: PodSettings,
    /// Slot on which the pod was placed, constant for its lifetime.
    pub slot: SlotKey,
    /// Folder of the pod, which also contains the service's own files.
    pub folder: PathBuf,
}

impl Pod {
    /// Returns the pod's `namespace/name`, as it appears in events and logs.
    #[must_use]
    pub fn display(&self) -> String {
        let name = self.pod_name.as_ref().unwrap_or(&self.name);
        format!("{}/{name}", self.namespace)
    }
}
