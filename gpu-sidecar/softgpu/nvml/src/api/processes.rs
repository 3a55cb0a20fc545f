//! Processes that run on a device.

use softgpu_wire::message::ProcessLine;

use crate::answer::{Answer, export};
use crate::handle::Handle;
use crate::layout::{Process, ProcessV1};
use crate::node::Node;
use crate::pointer::{Out, Slots};
use crate::session::{with_device, with_gpu};

/// Instance id of a process that runs on a whole GPU.
const NO_INSTANCE: u32 = u32::MAX;

fn process(node: &Node, at: usize, line: &ProcessLine) -> Process {
    let gpu_instance = super::mig::instance_id(node, at);
    Process {
        pid: line.pid,
        usedGpuMemory: line.memory,
        gpuInstanceId: gpu_instance.unwrap_or(NO_INSTANCE),
        computeInstanceId: gpu_instance.map_or(NO_INSTANCE, |_| super::mig::COMPUTE_INSTANCE),
    }
}

/// Lists the processes of a device, or only the clients of MPS servers; for a sliced GPU, those of all slices.
fn list<T: Copy>(
    device: Handle,
    count: Out<u32>,
    slots: Slots<T>,
    only_mps: bool,
    form: impl Fn(Process) -> T,
) -> Answer {
    with_device(device, |session, device| {
        let lines = session.processes(device)?;
        let own = lines.iter().filter(|(_, line)| !only_mps || line.mps != 0);
        let all: Vec<_> = own
            .map(|(at, line)| form(process(&session.node, *at, line)))
            .collect();
        slots.put_counted(count, &all)
    })
}

const fn short(process: Process) -> ProcessV1 {
    ProcessV1 {
        pid: process.pid,
        usedGpuMemory: process.usedGpuMemory,
    }
}

/// Writes 0: no process uses graphics.
fn none(device: Handle, count: Out<u32>) -> Answer {
    with_device(device, |_, _| count.put(0))
}

export! {
    fn nvmlDeviceGetComputeRunningProcesses(
        device: Handle,
        count: Out<u32>,
        slots: Slots<ProcessV1>,
    ) {
        list(device, count, slots, false, short)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: Handle,
        count: Out<u32>,
        slots: Slots<Process>,
    ) {
        list(device, count, slots, false, |process| process)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: Handle,
        count: Out<u32>,
        slots: Slots<Process>,
    ) {
        list(device, count, slots, false, |process| process)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: Handle,
        count: Out<u32>,
        slots: Slots<ProcessV1>,
    ) {
        list(device, count, slots, true, short)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: Handle,
        count: Out<u32>,
        slots: Slots<Process>,
    ) {
        list(device, count, slots, true, |process| process)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: Handle,
        count: Out<u32>,
        slots: Slots<Process>,
    ) {
        list(device, count, slots, true, |process| process)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: Handle,
        count: Out<u32>,
        _slots: Slots<ProcessV1>,
    ) {
        none(device, count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: Handle,
        count: Out<u32>,
        _slots: Slots<Process>,
    ) {
        none(device, count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: Handle,
        count: Out<u32>,
        _slots: Slots<Process>,
    ) {
        none(device, count)
    }

    /// Returns 0: accounting is disabled and cannot be enabled.
    fn nvmlDeviceGetAccountingMode(device: Handle, mode: Out<u32>) {
        with_gpu(device, |_, _| mode.put(0))
    }
}
