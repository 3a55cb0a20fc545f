//! Amounts of device memory.

use crate::answer::export;
use crate::handle::Handle;
use crate::layout::{Bar1Memory, Memory, MemoryV2};
use crate::pointer::{Out, Versioned};
use crate::session::with_device;

export! {
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<Memory>) {
        with_device(device, |session, device| {
            let known = session.memory(device)?;
            memory.put(Memory {
                total: known.total,
                free: known.total - known.used,
                used: known.used,
            })
        })
    }

    /// Returns 0 reserved bytes: a software GPU's whole memory can be allocated.
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

    /// Returns a window onto the whole memory, rounded up to a power of two, always empty.
    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Out<Bar1Memory>) {
        with_device(device, |session, device| {
            let total = session.node.memory(device).next_power_of_two();
            memory.put(Bar1Memory {
                bar1Total: total,
                bar1Free: total,
                bar1Used: 0,
            })
        })
    }
}
