//! Initialization, versions, and system queries.

use std::ffi::c_char;

use crate::answer::{Return, export};
use crate::handle::{Handle, Object};
use crate::layout::{DriverBranch, text};
use crate::pointer::{Out, Slots, TextOut};
use crate::session;

pub(super) const DRIVER: &str = "580.82.07";
/// CUDA driver version 13000, which stands for 13.0.
const CUDA: i32 = 13_000;

export! {
    fn nvmlInit() {
        session::open()
    }

    fn nvmlInit_v2() {
        session::open()
    }

    /// Implements `nvmlInitWithFlags`: initializes the library. The flags, which permit missing GPUs, are ignored, since none is
    /// ever missing.
    fn nvmlInitWithFlags(_flags: u32) {
        session::open()
    }

    fn nvmlShutdown() {
        session::close()
    }

    fn nvmlSystemGetDriverVersion(version: TextOut, length: u32) {
        session::with(|_| version.put(length, DRIVER))
    }

    fn nvmlSystemGetNVMLVersion(version: TextOut, length: u32) {
        session::with(|_| version.put(length, &format!("{}.{DRIVER}", CUDA / 1_000)))
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) {
        session::with(|_| version.put(CUDA))
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        session::with(|_| version.put(CUDA))
    }

    fn nvmlSystemGetDriverBranch(branch: Out<DriverBranch>, _length: u32) {
        let value = DriverBranch {
            version: <DriverBranch as crate::pointer::Versioned>::VERSION,
            branch: text("r580_00"),
        };
        session::with(|_| branch.put_versioned(value))
    }

    /// Writes the process's command, truncated to the given length.
    fn nvmlSystemGetProcessName(pid: u32, name: TextOut, length: u32) {
        session::with(|_| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline"));
            let line = line.map_err(|_| Return::NOT_FOUND)?;
            let command = line.split(|&byte| byte == 0).next().unwrap_or_default();
            name.put_start(length, &String::from_utf8_lossy(command))
        })
    }

    /// Returns 0: there are no host interface cards.
    fn nvmlSystemGetHicVersion(count: Out<u32>, _entries: Slots<u64>) {
        session::with(|_| count.put(0))
    }

    /// Returns 0: there are no S-class units.
    fn nvmlUnitGetCount(count: Out<u32>) {
        session::with(|_| count.put(0))
    }

    /// Returns 0: no device is excluded.
    fn nvmlGetExcludedDeviceCount(count: Out<u32>) {
        session::with(|_| count.put(0))
    }

    /// Returns all GPUs, because every GPU is local to every CPU.
    fn nvmlSystemGetTopologyGpuSet(_cpu: u32, count: Out<u32>, devices: Slots<Handle>) {
        session::with(|session| {
            let all = 0..session.node.gpus();
            let all: Vec<_> = all.map(|gpu| Object::Gpu(gpu).into()).collect();
            super::put_up_to(count, devices, &all)
        })
    }
}

/// Returns the description of a result code; works before initialization as well.
#[allow(unsafe_code, non_snake_case, reason = "it is called by this name")]
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: Return) -> *const c_char {
    result.text().as_ptr()
}
