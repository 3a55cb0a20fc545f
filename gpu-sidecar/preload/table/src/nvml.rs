//! The functions of NVML that the preload library stands before.

use std::ffi::CStr;

/// Those that say how much memory there is and which processes have some of it, by name.
///
/// What they say has to agree with what the driver says through the preload library, or a program that plans its memory by one
/// of the two and takes it by the other goes wrong.
pub static NVML: [&CStr; 14] = [
    c"nvmlDeviceGetComputeRunningProcesses",
    c"nvmlDeviceGetComputeRunningProcesses_v2",
    c"nvmlDeviceGetComputeRunningProcesses_v3",
    c"nvmlDeviceGetGraphicsRunningProcesses",
    c"nvmlDeviceGetGraphicsRunningProcesses_v2",
    c"nvmlDeviceGetGraphicsRunningProcesses_v3",
    c"nvmlDeviceGetMPSComputeRunningProcesses",
    c"nvmlDeviceGetMPSComputeRunningProcesses_v2",
    c"nvmlDeviceGetMPSComputeRunningProcesses_v3",
    c"nvmlDeviceGetMemoryInfo",
    c"nvmlDeviceGetMemoryInfo_v2",
    c"nvmlDeviceGetProcessUtilization",
    c"nvmlDeviceGetProcessesUtilizationInfo",
    c"nvmlDeviceGetRunningProcessDetailList",
];

/// The place in [`NVML`] of a name.
pub fn nvml(name: &[u8]) -> Option<usize> {
    NVML.binary_search_by(|one| one.to_bytes().cmp(name)).ok()
}
