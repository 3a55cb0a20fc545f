//! Links of GPUs to the host and to each other.

use super::board::fixed;
use super::identity::pci_info;
use super::put_up_to;
use crate::answer::{Answer, Return, export};
use crate::handle::{Handle, Object};
use crate::layout::PciInfo;
use crate::node::{Device, Node};
use crate::pointer::{Out, Slots};
use crate::session::with_gpu;

/// Largest number of NVLinks of a GPU (`NVML_NVLINK_MAX_LINKS`).
const LINKS_MAX: u32 = 18;
const LANES: u32 = 16;

/// Values of `nvmlGpuTopologyLevel_t`: the GPU itself, one PCIe switch, one NUMA node.
const SELF: u32 = 0;
const SWITCH: u32 = 10;
const NUMA_NODE: u32 = 40;

fn distance(node: &Node, one: usize, other: usize) -> u32 {
    if one == other {
        SELF
    } else if node.share_switch(one, other) {
        SWITCH
    } else {
        NUMA_NODE
    }
}

/// Calls `body` with two GPUs that are not lost.
fn with_two(
    one: Handle,
    other: Handle,
    body: impl FnOnce(&Node, usize, usize) -> Answer,
) -> Answer {
    with_gpu(one, |session, one| match session.device(other)? {
        Device::Gpu(other) => {
            session.check(other)?;
            body(&session.node, one, other)
        }
        Device::Slice(_) => Err(Return::NOT_SUPPORTED),
    })
}

/// Calls `body` with an NVLink of a GPU and the GPU at its other end, if connected. Fails for a GPU without NVLinks in
/// the configuration.
fn with_link(
    device: Handle,
    link: u32,
    body: impl FnOnce(&Node, usize, Option<usize>) -> Answer,
) -> Answer {
    with_gpu(device, |session, gpu| {
        let node = &session.node;
        if link >= LINKS_MAX {
            return Err(Return::INVALID_ARGUMENT);
        }
        if node.nvlinks(gpu).next().is_none() || link >= node.facts(gpu).nvlinks {
            return Err(Return::NOT_SUPPORTED);
        }
        let other = usize::try_from(link).ok();
        let other = other.and_then(|link| node.nvlinks(gpu).nth(link));
        body(node, gpu, other)
    })
}

fn generation(device: Handle, out: Out<u32>) -> Answer {
    with_gpu(device, |session, gpu| {
        out.put(session.node.facts(gpu).pcie_generation)
    })
}

export! {
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, out: Out<u32>) {
        generation(device, out)
    }

    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Handle, out: Out<u32>) {
        generation(device, out)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, out: Out<u32>) {
        generation(device, out)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: Handle, lanes: Out<u32>) {
        fixed(device, lanes, LANES)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: Out<u32>) {
        fixed(device, lanes, LANES)
    }

    fn nvmlDeviceGetPcieSpeed(device: Handle, megabits: Out<u32>) {
        with_gpu(device, |session, gpu| {
            megabits.put(session.node.facts(gpu).pcie_megabits())
        })
    }

    /// Returns the PCIe generation, whose numbers equal those of NVML's speeds.
    fn nvmlDeviceGetPcieLinkMaxSpeed(device: Handle, speed: Out<u32>) {
        generation(device, speed)
    }

    fn nvmlDeviceGetPcieReplayCounter(device: Handle, count: Out<u32>) {
        fixed(device, count, 0)
    }

    fn nvmlDeviceGetTopologyCommonAncestor(one: Handle, other: Handle, level: Out<u32>) {
        with_two(one, other, |node, one, other| level.put(distance(node, one, other)))
    }

    /// Returns the GPUs at exactly the given distance.
    fn nvmlDeviceGetTopologyNearestGpus(
        device: Handle,
        level: u32,
        count: Out<u32>,
        devices: Slots<Handle>,
    ) {
        with_gpu(device, |session, gpu| {
            let node = &session.node;
            let others = (0..node.gpus()).filter(|&other| other != gpu);
            let near = others.filter(|&other| distance(node, gpu, other) == level);
            let near: Vec<_> = near.map(|other| Object::Gpu(other).into()).collect();
            put_up_to(count, devices, &near)
        })
    }

    /// Returns whether two GPUs may access each other's memory: whole GPUs may, atomics only over an NVLink; slices may
    /// not.
    fn nvmlDeviceGetP2PStatus(one: Handle, other: Handle, capability: u32, status: Out<u32>) {
        const OK: u32 = 0;
        const GPU_CANNOT: u32 = 2;
        const NOT_SUPPORTED: u32 = 5;
        with_two(one, other, |node, one, other| {
            if capability > 4 || one == other {
                return Err(Return::INVALID_ARGUMENT);
            }
            if node.is_sliced(one) || node.is_sliced(other) {
                return status.put(GPU_CANNOT);
            }
            let is_linked = node.nvlinks(one).any(|end| end == other);
            let needs_link = [2, 3].contains(&capability);
            status.put(if needs_link && !is_linked { NOT_SUPPORTED } else { OK })
        })
    }

    fn nvmlDeviceGetNvLinkState(device: Handle, link: u32, is_active: Out<u32>) {
        with_link(device, link, |_, _, other| is_active.put(other.is_some().into()))
    }

    fn nvmlDeviceGetNvLinkVersion(device: Handle, link: u32, version: Out<u32>) {
        with_link(device, link, |node, gpu, _| version.put(node.facts(gpu).nvlink_version))
    }

    /// Returns whether a link supports peer access and peer atomics; links to host memory do not exist.
    fn nvmlDeviceGetNvLinkCapability(
        device: Handle,
        link: u32,
        capability: u32,
        has_it: Out<u32>,
    ) {
        if capability > 5 {
            return Err(Return::INVALID_ARGUMENT);
        }
        with_link(device, link, |_, _, other| {
            let is_one = other.is_some() && [0, 2, 5].contains(&capability);
            has_it.put(is_one.into())
        })
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: u32, place: Out<PciInfo>) {
        with_link(device, link, |node, _, other| {
            let other = other.ok_or(Return::NOT_SUPPORTED)?;
            place.put(pci_info(node, other))
        })
    }

    /// Returns 0, a GPU, for every connected link.
    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: u32, kind: Out<u32>) {
        with_link(device, link, |_, _, other| {
            other.map_or(Err(Return::NOT_SUPPORTED), |_| kind.put(0))
        })
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        device: Handle,
        link: u32,
        counter: u32,
        count: Out<u64>,
    ) {
        if counter > 4 {
            return Err(Return::INVALID_ARGUMENT);
        }
        with_link(device, link, |_, _, other| {
            other.map_or(Err(Return::NOT_SUPPORTED), |_| count.put(0))
        })
    }
}
