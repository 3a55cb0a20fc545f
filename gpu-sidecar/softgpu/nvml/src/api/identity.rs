//! Enumeration and names of devices.

use softgpu_wire::identity::Identity;

use crate::answer::{Answer, Return, export};
use crate::handle::{Handle, Object};
use crate::layout::{PciInfo, PciInfoExt, PciInfoV2, text};
use crate::node::{Device, Node, parse_bus_id};
use crate::pointer::{Out, TextIn, TextOut, Versioned};
use crate::session::{self, with_device, with_gpu};

/// PCI class and subclass of a 3D controller.
const CLASS: u32 = 3;
const SUBCLASS: u32 = 2;

fn handle(device: Device) -> Handle {
    match device {
        Device::Gpu(gpu) => Object::Gpu(gpu).into(),
        Device::Slice(at) => Object::Slice(at).into(),
    }
}

/// Writes the handle of a device; fails if its GPU is lost.
fn find(out: Out<Handle>, found: impl FnOnce(&Node) -> Answer<Device>) -> Answer {
    session::with(|session| {
        let device = found(&session.node)?;
        session.check(session.node.gpu_of(device))?;
        out.put(handle(device))
    })
}

fn by_index(index: u32, out: Out<Handle>) -> Answer {
    find(out, |node| {
        let gpu = usize::try_from(index).unwrap_or(usize::MAX);
        let is_there = gpu < node.gpus();
        is_there
            .then_some(Device::Gpu(gpu))
            .ok_or(Return::INVALID_ARGUMENT)
    })
}

fn by_bus_id(bus_id: TextIn, out: Out<Handle>) -> Answer {
    let place = parse_bus_id(&bus_id.get()?).ok_or(Return::INVALID_ARGUMENT)?;
    find(out, |node| {
        let gpu = (0..node.gpus()).find(|&gpu| Identity::pci(gpu) == place);
        gpu.map(Device::Gpu).ok_or(Return::NOT_FOUND)
    })
}

fn count(out: Out<u32>) -> Answer {
    session::with(|session| out.put(u32::try_from(session.node.gpus()).unwrap_or(u32::MAX)))
}

fn number(gpu: usize) -> u32 {
    u32::try_from(gpu).unwrap_or(u32::MAX)
}

/// Writes the PCI location in the format of versions 1 and 2.
fn pci_info_v2(device: Handle, out: Out<PciInfoV2>) -> Answer {
    with_gpu(device, |session, gpu| {
        let (domain, bus, place) = Identity::pci(gpu);
        out.put(PciInfoV2 {
            bus_id: text(&format!("{domain:04X}:{bus:02X}:{place:02X}.0")),
            domain,
            bus,
            device: place,
            device_id: session.node.facts(gpu).device_id,
        })
    })
}

/// Returns the PCI location of a GPU.
pub(super) fn pci_info(node: &Node, gpu: usize) -> PciInfo {
    let (domain, bus, device) = Identity::pci(gpu);
    PciInfo {
        busIdLegacy: text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: node.facts(gpu).device_id,
        pciSubSystemId: node.facts(gpu).device_id,
        busId: text(&Node::bus_id(gpu)),
    }
}

export! {
    fn nvmlDeviceGetCount(out: Out<u32>) {
        count(out)
    }

    fn nvmlDeviceGetCount_v2(out: Out<u32>) {
        count(out)
    }

    fn nvmlDeviceGetHandleByIndex(index: u32, out: Out<Handle>) {
        by_index(index, out)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: Out<Handle>) {
        by_index(index, out)
    }

    /// Finds a GPU or MIG device.
    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, out: Out<Handle>) {
        let uuid = uuid.get()?;
        find(out, |node| {
            let mut devices = node.devices();
            devices.find(|&device| node.uuid(device) == uuid).ok_or(Return::NOT_FOUND)
        })
    }

    fn nvmlDeviceGetHandleBySerial(serial: TextIn, out: Out<Handle>) {
        let serial = serial.get()?;
        find(out, |node| {
            let gpu = (0..node.gpus()).find(|&gpu| node.serial(gpu) == serial);
            gpu.map(Device::Gpu).ok_or(Return::NOT_FOUND)
        })
    }

    fn nvmlDeviceGetHandleByPciBusId(bus_id: TextIn, out: Out<Handle>) {
        by_bus_id(bus_id, out)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: TextIn, out: Out<Handle>) {
        by_bus_id(bus_id, out)
    }

    fn nvmlDeviceGetName(device: Handle, name: TextOut, length: u32) {
        with_device(device, |session, device| name.put(length, &session.node.name(device)))
    }

    fn nvmlDeviceGetUUID(device: Handle, uuid: TextOut, length: u32) {
        with_device(device, |session, device| uuid.put(length, &session.node.uuid(device)))
    }

    /// Returns a GPU's index, or a MIG device's index among those of its GPU.
    fn nvmlDeviceGetIndex(device: Handle, index: Out<u32>) {
        with_device(device, |session, device| match device {
            Device::Gpu(gpu) => index.put(number(gpu)),
            Device::Slice(at) => {
                let slices = session.node.slices(session.node.gpu_of(device));
                let place = slices.iter().position(|&own| own == at);
                index.put(number(place.ok_or(Return::UNKNOWN)?))
            }
        })
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<u32>) {
        with_gpu(device, |_, gpu| minor.put(number(gpu)))
    }

    fn nvmlDeviceGetModuleId(device: Handle, module: Out<u32>) {
        with_gpu(device, |_, gpu| module.put(number(gpu)))
    }

    /// Returns a serial number derived from the UUID.
    fn nvmlDeviceGetSerial(device: Handle, serial: TextOut, length: u32) {
        with_gpu(device, |session, gpu| serial.put(length, &session.node.serial(gpu)))
    }

    fn nvmlDeviceGetPciInfo(device: Handle, place: Out<PciInfoV2>) {
        pci_info_v2(device, place)
    }

    fn nvmlDeviceGetPciInfo_v2(device: Handle, place: Out<PciInfoV2>) {
        pci_info_v2(device, place)
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, place: Out<PciInfo>) {
        with_gpu(device, |session, gpu| place.put(pci_info(&session.node, gpu)))
    }

    fn nvmlDeviceGetPciInfoExt(device: Handle, place: Out<PciInfoExt>) {
        with_gpu(device, |session, gpu| {
            let known = pci_info(&session.node, gpu);
            place.put_versioned(PciInfoExt {
                version: PciInfoExt::VERSION,
                domain: known.domain,
                bus: known.bus,
                device: known.device,
                pciDeviceId: known.pciDeviceId,
                pciSubSystemId: known.pciSubSystemId,
                baseClass: CLASS,
                subClass: SUBCLASS,
                busId: known.busId,
            })
        })
    }
}
