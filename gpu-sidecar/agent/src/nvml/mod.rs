//! Discovery, health and memory use of slots: NVML, polled each second.
//!
//! No table of products is used: slots are whole GPUs with MIG off and, where it is on, their MIG instances. The number of SMs
//! comes from NVML's attributes (MIG instances) or from its number of CUDA cores; the cores of an SM are fixed by the compute
//! capability. Where neither is known, percentages are used as they are given.
//!
//! | observation | consequence |
//! |---|---|
//! | a GPU reports "lost", or is no longer listed; a MIG instance is gone | its slots are lost until they answer again |
//! | an Xid caused only by a program's own fault (13, 31, 43, 45, 68, 109) | an event |
//! | another Xid | the GPU's slots are lost until it has disappeared and reappeared, or the agent is restarted |
//! | NVML as a whole fails, three times in a row | all slots are lost; the library is opened again |

pub(crate) mod real;
pub(crate) mod watch;

use std::time::Duration;

use crate::state::{ProcessMemory, SlotKey};

/// Number of consecutive failures of the library after which all slots count as lost.
const FAILURES_MAX: u32 = 3;
/// Maximum number of GPUs of a node; further ones are ignored.
const GPUS_MAX: u32 = 64;
/// Maximum number of processes of one GPU or instance; further ones are ignored.
const PROCESSES_MAX: usize = 4_096;

/// Returns the number of CUDA cores per SM; `None` for an unknown compute capability.
const fn cores_per_sm(capability: (u32, u32)) -> Option<u32> {
    Some(match capability {
        (3, _) => 192,
        (6, 0) | (7, _) | (8, 0) => 64,
        (5 | 6 | 8 | 9 | 10 | 11 | 12, _) => 128,
        _ => return None,
    })
}

/// The part of NVML that the agent uses.
pub(crate) trait Nvml: Send + Sync {
    /// Returns the state of all GPUs, as polled each second.
    fn survey(&self) -> Result<Survey, String>;

    /// Waits for GPU errors until `report` returns [`Watch::Off`]. Calls `report` for each error, and with `None` at least
    /// every [`WATCH_SPAN`].
    fn watch_errors(&self, report: &mut dyn FnMut(Option<Xid>) -> Watch) -> Result<(), String>;
}

/// Whether to keep waiting for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    On,
    Off,
}

/// An error reported by a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xid {
    /// UUID of the GPU; `None` when it can no longer be queried.
    pub(crate) gpu_uuid: Option<String>,
    /// Number of the Xid; `None` when NVML does not report it.
    pub(crate) number: Option<u64>,
}

/// Version of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Driver {
    /// Driver version, such as `580.82.07`.
    pub version: String,
    /// Highest supported CUDA version as (major, minor), such as (13, 0).
    pub cuda: Option<(u32, u32)>,
}

impl Driver {
    /// Returns the driver's release, such as 580.
    fn release(&self) -> Option<u32> {
        self.version.split('.').next()?.parse().ok()
    }
}

/// State of the driver and all GPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Survey {
    pub(crate) driver: Driver,
    pub(crate) gpus: Vec<GpuSurvey>,
    /// Descriptions of what could not be queried.
    pub(crate) notes: Vec<String>,
}

/// A GPU by its NVML index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuSurvey {
    pub(crate) number: u32,
    /// The GPU, or the reason why it cannot be queried.
    pub(crate) gpu: Result<Gpu, String>,
}

/// State and properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) unit: Unit,
    pub(crate) product: String,
    pub(crate) capability: Option<(u32, u32)>,
    /// Number of the first GPU which shares its path to the host's memory: its own, unless one before it is behind the same PCIe switch.
    pub(crate) host_path: u32,
    /// NUMA nodes that are nearest to it, ascending; empty where NVML reports none.
    pub(crate) numa_nodes: Vec<u32>,
    /// Whether MIG is on: only the instances are slots.
    pub(crate) is_mig: bool,
    pub(crate) instances: Vec<Instance>,
}

/// A MIG instance by its index on the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) number: u32,
    /// Number of compute slices, of seven.
    pub(crate) slices: Option<u32>,
    pub(crate) unit: Unit,
}

/// A device that runs kernels: a whole GPU or a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) uuid: String,
    pub(crate) memory_bytes: u64,
    pub(crate) sms: Option<u32>,
    /// Process ID, device memory in bytes, and whether the process is an MPS client.
    pub(crate) processes: Vec<(u32, u64, bool)>,
}

impl Unit {
    fn memory(&self, slot: SlotKey) -> impl Iterator<Item = (u32, ProcessMemory)> {
        self.processes.iter().map(move |&(pid, bytes, is_mps)| {
            let memory = ProcessMemory {
                slot,
                bytes,
                is_mps,
            };
            (pid, memory)
        })
    }
}

/// Returns the maximum number of MPS client contexts: 48 up to CUDA 13.0, 60 with release 590 of the driver and later, 16 below
/// compute capability 7.5. The limit of a MIG instance shrinks with its compute slices of seven.
pub(crate) fn client_limit(
    driver: &Driver,
    capability: Option<(u32, u32)>,
    slices: Option<u32>,
) -> u32 {
    let whole = match capability {
        Some(capability) if capability < (7, 5) => 16,
        _ if driver.release().is_some_and(|release| release >= 590) => 60,
        _ => 48,
    };
    match slices {
        Some(slices) => (whole * slices.min(7) / 7).max(1),
        None => whole,
    }
}

/// Returns whether an Xid is the fault of a program, with the GPU itself still usable: 13 and 31 (illegal access), 43 and 45 (a
/// program was stopped), 68 (video), 109 (a context switch timed out).
pub(crate) const fn is_of_a_program(xid: u64) -> bool {
    matches!(xid, 13 | 31 | 43 | 45 | 68 | 109)
}

/// Longest wait for errors before the next call of `report`.
pub(crate) const WATCH_SPAN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_limit_follows_driver_and_device() {
        let driver = |version: &str| Driver {
            version: version.to_owned(),
            cuda: None,
        };
        let old = driver("580.82.07");
        let new = driver("590.10");
        assert_eq!(client_limit(&old, Some((9, 0)), None), 48);
        assert_eq!(client_limit(&new, Some((9, 0)), None), 60);
        assert_eq!(client_limit(&new, Some((7, 0)), None), 16);
        assert_eq!(client_limit(&driver("odd"), None, None), 48);
        assert_eq!(client_limit(&old, Some((8, 0)), Some(3)), 20);
        assert_eq!(client_limit(&old, Some((8, 0)), Some(0)), 1);
    }

    #[test]
    fn cores_per_sm_follow_the_capability() {
        assert_eq!(cores_per_sm((7, 0)), Some(64));
        assert_eq!(cores_per_sm((8, 6)), Some(128));
        assert_eq!(cores_per_sm((9, 0)), Some(128));
        assert_eq!(cores_per_sm((99, 0)), None);
    }
}
