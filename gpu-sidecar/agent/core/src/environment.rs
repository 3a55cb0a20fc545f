//! The environment that makes a pod's processes MPS clients.

use std::path::PathBuf;

use annotations::SM_WHOLE;
use serde::Serialize;

use crate::{PodSettings, Slot};

/// Environment that makes a pod's processes MPS clients. The protocol's `Welcome` and the control API contain the same values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MpsEnvironment {
    /// Value of `CUDA_MPS_PIPE_DIRECTORY`, the pipe directory of the slot's daemon.
    pub pipe_directory: PathBuf,
    /// Value of `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, the share of the SMs, in hundredths of a percent.
    pub active_thread_hundredths: u32,
    /// Value of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, in bytes; `None` without a limit.
    pub pinned_memory_bytes: Option<u64>,
}

impl MpsEnvironment {
    /// Returns the environment of a pod on a slot; `None` when the slot is not shared by MPS.
    #[must_use]
    pub fn of(slot: &Slot, settings: &PodSettings) -> Option<Self> {
        let pipe_directory = slot.mps_pipe.clone()?;
        // Compute capabilities below 7.0 have no percentages.
        let has_percentages = slot.compute_capability.is_none_or(|own| own >= (7, 0));
        Some(Self {
            pipe_directory,
            active_thread_hundredths: if has_percentages {
                settings.sm_hundredths
            } else {
                SM_WHOLE
            },
            // A tenth above the limit that the preload library enforces to the byte, since the context itself counts here too.
            pinned_memory_bytes: settings.gpu_memory.map(|limit| {
                let mib = 1_u64 << 20;
                limit
                    .saturating_add(limit / 10)
                    .div_ceil(mib)
                    .saturating_mul(mib)
            }),
        })
    }
}
