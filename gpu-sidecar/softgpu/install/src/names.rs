//! Display names of a software GPU's GPUs, slices and links.

use device::machine::Machine;
use device::part::{Part, PartError};
use softgpu_wire::config::{Config, ConfigError};
use softgpu_wire::identity::{Identity, uuid_text};

/// Returns the configuration's name of a GPU model from a colloquial one, in any case: `A100-80GB` for `a100`.
///
/// # Errors
/// Fails for an unknown model; the error lists the known ones.
pub fn part(name: &str) -> Result<String, PartError> {
    Part::named(name).map(|part| part.name)
}

/// Names and sizes of a GPU or slice.
#[derive(Clone, Debug)]
pub struct UnitName {
    /// Number in the node.
    pub number: u32,
    /// Index of the GPU it is or is part of.
    pub gpu: usize,
    /// Display name: `GPU 0`, or `GPU 0 3g.40gb at 4` with the profile and the first memory slice.
    pub name: String,
    /// Product name as the driver reports it.
    pub product: &'static str,
    /// UUID with the prefix `GPU-` or `MIG-`.
    pub uuid: String,
    /// Number of SMs it has.
    pub sms: u32,
    /// Device memory in bytes, after scaling.
    pub memory: u64,
}

/// Role of a link in the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Between a GPU and its switch, or the host.
    Host,
    /// Between a switch and the host: its traffic also crosses a GPU's own link.
    Switch,
    /// NVLink between two GPUs.
    NvLink,
    /// The driver's staging of pageable host memory: its traffic also crosses a GPU's own link.
    Staging,
    /// Memory of a GPU or slice.
    Memory,
}

/// A link, in one direction.
#[derive(Clone, Debug)]
pub struct LinkName {
    /// Display name, for example `to GPU 0`.
    pub name: String,
    /// Role of the link in the node.
    pub kind: LinkKind,
    /// Rate in bytes per second, after scaling.
    pub rate: u64,
}

/// Display names of a node's units and links. Unknown ones are named by number.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Whole GPUs and slices, in the order of their numbers.
    pub units: Vec<UnitName>,
    /// Links, in the order of their numbers.
    pub links: Vec<LinkName>,
}

impl Names {
    /// Returns the names for a folder with this configuration.
    ///
    /// # Errors
    /// Fails when the configuration is invalid.
    pub fn new(folder: &std::path::Path, config: &Config) -> Result<Self, ConfigError> {
        let node = config.node()?;
        let identity = Identity::new(folder, config)?;
        let units: Vec<_> = identity
            .units
            .iter()
            .map(|unit| UnitName {
                number: unit.number,
                gpu: unit.gpu,
                name: match &unit.slice {
                    Some(slice) => format!("GPU {} {} at {}", unit.gpu, slice.profile, slice.start),
                    None => format!("GPU {}", unit.gpu),
                },
                product: identity.gpus[unit.gpu].name,
                uuid: match &unit.slice {
                    Some(_) => format!("MIG-{}", uuid_text(&unit.uuid)),
                    None => format!("GPU-{}", uuid_text(&unit.uuid)),
                },
                sms: unit.sms,
                memory: unit.memory,
            })
            .collect();
        // In the order of the machine's link numbers.
        let mut names = Vec::new();
        let mut both = |kind, what: &str, number: usize| {
            names.push((format!("to {what} {number}"), kind));
            names.push((format!("from {what} {number}"), kind));
        };
        for gpu in 0..node.gpus.len() {
            both(LinkKind::Host, "GPU", gpu);
        }
        for switch in 0..node.switches.len() {
            both(LinkKind::Switch, "switch", switch);
        }
        for nvlink in &node.nvlinks {
            let [one, other] = nvlink.gpus;
            names.push((format!("GPU {one} to GPU {other}"), LinkKind::NvLink));
            names.push((format!("GPU {other} to GPU {one}"), LinkKind::NvLink));
        }
        for gpu in 0..node.gpus.len() {
            names.push((format!("staging to GPU {gpu}"), LinkKind::Staging));
            names.push((format!("staging from GPU {gpu}"), LinkKind::Staging));
        }
        for unit in &units {
            names.push((format!("memory of {}", unit.name), LinkKind::Memory));
        }
        let machine = Machine::new(&node)?;
        let links = names.into_iter().zip(machine.links());
        Ok(Self {
            links: links
                .map(|((name, kind), rate)| LinkName { name, kind, rate })
                .collect(),
            units,
        })
    }

    /// Returns the display name of a GPU or slice.
    #[must_use]
    pub fn unit(&self, number: u32) -> String {
        let known = self.units.get(number as usize);
        known.map_or_else(|| format!("unit {number}"), |unit| unit.name.clone())
    }

    /// Returns the display name of a link.
    #[must_use]
    pub fn link(&self, number: u32) -> String {
        let known = self.links.get(number as usize);
        known.map_or_else(|| format!("link {number}"), |link| link.name.clone())
    }

    /// Returns the role of a link; an unknown one counts as a GPU's own.
    #[must_use]
    pub fn link_kind(&self, number: u32) -> LinkKind {
        let known = self.links.get(number as usize);
        known.map_or(LinkKind::Host, |link| link.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_follow_the_machines_numbers() {
        let config = Config::parse(
            "bytes = 2\n\
             [[gpu]]\npart = \"A100\"\nslices = [\"3g.40gb\", \"4g.40gb\"]\n\
             [[gpu]]\npart = \"A100\"\n\
             [[switch]]\ngpus = [0, 1]\nuplink-bytes-per-second = 10\n\
             [[nvlink]]\ngpus = [0, 1]\nbytes-per-second = 20",
        )
        .unwrap();
        let names = Names::new(std::path::Path::new("/nonexistent"), &config).unwrap();
        let units: Vec<_> = names.units.iter().map(|unit| unit.name.as_str()).collect();
        assert_eq!(units, ["GPU 0 4g.40gb at 0", "GPU 0 3g.40gb at 4", "GPU 1"]);
        let links: Vec<_> = names.links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(
            links,
            [
                "to GPU 0",
                "from GPU 0",
                "to GPU 1",
                "from GPU 1",
                "to switch 0",
                "from switch 0",
                "GPU 0 to GPU 1",
                "GPU 1 to GPU 0",
                "staging to GPU 0",
                "staging from GPU 0",
                "staging to GPU 1",
                "staging from GPU 1",
                "memory of GPU 0 4g.40gb at 0",
                "memory of GPU 0 3g.40gb at 4",
                "memory of GPU 1",
            ]
        );
        assert_eq!((names.links[4].rate, names.links[6].rate), (5, 10));
        assert_eq!(names.link_kind(12), LinkKind::Memory);
        assert_eq!(
            (names.unit(9), names.link(99)),
            ("unit 9".to_owned(), "link 99".to_owned())
        );
    }
}
