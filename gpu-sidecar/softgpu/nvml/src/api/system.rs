//! Initialisation, versions, and what is asked of the system.

use std::ffi::c_char;

use crate::answer::{Return, export};
use crate::border::{Out, Slots, TextOut};
use crate::handle::{Handle, Thing};
use crate::layout::{DriverBranch, text};
use crate::session;

pub(super) const DRIVER: &str = "580.82.07";
/// 13.0.
const CUDA: i32 = 13_000;

export! {
    fn nvmlInit() {
        session::open()
    }

    fn nvmlInit_v2() {
        session::open()
    }

    /// The flags say what may be missing; nothing here ever is.
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
            version: <DriverBranch as crate::border::Versioned>::VERSION,
            branch: text("r580_00"),
        };
        session::with(|_| branch.put_versioned(value))
    }

    /// As much of its command as there is room for.
    fn nvmlSystemGetProcessName(pid: u32, name: TextOut, length: u32) {
        session::with(|_| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline"));
            let line = line.map_err(|_| Return::NOT_FOUND)?;
            let command = line.split(|&byte| byte == 0).next().unwrap_or_default();
            name.put_start(length, &String::from_utf8_lossy(command))
        })
    }

    /// There are none.
    fn nvmlSystemGetHicVersion(count: Out<u32>, _entries: Slots<u64>) {
        session::with(|_| count.put(0))
    }

    /// There are none.
    fn nvmlUnitGetCount(count: Out<u32>) {
        session::with(|_| count.put(0))
    }

    /// There are none.
    fn nvmlGetExcludedDeviceCount(count: Out<u32>) {
        session::with(|_| count.put(0))
    }

    /// Every GPU is near every CPU.
    fn nvmlSystemGetTopologyGpuSet(_cpu: u32, count: Out<u32>, devices: Slots<Handle>) {
        session::with(|session| {
            let all = 0..session.node.gpus();
            let all: Vec<_> = all.map(|gpu| Thing::Gpu(gpu).into()).collect();
            super::put_up_to(count, devices, &all)
        })
    }
}

/// A result in words; before initialisation, too.
#[allow(unsafe_code, non_snake_case, reason = "it is called by this name")]
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: Return) -> *const c_char {
    result.text().as_ptr()
}
