//! Exported functions for initialization, devices, and checkpoints.

use std::ffi::{c_char, c_void};

use crate::checkpoint::{self, LockArguments};
use crate::device::{self, Properties, Uuid};
use crate::error::{self, Error, Result};
use crate::pointer::{In, Out, Text};
use crate::{driver, refusal, resolver};

use super::functions;

functions! { TABLE:
    fn cuInit(flags: u32) = driver::init(flags);
    fn cuDriverGetVersion(out: Out<i32>) = out.put(device::VERSION);
    fn cuGetErrorName(code: u32, out: Out<*const c_char>) = error_text(code, out, |line| line.1.as_ptr());
    fn cuGetErrorString(code: u32, out: Out<*const c_char>) = error_text(code, out, |line| line.2.as_ptr());
    fn cuGetProcAddress(name: Text, out: Out<*const c_void>, version: i32, flags: u64) = resolver::get(name, out, version, flags, false);
    fn cuGetProcAddress_ptsz(name: Text, out: Out<*const c_void>, version: i32, flags: u64) = resolver::get(name, out, version, flags, true);
    fn cuGetProcAddress_v2(name: Text, out: Out<*const c_void>, version: i32, flags: u64, status: Out<u32>) = resolver::get_v2(name, out, version, flags, status, false);
    fn cuGetProcAddress_v2_ptsz(name: Text, out: Out<*const c_void>, version: i32, flags: u64, status: Out<u32>) = resolver::get_v2(name, out, version, flags, status, true);
    fn cuGetExportTable(out: Out<*const c_void>, _id: *const c_void) = refusal::export_table(out);
    fn cuDeviceGet(out: Out<i32>, ordinal: i32) = device::get(out, ordinal);
    fn cuDeviceGetCount(out: Out<i32>) = device::count(out);
    fn cuDeviceGetName(to: Out<c_char>, bytes: i32, ordinal: i32) = device::name(to, bytes, ordinal);
    fn cuDeviceGetUuid(out: Out<Uuid>, ordinal: i32) = device::uuid(out, ordinal);
    fn cuDeviceGetUuid_v2(out: Out<Uuid>, ordinal: i32) = device::uuid(out, ordinal);
    fn cuDeviceTotalMem(out: Out<u32>, ordinal: i32) = device::total_memory_short(out, ordinal);
    fn cuDeviceTotalMem_v2(out: Out<usize>, ordinal: i32) = device::total_memory(out, ordinal);
    fn cuDeviceGetAttribute(out: Out<i32>, attribute: u32, ordinal: i32) = device::attribute(out, attribute, ordinal);
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, ordinal: i32) = device::compute_capability(major, minor, ordinal);
    fn cuDeviceGetProperties(out: Out<Properties>, ordinal: i32) = device::properties(out, ordinal);
    fn cuDeviceGetPCIBusId(to: Out<c_char>, bytes: i32, ordinal: i32) = device::bus_id(to, bytes, ordinal);
    fn cuDeviceGetByPCIBusId(out: Out<i32>, text: Text) = device::by_bus_id(out, text);
    fn cuDeviceCanAccessPeer(out: Out<i32>, one: i32, other: i32) = device::peer_access(out, one, other);
    fn cuDeviceGetP2PAttribute(out: Out<i32>, attribute: u32, one: i32, other: i32) = device::peer_attribute(out, attribute, one, other);
    fn cuDeviceGetExecAffinitySupport(out: Out<i32>, kind: u32, ordinal: i32) = device::affinity_support(out, kind, ordinal);
    fn cuProfilerStart() = driver::driver().map(|_| ());
    fn cuProfilerStop() = driver::driver().map(|_| ());
    fn cuCheckpointProcessGetState(pid: i32, out: Out<u32>) = checkpoint::state(pid, out);
    fn cuCheckpointProcessLock(pid: i32, arguments: In<LockArguments>) = checkpoint::lock(pid, arguments);
    fn cuCheckpointProcessCheckpoint(pid: i32, _arguments: *const c_void) = checkpoint::checkpoint(pid);
    fn cuCheckpointProcessRestore(pid: i32, _arguments: *const c_void) = checkpoint::restore(pid);
    fn cuCheckpointProcessUnlock(pid: i32, _arguments: *const c_void) = checkpoint::unlock(pid);
}

type Line = (u32, &'static std::ffi::CStr, &'static std::ffi::CStr);

fn error_text(
    code: u32,
    out: Out<*const c_char>,
    text: impl FnOnce(&Line) -> *const c_char,
) -> Result {
    match error::line(code) {
        Some(line) => out.put(text(line)),
        None => {
            out.put(std::ptr::null())?;
            Err(Error::INVALID_VALUE)
        }
    }
}
