//! Which slots there are, whether they are well, and who has how much of their memory: what NVML tells, asked each second.
//!
//! Nothing is taken from a table of products: slots are whole GPUs with MIG off and, where it is on, their MIG instances.
//! The number of SMs comes from NVML's attributes (MIG instances) or from its number of CUDA cores; the cores of an SM are
//! fixed by the compute capability. Where neither is known, percentages are taken as they are given.
//!
//! | seen | what follows |
//! |---|---|
//! | a GPU answers "lost", or is no longer there; a MIG instance is gone | its slots are lost, until they answer again |
//! | an Xid that only a program's own fault makes (13, 31, 43, 45, 68, 109) | an event |
//! | another Xid | the GPU's slots are lost until it has been gone and has come back, or the agent is started anew |
//! | NVML as a whole does not answer, three times in a row | all slots are lost; the library is opened anew |

pub(crate) mod real;
pub(crate) mod watch;

use std::time::Duration;

use crate::state::{ProcessMemory, SlotKey};

/// The whole library may fail this often in a row before all slots count as lost.
const FAILURES_MAX: u32 = 3;
/// GPUs of a node, at most; more are not looked at.
const GPUS_MAX: u32 = 64;
/// Processes of one GPU or instance, at most; more are not looked at.
const PROCESSES_MAX: usize = 4_096;

/// SMs have this many cores; `None`: not known.
const fn cores_per_sm(capability: (u32, u32)) -> Option<u32> {
    Some(match capability {
        (3, _) => 192,
        (6, 0) | (7, _) | (8, 0) => 64,
        (5 | 6 | 8 | 9 | 10 | 11 | 12, _) => 128,
        _ => return None,
    })
}

/// NVML, as far as the agent needs it.
pub(crate) trait Nvml: Send + Sync {
    /// Everything that is asked each second.
    fn survey(&self) -> Result<Survey, String>;

    /// Waits for errors of these GPUs until `told` says to end: `told(gpu's UUID, xid)`.
    fn watch_errors(&self, told: &mut dyn FnMut(Option<Xid>) -> Watch) -> Result<(), String>;
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watch {
    On,
    Off,
}

/// A GPU has reported an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xid {
    /// Whose; `None`: its UUID cannot be asked any more.
    pub(crate) gpu_uuid: Option<String>,
    /// `None`: NVML does not know it.
    pub(crate) number: Option<u64>,
}

/// The driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Driver {
    /// As `580.82.07`.
    pub version: String,
    /// The CUDA version that it supports at most, as (13, 0).
    pub cuda: Option<(u32, u32)>,
}

impl Driver {
    fn release(&self) -> Option<u32> {
        self.version.split('.').next()?.parse().ok()
    }
}

/// What NVML tells at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Survey {
    pub(crate) driver: Driver,
    pub(crate) gpus: Vec<GpuSurvey>,
    /// What could not be looked at.
    pub(crate) notes: Vec<String>,
}

/// A GPU by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuSurvey {
    pub(crate) number: u32,
    /// Or why it cannot be asked.
    pub(crate) gpu: Result<Gpu, String>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) unit: Unit,
    pub(crate) product: String,
    pub(crate) capability: Option<(u32, u32)>,
    /// MIG is on: only its instances are slots.
    pub(crate) is_mig: bool,
    pub(crate) instances: Vec<Instance>,
}

/// A MIG instance by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) number: u32,
    /// Compute slices of seven.
    pub(crate) slices: Option<u32>,
    pub(crate) unit: Unit,
}

/// Where kernels run: a whole GPU or a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) uuid: String,
    pub(crate) memory_bytes: u64,
    pub(crate) sms: Option<u32>,
    /// Pid, bytes, and whether it is an MPS client.
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

/// Client contexts that MPS allows: 48 up to CUDA 13.0, 60 with release 590 of the driver and later, 16 below compute
/// capability 7.5. The limit of a MIG instance shrinks with its compute slices of seven.
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

/// Whether an Xid is the fault of a program on the GPU, and the GPU itself goes on: 13 and 31 (illegal access), 43 and 45
/// (a program was stopped), 68 (video), 109 (a context switch timed out).
pub(crate) const fn is_of_a_program(xid: u64) -> bool {
    matches!(xid, 13 | 31 | 43 | 45 | 68 | 109)
}

/// How long a wait for errors lasts before it is looked whether to end.
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
    fn cores_are_those_of_the_capability() {
        assert_eq!(cores_per_sm((7, 0)), Some(64));
        assert_eq!(cores_per_sm((8, 6)), Some(128));
        assert_eq!(cores_per_sm((9, 0)), Some(128));
        assert_eq!(cores_per_sm((99, 0)), None);
    }
}
