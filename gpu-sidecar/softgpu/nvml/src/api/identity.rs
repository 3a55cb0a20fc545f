//! Which devices there are, and what they are called.

use softgpu_wire::identity::Identity;

use crate::answer::{Answer, Return, export};
use crate::border::{Out, TextIn, TextOut, Versioned};
use crate::handle::{Handle, Thing};
use crate::layout::{BusPlace, BusPlaceExt, BusPlaceOld, text};
use crate::node::{Device, Node, parse_bus_id};
use crate::session::{self, with_device, with_gpu};

/// A 3D controller.
const CLASS: u32 = 3;
const SUBCLASS: u32 = 2;

fn handle(device: Device) -> Handle {
    match device {
        Device::Gpu(gpu) => Thing::Gpu(gpu).into(),
        Device::Slice(at) => Thing::Slice(at).into(),
    }
}

/// Puts the handle of a device, unless its GPU is lost.
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

/// As programs read it that were made for the first versions.
fn old_place(device: Handle, out: Out<BusPlaceOld>) -> Answer {
    with_gpu(device, |session, gpu| {
        let (domain, bus, place) = Identity::pci(gpu);
        out.put(BusPlaceOld {
            bus_id: text(&format!("{domain:04X}:{bus:02X}:{place:02X}.0")),
            domain,
            bus,
            device: place,
            device_id: session.node.facts(gpu).device_id,
        })
    })
}

/// Where a GPU is on the PCI bus.
pub(super) fn bus_place(node: &Node, gpu: usize) -> BusPlace {
    let (domain, bus, device) = Identity::pci(gpu);
    BusPlace {
        bus_id_short: text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        device_id: node.facts(gpu).device_id,
        subsystem_id: node.facts(gpu).device_id,
        bus_id: text(&Node::bus_id(gpu)),
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

    /// Of a GPU or a MIG device.
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

    /// Of a MIG device its place among those of its GPU.
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

    /// Made of its UUID.
    fn nvmlDeviceGetSerial(device: Handle, serial: TextOut, length: u32) {
        with_gpu(device, |session, gpu| serial.put(length, &session.node.serial(gpu)))
    }

    fn nvmlDeviceGetPciInfo(device: Handle, place: Out<BusPlaceOld>) {
        old_place(device, place)
    }

    fn nvmlDeviceGetPciInfo_v2(device: Handle, place: Out<BusPlaceOld>) {
        old_place(device, place)
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, place: Out<BusPlace>) {
        with_gpu(device, |session, gpu| place.put(bus_place(&session.node, gpu)))
    }

    fn nvmlDeviceGetPciInfoExt(device: Handle, place: Out<BusPlaceExt>) {
        with_gpu(device, |session, gpu| {
            let known = bus_place(&session.node, gpu);
            place.put_versioned(BusPlaceExt {
                version: BusPlaceExt::VERSION,
                domain: known.domain,
                bus: known.bus,
                device: known.device,
                device_id: known.device_id,
                subsystem_id: known.subsystem_id,
                class: CLASS,
                subclass: SUBCLASS,
                bus_id: known.bus_id,
            })
        })
    }
}
