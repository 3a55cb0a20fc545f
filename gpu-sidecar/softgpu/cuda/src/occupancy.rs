//! What a block occupies of an SM, and how many an SM runs at once (CUDA C++ Programming Guide, "Compute Capabilities").

use crate::device::shared_of_an_sm;
use crate::driver::Device;

/// Largest number of threads of a block.
pub(crate) const THREADS_OF_A_BLOCK: u32 = 1024;
/// Largest number of threads an SM runs at once.
pub(crate) const THREADS_OF_AN_SM: u32 = 2048;
/// Largest number of blocks an SM runs at once.
pub(crate) const BLOCKS_OF_AN_SM: u32 = 32;
/// Registers of an SM, and the most that a block may have.
pub(crate) const REGISTERS_OF_AN_SM: u32 = 65_536;
/// Most registers of a thread.
pub(crate) const REGISTERS_OF_A_THREAD: u32 = 255;
/// Registers are given to a warp in units of this many.
const REGISTER_UNIT: u32 = 256;
/// Warps are given registers in units of this many.
const WARP_UNIT: u32 = 4;
const THREADS_OF_A_WARP: u32 = 32;

/// Returns the shared memory that the system reserves of each block, in bytes.
pub(crate) const fn reserved_shared_memory(device: &Device) -> u32 {
    if device.part.compute_capability[0] >= 8 {
        1 << 10
    } else {
        0
    }
}

/// What a block occupies of an SM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resources {
    pub(crate) threads: u32,
    /// Registers of a thread; 0: they limit nothing.
    pub(crate) registers: u32,
    /// Shared memory, static and dynamic, in bytes; 0: it limits nothing.
    pub(crate) shared_bytes: u32,
}

/// Returns the number of warps for which an SM has registers.
fn warps_by_registers(registers: u32) -> u32 {
    let registers = registers.clamp(1, REGISTERS_OF_A_THREAD);
    let of_a_warp = (registers * THREADS_OF_A_WARP).next_multiple_of(REGISTER_UNIT);
    REGISTERS_OF_AN_SM / of_a_warp / WARP_UNIT * WARP_UNIT
}

/// Returns the most threads of a block for which an SM has registers.
pub(crate) fn threads_by_registers(registers: u32) -> u32 {
    (warps_by_registers(registers) * THREADS_OF_A_WARP).min(THREADS_OF_A_BLOCK)
}

impl Resources {
    /// Returns the number of blocks that an SM runs at once; 0 if a block does not fit.
    pub(crate) fn blocks_on_an_sm(&self, device: &Device) -> u32 {
        let warps = self.threads.max(1).div_ceil(THREADS_OF_A_WARP);
        let by_threads = THREADS_OF_AN_SM / (warps * THREADS_OF_A_WARP);
        let mut blocks = by_threads.min(BLOCKS_OF_AN_SM);
        if self.registers > 0 {
            blocks = blocks.min(warps_by_registers(self.registers) / warps);
        }
        if self.shared_bytes > 0 {
            let of_a_block = (self.shared_bytes).saturating_add(reserved_shared_memory(device));
            blocks = blocks.min(shared_of_an_sm(device) / of_a_block);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use device::part::Part;

    use super::*;

    fn device(part: &str) -> Device {
        let part = Part::named(part).unwrap();
        Device {
            unit: 0,
            gpu: 0,
            uuid: [0; 16],
            name: part.name.clone(),
            sms: part.sms,
            memory: 0,
            part,
            is_slice: false,
            memory_rate: 1,
        }
    }

    #[test]
    fn threads_registers_and_shared_memory_bound_the_blocks_of_an_sm() {
        let blocks = |part: &str, threads, registers, shared_bytes| {
            let resources = Resources {
                threads,
                registers,
                shared_bytes,
            };
            resources.blocks_on_an_sm(&device(part))
        };
        assert_eq!(blocks("H100", 1, 0, 0), 32);
        assert_eq!(blocks("H100", 1024, 0, 0), 2);
        assert_eq!(blocks("H100", 1000, 0, 0), 2);
        // 40 registers: 1,280 a warp, 51 warps, of which whole units of 4.
        assert_eq!(blocks("H100", 256, 40, 0), 6);
        assert_eq!(blocks("H100", 1024, 40, 0), 1);
        assert_eq!(blocks("H100", 1024, 128, 0), 0);
        assert_eq!(blocks("H100", 512, 128, 0), 1);
        assert_eq!(blocks("H100", 32, u32::MAX, 0), 8);
        // 1 KiB more of each block since compute capability 8.0.
        assert_eq!(blocks("H100", 32, 0, 48 << 10), 4);
        assert_eq!(blocks("V100", 32, 0, 48 << 10), 2);
        assert_eq!(blocks("V100", 32, 0, (48 << 10) + 1), 1);
        assert_eq!(blocks("H100", 32, 0, u32::MAX), 0);
        assert_eq!(threads_by_registers(32), 1024);
        assert_eq!(threads_by_registers(128), 512);
        assert_eq!(threads_by_registers(u32::MAX), 256);
    }
}
