//! Properties and modes of a GPU's board.

use super::system::DRIVER;
use crate::answer::{Answer, Return, export};
use crate::handle::Handle;
use crate::node::Device;
use crate::pointer::{Out, Slots, TextOut};
use crate::session::{with_device, with_gpu};

/// Writes a property of the GPU, which its MIG devices share.
fn shared<T: Copy>(
    handle: Handle,
    out: Out<T>,
    fact: impl FnOnce(&crate::node::Node, usize) -> T,
) -> Answer {
    with_device(handle, |session, device| {
        let gpu = session.node.gpu_of(device);
        out.put(fact(&session.node, gpu))
    })
}

/// Writes a value that is the same for all GPUs.
pub(super) fn fixed<T: Copy>(handle: Handle, out: Out<T>, value: T) -> Answer {
    with_gpu(handle, |_, _| out.put(value))
}

/// Writes the CPUs on which this process may run, as a bit mask.
fn cpus(room: u32, set: Slots<u64>) -> Answer {
    if room == 0 {
        return Err(Return::INVALID_ARGUMENT);
    }
    let own = rustix::thread::sched_getaffinity(None).map_err(|_| Return::UNKNOWN)?;
    let mut words = vec![0; room as usize];
    for (at, word) in words.iter_mut().enumerate() {
        for bit in (0..64).filter(|bit| own.is_set(at * 64 + bit)) {
            *word |= 1 << bit;
        }
    }
    set.put_all(&words)
}

export! {
    fn nvmlDeviceGetBrand(device: Handle, brand: Out<u32>) {
        shared(device, brand, |node, gpu| node.facts(gpu).brand)
    }

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: Out<u32>) {
        shared(device, architecture, |node, gpu| node.facts(gpu).architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<i32>, minor: Out<i32>) {
        let number = |number: u32| i32::try_from(number).unwrap_or_default();
        shared(device, major, |node, gpu| number(node.part(gpu).compute_capability[0]))?;
        shared(device, minor, |node, gpu| number(node.part(gpu).compute_capability[1]))
    }

    fn nvmlDeviceGetNumGpuCores(device: Handle, cores: Out<u32>) {
        with_device(device, |session, device| {
            let gpu = session.node.gpu_of(device);
            let sms = match device {
                Device::Gpu(gpu) => session.node.part(gpu).sms,
                Device::Slice(at) => session.node.unit(at).sms,
            };
            cores.put(sms * session.node.facts(gpu).cores_per_sm)
        })
    }

    fn nvmlDeviceGetMemoryBusWidth(device: Handle, bits: Out<u32>) {
        with_gpu(device, |session, gpu| bits.put(session.node.facts(gpu).memory_bus_bits))
    }

    fn nvmlDeviceGetBoardPartNumber(device: Handle, part: TextOut, length: u32) {
        with_gpu(device, |session, gpu| {
            part.put(length, &format!("SOFTGPU-{}", session.node.part(gpu).name))
        })
    }

    fn nvmlDeviceGetVbiosVersion(device: Handle, version: TextOut, length: u32) {
        with_gpu(device, |session, gpu| {
            let architecture = session.node.facts(gpu).architecture;
            version.put(length, &format!("{architecture:02X}.00.00.00.00"))
        })
    }

    fn nvmlDeviceGetInforomImageVersion(device: Handle, version: TextOut, length: u32) {
        with_gpu(device, |session, gpu| {
            version.put(length, &format!("SOFT.{}.00.01", session.node.part(gpu).name))
        })
    }

    fn nvmlDeviceGetGspFirmwareVersion(device: Handle, version: TextOut) {
        // The interface passes no length; it guarantees 64 bytes.
        with_gpu(device, |_, _| version.put(64, DRIVER))
    }

    fn nvmlDeviceGetGspFirmwareMode(device: Handle, is_on: Out<u32>, default: Out<u32>) {
        fixed(device, is_on, 1)?;
        fixed(device, default, 1)
    }

    fn nvmlDeviceGetBoardId(device: Handle, id: Out<u32>) {
        with_gpu(device, |_, gpu| {
            let (_, bus, _) = softgpu_wire::identity::Identity::pci(gpu);
            id.put(bus << 8)
        })
    }

    fn nvmlDeviceGetMultiGpuBoard(device: Handle, is_multi: Out<u32>) {
        fixed(device, is_multi, 0)
    }

    fn nvmlDeviceOnSameBoard(one: Handle, other: Handle, is_same: Out<i32>) {
        with_gpu(one, |session, one| match session.device(other)? {
            Device::Gpu(other) => is_same.put((one == other).into()),
            Device::Slice(_) => Err(Return::NOT_SUPPORTED),
        })
    }

    /// Returns 2, PCI Express.
    fn nvmlDeviceGetBusType(device: Handle, kind: Out<u32>) {
        fixed(device, kind, 2)
    }

    /// Returns 0, mains power.
    fn nvmlDeviceGetPowerSource(device: Handle, source: Out<u32>) {
        fixed(device, source, 0)
    }

    /// Returns 0, no virtualization.
    fn nvmlDeviceGetVirtualizationMode(device: Handle, mode: Out<u32>) {
        fixed(device, mode, 0)
    }

    fn nvmlDeviceGetDisplayMode(device: Handle, is_on: Out<u32>) {
        fixed(device, is_on, 0)
    }

    fn nvmlDeviceGetDisplayActive(device: Handle, is_on: Out<u32>) {
        fixed(device, is_on, 0)
    }

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<u32>) {
        with_gpu(device, |session, gpu| mode.put(session.settings(gpu).is_persistent))
    }

    /// Stores the mode in this process only.
    fn nvmlDeviceSetPersistenceMode(device: Handle, mode: u32) {
        with_gpu(device, |session, gpu| {
            if mode > 1 {
                return Err(Return::INVALID_ARGUMENT);
            }
            session.settings(gpu).is_persistent = mode;
            Ok(())
        })
    }

    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<u32>) {
        with_gpu(device, |session, gpu| mode.put(session.settings(gpu).compute_mode))
    }

    /// Stores the mode in this process only; it does not restrict other processes.
    fn nvmlDeviceSetComputeMode(device: Handle, mode: u32) {
        with_gpu(device, |session, gpu| match mode {
            0 | 2 | 3 => {
                session.settings(gpu).compute_mode = mode;
                Ok(())
            }
            // The vendor no longer supports the mode exclusive to a thread either.
            1 => Err(Return::NOT_SUPPORTED),
            _ => Err(Return::INVALID_ARGUMENT),
        })
    }

    /// Returns unrestricted for clocks, although none can be set.
    fn nvmlDeviceGetAPIRestriction(device: Handle, api: u32, is_restricted: Out<u32>) {
        if api > 1 {
            return Err(Return::INVALID_ARGUMENT);
        }
        fixed(device, is_restricted, 0)
    }

    /// Returns all CPUs this process may run on, because every GPU is local to every CPU.
    fn nvmlDeviceGetCpuAffinity(device: Handle, room: u32, set: Slots<u64>) {
        with_gpu(device, |_, _| cpus(room, set))
    }

    /// Ignores the scope: returns all CPUs this process may run on.
    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: Handle,
        room: u32,
        set: Slots<u64>,
        _scope: u32,
    ) {
        with_gpu(device, |_, _| cpus(room, set))
    }

    /// Returns the first NUMA node.
    fn nvmlDeviceGetMemoryAffinity(device: Handle, room: u32, set: Slots<u64>, _scope: u32) {
        with_gpu(device, |_, _| {
            if room == 0 {
                return Err(Return::INVALID_ARGUMENT);
            }
            let mut words = vec![0; room as usize];
            words[0] = 1;
            set.put_all(&words)
        })
    }

    fn nvmlDeviceGetNumaNodeId(device: Handle, node: Out<u32>) {
        fixed(device, node, 0)
    }
}
