//! Devices by the numbers and UUIDs that commands use.

use std::path::Path;

use softgpu_wire::config::Config;
use softgpu_wire::identity::{Identity, uuid_text};
use softgpu_wire::softgpu_dir;

/// Devices visible to the daemon and its clients, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    /// UUIDs of all units of the node, in the order of their numbers.
    units: Vec<String>,
    /// Indices of the visible units.
    visible: Vec<usize>,
}

impl Devices {
    /// Returns the devices of a folder, restricted to `visible` in the format of `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// Fails with a message when the configuration is invalid.
    pub(crate) fn of(folder: &Path, visible: Option<&str>) -> Result<Self, String> {
        let path = folder.join(softgpu_dir::CONFIG);
        let config = match std::fs::read_to_string(&path) {
            Ok(text) => {
                Config::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }?;
        let identity = Identity::new(folder, &config)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let name = |unit: &softgpu_wire::identity::Unit| {
            let kind = if unit.slice.is_some() { "MIG" } else { "GPU" };
            format!("{kind}-{}", uuid_text(&unit.uuid))
        };
        Ok(Self::new(
            identity.units.iter().map(name).collect(),
            visible,
        ))
    }

    fn new(units: Vec<String>, visible: Option<&str>) -> Self {
        let mut devices = Self {
            visible: (0..units.len()).collect(),
            units,
        };
        if let Some(visible) = visible {
            // As in the driver, the list ends before its first invalid entry.
            let all = devices.clone();
            let listed = visible.split(',').map_while(|one| all.find(one.trim()));
            devices.visible = listed.collect();
        }
        devices
    }

    /// Finds a device by its number or by a unique prefix of its UUID; returns its unit.
    pub(crate) fn find(&self, device: &str) -> Option<usize> {
        if device.starts_with("GPU-") || device.starts_with("MIG-") {
            let mut found = (self.visible.iter().copied()).filter(|unit| {
                self.units
                    .get(*unit)
                    .is_some_and(|uuid| uuid.starts_with(device))
            });
            return found.next().filter(|_| found.next().is_none());
        }
        self.visible.get(device.parse::<usize>().ok()?).copied()
    }

    /// Returns the number of units of the node.
    pub(crate) fn units(&self) -> usize {
        self.units.len()
    }

    /// Returns the UUID of a unit.
    pub(crate) fn uuid(&self, unit: u32) -> Option<&str> {
        let unit = usize::try_from(unit).ok()?;
        self.units.get(unit).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_number_and_by_uuid() {
        let units = || {
            vec![
                "GPU-aa-1".to_owned(),
                "GPU-ab-2".to_owned(),
                "MIG-c".to_owned(),
            ]
        };
        let devices = Devices::new(units(), None);
        assert_eq!(devices.find("1"), Some(1));
        assert_eq!(devices.find("GPU-ab"), Some(1));
        assert_eq!(devices.find("MIG-c"), Some(2));
        for none in ["3", "-1", "GPU-a", "GPU-x", "c", ""] {
            assert_eq!(devices.find(none), None, "{none}");
        }
        let devices = Devices::new(units(), Some("MIG-c, 0,9,1"));
        assert_eq!(devices.find("0"), Some(2));
        assert_eq!(devices.find("1"), Some(0));
        assert_eq!(devices.find("2"), None);
        assert_eq!(devices.uuid(1), Some("GPU-ab-2"));
        assert_eq!(Devices::new(units(), Some("")).find("0"), None);
    }
}
