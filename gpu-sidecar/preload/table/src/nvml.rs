//! Functions of NVML that the preload library intercepts.

use std::ffi::CStr;

/// NVML functions that report the amount of memory or the processes that hold some, sorted by name.
///
/// Their results must agree with the driver's as reported through the preload library: a program may size its allocations by one
/// and allocate through the other.
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

/// Returns the index of a name in [`NVML`]; `None` if it is not intercepted.
pub fn nvml(name: &[u8]) -> Option<usize> {
    NVML.binary_search_by(|one| one.to_bytes().cmp(name)).ok()
}
