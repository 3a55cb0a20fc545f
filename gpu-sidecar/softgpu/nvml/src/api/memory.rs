//! How much device memory there is.

use crate::answer::export;
use crate::border::{Out, Versioned};
use crate::handle::Handle;
use crate::layout::{MemoryV1, MemoryV2};
use crate::session::with_device;

export! {
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<MemoryV1>) {
        with_device(device, |session, device| {
            let known = session.memory(device)?;
            memory.put(MemoryV1 {
                total: known.total,
                free: known.total - known.used,
                used: known.used,
            })
        })
    }

    /// Nothing is reserved: all of a software GPU's memory can be had.
    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<MemoryV2>) {
        with_device(device, |session, device| {
            let known = session.memory(device)?;
            memory.put_versioned(MemoryV2 {
                version: MemoryV2::VERSION,
                total: known.total,
                reserved: 0,
                free: known.total - known.used,
                used: known.used,
            })
        })
    }

    /// A window onto all of the memory: its size is the next power of two. Nothing is in it.
    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Out<MemoryV1>) {
        with_device(device, |session, device| {
            let total = session.node.memory(device).next_power_of_two();
            memory.put(MemoryV1 {
                total,
                free: total,
                used: 0,
            })
        })
    }
}
