//! Constant properties of the GPUs of a software GPU.

use std::path::Path;

use device::mig::{Layout, Mig, Placement};
use device::node::Node as DeviceNode;
use device::part::Part;
use softgpu_wire::config::Config;
use softgpu_wire::identity::{Identity, Unit, uuid_text};

use crate::answer::{Answer, Return};
use crate::facts::Facts;

/// A GPU or a MIG device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Index of a GPU, which may be sliced.
    Gpu(usize),
    /// Index of a slice in [`Identity::units`].
    Slice(usize),
}

/// Node described by the configuration.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    hardware: DeviceNode,
    facts: Vec<Facts>,
}

impl Node {
    /// Returns the node of a folder with this configuration.
    pub(crate) fn new(folder: &Path, config: Config) -> Answer<Self> {
        let wrong = |_| Return::DRIVER_NOT_LOADED;
        let hardware = config.node().map_err(wrong)?;
        let identity = Identity::new(folder, &config).map_err(wrong)?;
        let facts = hardware
            .gpus
            .iter()
            .map(|gpu| Facts::of(&gpu.part.name, gpu.part.compute_capability))
            .collect();
        Ok(Self {
            config,
            identity,
            hardware,
            facts,
        })
    }

    /// Returns the number of GPUs.
    pub(crate) fn gpus(&self) -> usize {
        self.hardware.gpus.len()
    }

    /// Returns the GPU of a device: itself, or the one that contains the slice.
    pub(crate) fn gpu_of(&self, device: Device) -> usize {
        match device {
            Device::Gpu(gpu) => gpu,
            Device::Slice(at) => self.unit(at).gpu,
        }
    }

    pub(crate) fn part(&self, gpu: usize) -> &Part {
        &self.hardware.gpus[gpu].part
    }

    pub(crate) fn facts(&self, gpu: usize) -> &Facts {
        &self.facts[gpu]
    }

    pub(crate) fn unit(&self, at: usize) -> &Unit {
        &self.identity.units[at]
    }

    /// Returns the indices of a device's units: for a sliced GPU, all of its slices.
    pub(crate) fn units(&self, device: Device) -> &[usize] {
        match device {
            Device::Gpu(gpu) => &self.identity.gpus[gpu].units,
            Device::Slice(at) => {
                let units = &self.identity.gpus[self.unit(at).gpu].units;
                let place = units.iter().position(|&own| own == at);
                place.map_or(&[], |place| &units[place..=place])
            }
        }
    }

    /// Returns the indices of a GPU's slices, none for a whole GPU.
    pub(crate) fn slices(&self, gpu: usize) -> &[usize] {
        if self.is_sliced(gpu) {
            self.units(Device::Gpu(gpu))
        } else {
            &[]
        }
    }

    /// Returns whether a GPU is sliced, that is, MIG is enabled.
    pub(crate) fn is_sliced(&self, gpu: usize) -> bool {
        let mut units = self.identity.gpus[gpu].units.iter();
        units.any(|&at| self.unit(at).slice.is_some())
    }

    /// Returns the possible slices of a GPU; fails if it does not support MIG.
    pub(crate) fn mig(&self, gpu: usize) -> Answer<&Mig> {
        self.part(gpu).mig.as_ref().ok_or(Return::NOT_SUPPORTED)
    }

    /// Returns the current slices of a GPU.
    pub(crate) fn layout(&self, gpu: usize) -> Answer<Layout> {
        let mig = self.mig(gpu)?;
        let placement = |&at: &usize| {
            let slice = self.unit(at).slice.as_ref()?;
            let start = slice.start;
            let profile = mig.profile(&slice.profile).ok()?;
            Some(Placement { start, profile })
        };
        Ok(self.slices(gpu).iter().filter_map(placement).collect())
    }

    /// Returns the memory of a device in bytes, after scaling.
    pub(crate) fn memory(&self, device: Device) -> u64 {
        match device {
            Device::Gpu(gpu) => self.scaled(self.part(gpu).memory_bytes()),
            Device::Slice(at) => self.unit(at).memory,
        }
    }

    /// Returns the memory in bytes of a slice with this profile, after scaling.
    pub(crate) fn profile_memory(&self, gpu: usize, mig: &Mig, profile: usize) -> u64 {
        let profile = &mig.profiles[profile];
        let slices = u64::from(profile.memory_slices);
        let own_part = self.part(gpu).memory_bytes() / u64::from(mig.memory_slices) * slices;
        self.scaled(profile.memory_mib.map_or(own_part, |mib| mib * 1024 * 1024))
    }

    fn scaled(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.hardware.scale.bytes)
    }

    /// Formats a UUID as `GPU-…` or `MIG-…`.
    pub(crate) fn uuid(&self, device: Device) -> String {
        match device {
            Device::Gpu(gpu) => format!("GPU-{}", uuid_text(&self.identity.gpus[gpu].uuid)),
            Device::Slice(at) => format!("MIG-{}", uuid_text(&self.unit(at).uuid)),
        }
    }

    /// Returns the product name, with the profile of a slice.
    pub(crate) fn name(&self, device: Device) -> String {
        let name = self.identity.gpus[self.gpu_of(device)].name;
        match device {
            Device::Gpu(_) => name.to_owned(),
            Device::Slice(at) => {
                let slice = self.unit(at).slice.as_ref();
                let profile = slice.map_or("", |slice| slice.profile.as_str());
                format!("{name} MIG {profile}")
            }
        }
    }

    /// Returns a serial number of 13 digits, derived from the UUID.
    pub(crate) fn serial(&self, gpu: usize) -> String {
        let uuid = &self.identity.gpus[gpu].uuid;
        let number = uuid.iter().fold(0_u64, |number, &byte| {
            number.wrapping_mul(257).wrapping_add(u64::from(byte))
        });
        format!("{:013}", number % 10_000_000_000_000)
    }

    /// Formats a PCI address as `00000000:01:00.0`.
    pub(crate) fn bus_id(gpu: usize) -> String {
        let (domain, bus, device) = Identity::pci(gpu);
        format!("{domain:08X}:{bus:02X}:{device:02X}.0")
    }

    /// Returns all GPUs, followed by all slices.
    pub(crate) fn devices(&self) -> impl Iterator<Item = Device> + '_ {
        let slices = self.identity.units.iter().enumerate();
        let slices = slices.filter(|(_, unit)| unit.slice.is_some());
        (0..self.gpus())
            .map(Device::Gpu)
            .chain(slices.map(|(at, _)| Device::Slice(at)))
    }

    /// Returns the GPUs at the other ends of a GPU's NVLinks.
    pub(crate) fn nvlinks(&self, gpu: usize) -> impl Iterator<Item = usize> + '_ {
        let others = self
            .hardware
            .nvlinks
            .iter()
            .map(move |link| match link.gpus {
                [one, other] if one == gpu => Some(other),
                [one, other] if other == gpu => Some(one),
                _ => None,
            });
        others.flatten()
    }

    /// Returns whether two GPUs are behind the same PCIe switch.
    pub(crate) fn share_switch(&self, one: usize, other: usize) -> bool {
        let mut switches = self.hardware.switches.iter();
        switches.any(|switch| switch.gpus.contains(&one) && switch.gpus.contains(&other))
    }
}

/// Parses PCI domain, bus and device from `00000000:01:00.0`, `0000:01:00.0` or `01:00.0`.
pub(crate) fn parse_bus_id(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.rsplit(':');
    let (place, _function) = parts.next()?.split_once('.')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let (device, bus) = (number(place)?, number(parts.next()?)?);
    let domain = parts.next().map_or(Some(0), number)?;
    parts.next().is_none().then_some((domain, bus, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_round_trip() {
        for text in ["00000000:1A:00.0", "0000:1a:00.0", "1a:00.0"] {
            assert_eq!(parse_bus_id(text), Some((0, 26, 0)), "{text}");
        }
        for text in ["", "1a", "1a:00", "x:00.0", "0:0:1a:00.0"] {
            assert_eq!(parse_bus_id(text), None, "{text}");
        }
        let (domain, bus, device) = Identity::pci(3);
        assert_eq!(parse_bus_id(&Node::bus_id(3)), Some((domain, bus, device)));
    }

    #[test]
    fn a_sliced_gpu_and_its_slices_are_devices() {
        let text = "bytes = 2\n[[gpu]]\npart = \"V100\"\n\
                    [[gpu]]\npart = \"H100\"\nslices = [\"3g.40gb\", \"4g.40gb\"]\n\
                    [[nvlink]]\ngpus = [0, 1]\nbytes-per-second = 1000";
        let node = Node::new(Path::new("/nonexistent"), Config::parse(text).unwrap()).unwrap();
        assert_eq!(node.devices().count(), 4);
        assert_eq!(node.slices(0), [0_usize; 0]);
        assert_eq!(node.slices(1), [1, 2]);
        assert_eq!(node.units(Device::Slice(2)), [2]);
        assert_eq!(node.memory(Device::Gpu(1)), 81559 * 1024 * 512);
        assert_eq!(node.memory(Device::Slice(1)), 40448 * 1024 * 512);
        let mig = node.mig(1).unwrap();
        let profile = mig.profile("3g.40gb").unwrap();
        assert_eq!(node.profile_memory(1, mig, profile), 40448 * 1024 * 512);
        assert_eq!(node.layout(1).unwrap().len(), 2);
        assert_eq!(
            node.name(Device::Slice(1)),
            "NVIDIA H100 80GB HBM3 MIG 4g.40gb"
        );
        assert_eq!(node.serial(0).len(), 13);
        assert_ne!(node.serial(0), node.serial(1));
        assert_eq!(node.nvlinks(1).collect::<Vec<_>>(), [0]);
        assert!(node.mig(0).is_err());
    }
}
