//! Slots: GPUs and MIG instances as the agent found them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::SlotKind;

/// Number of a slot, from 0. A slot that is lost and comes back keeps its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotKey(pub u32);

/// Identity of the MIG instance of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// UUID of the GPU that contains the instance.
    pub parent_uuid: String,
    /// Index among the MIG devices of the GPU.
    pub number: u32,
    /// IDs of the GPU instance and the compute instance; `None` where the UUID does not contain them.
    pub instances: Option<(u32, u32)>,
    /// Number of compute slices, 1 to [`SLICES_OF_GPU`]; `None` where NVML does not report it.
    pub slices: Option<u32>,
}

/// Number of compute slices into which MIG divides a GPU.
pub const SLICES_OF_GPU: u32 = 7;

/// A schedulable device: a whole GPU or a MIG instance, as reported by NVML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Key of this slot in commands and figures.
    pub key: SlotKey,
    /// Short name for operators: `0` is the first GPU, `0:1` its second MIG instance.
    pub name: String,
    /// UUID reported by NVML, `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// Product name reported by NVML.
    pub product: String,
    /// Number of the path to the host's memory: slots with the same one share it, as those behind one PCIe switch.
    #[serde(default)]
    pub host_path: u32,
    /// NUMA nodes that are nearest to the GPU, ascending: copies of its memory are made there. Empty: anywhere.
    #[serde(default)]
    pub numa_nodes: Vec<u32>,
    /// Sharing mode, as configured.
    pub kind: SlotKind,
    /// Number of SMs; where `None`, percentages are used as they are given.
    pub sms: Option<u32>,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// CUDA compute capability as (major, minor), where it is known.
    pub compute_capability: Option<(u32, u32)>,
    /// Maximum number of client contexts which MPS allows on the slot.
    pub client_limit: u32,
    /// Maximum number of pods placed on the slot.
    pub seats: u32,
    /// Device memory taken by each process's context, in bytes, as configured; `None` when each process measures it.
    pub context_residue: Option<u64>,
    /// Largest sum of device memory of the models on an exclusive slot at a time, in bytes, as configured; `None`: what contexts leave.
    #[serde(default)]
    pub models_memory: Option<u64>,
    /// Pipe directory of the slot's MPS daemon; `None` on exclusive slots.
    pub mps_pipe: Option<PathBuf>,
    /// MIG instance; `None` for a whole GPU.
    pub mig: Option<MigInstance>,
}

impl Slot {
    /// Returns the UUID of the GPU: its own, or that of the GPU that contains the MIG instance.
    #[must_use]
    pub fn gpu_uuid(&self) -> &str {
        self.mig.as_ref().map_or(&self.uuid, |mig| &mig.parent_uuid)
    }

    /// Returns the number of compute slices, of [`SLICES_OF_GPU`]; `None` when NVML does not report those of the instance.
    #[must_use]
    pub fn slices(&self) -> Option<u32> {
        let of_instance = |mig: &MigInstance| mig.slices;
        self.mig.as_ref().map_or(Some(SLICES_OF_GPU), of_instance)
    }

    /// Returns the 16 bytes of the UUID in the driver API's form; `None` when it has another form, as UUIDs of MIG instances of
    /// old drivers have.
    #[must_use]
    pub fn uuid_bytes(&self) -> Option<[u8; 16]> {
        let digits = self
            .uuid
            .strip_prefix("GPU-")
            .or_else(|| self.uuid.strip_prefix("MIG-"))?;
        let mut bytes = [0_u8; 16];
        let mut count = 0;
        for digit in digits.chars().filter(|digit| *digit != '-') {
            let value = u8::try_from(digit.to_digit(16)?).ok()?;
            let byte = bytes.get_mut(count / 2)?;
            *byte = *byte << 4 | value;
            count += 1;
        }
        (count == 32).then_some(bytes)
    }
}
