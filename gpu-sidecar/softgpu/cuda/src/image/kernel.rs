//! Description of a kernel, as its image states it.

use crate::occupancy::{THREADS_OF_A_BLOCK, threads_by_registers};

/// A kernel of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelInfo {
    pub(crate) name: String,
    /// Layout of the parameter buffer.
    pub(crate) parameters: Vec<kernels::Parameter>,
    /// Registers of a thread; an assumption ([`REGISTERS`]) for PTX, which is not compiled.
    pub(crate) registers: u32,
    /// Static shared memory of a block, in bytes.
    pub(crate) shared_bytes: u32,
    /// Local memory of a thread, in bytes.
    pub(crate) local_bytes: u32,
    /// Largest number of threads of a block, by the image's bound and by registers.
    pub(crate) threads_max: u32,
    /// Architecture of the code, for example 90 for `sm_90` or `compute_90`.
    pub(crate) architecture: u32,
}

/// Registers of a thread where the image does not state them.
pub(crate) const REGISTERS: u32 = 32;
/// Largest size of a kernel's parameters, in bytes: that of CUDA 12.1 and later.
pub(crate) const PARAMETERS_MAX: usize = 32_764;

impl KernelInfo {
    /// Returns a kernel without parameters, with assumed resources.
    pub(crate) fn new(name: &str, architecture: u32) -> Self {
        Self {
            name: name.to_owned(),
            parameters: Vec::new(),
            registers: REGISTERS,
            shared_bytes: 0,
            local_bytes: 0,
            threads_max: THREADS_OF_A_BLOCK,
            architecture,
        }
    }

    /// Lowers the largest number of threads to that for which an SM has registers.
    pub(super) fn bound_threads(&mut self) {
        self.threads_max = self.threads_max.min(threads_by_registers(self.registers));
    }

    /// Returns the size of the parameter buffer, in bytes.
    pub(crate) fn parameter_bytes(&self) -> usize {
        let ends = self.parameters.iter().map(|own| own.offset + own.size);
        ends.max().unwrap_or(0)
    }
}
