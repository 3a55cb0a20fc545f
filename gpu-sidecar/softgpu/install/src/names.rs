//! What GPUs, slices and links of a software GPU are called where people read of them.

use device::machine::Machine;
use device::part::{Part, PartError};
use softgpu_wire::config::{Config, ConfigError};
use softgpu_wire::identity::{Identity, uuid_text};

/// The name of a kind of GPU as configurations write it, from how people do: in any case, `a100` for `A100-80GB`.
///
/// # Errors
/// There is no such kind; the error names those there are.
pub fn part(name: &str) -> Result<String, PartError> {
    Part::named(name).map(|part| part.name)
}

/// A GPU or slice.
#[derive(Clone, Debug)]
pub struct UnitName {
    /// Its number in the node.
    pub number: u32,
    /// The GPU it is or lies on.
    pub gpu: usize,
    /// As `GPU 0`, or `GPU 0 3g.40gb at 4`: the profile and the memory slice at which it begins.
    pub name: String,
    /// Its product's name.
    pub product: &'static str,
    /// With `GPU-` or `MIG-` before it.
    pub uuid: String,
    /// SMs.
    pub sms: u32,
    /// Bytes of device memory, after the scale.
    pub memory: u64,
}

/// What of a node a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Between a GPU and its switch, or the host.
    Host,
    /// Between a switch and the host: what crosses it has crossed a GPU's own link as well.
    Switch,
    /// Between two GPUs.
    NvLink,
    /// A GPU's or slice's own memory.
    Memory,
}

/// A link, in one direction.
#[derive(Clone, Debug)]
pub struct LinkName {
    /// As `to GPU 0`.
    pub name: String,
    /// What it is.
    pub kind: LinkKind,
    /// Bytes per second, after the scale.
    pub rate: u64,
}

/// The names of all there is in a node. What a ledger names and the node does not have is named by its number.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The GPUs that are whole, and the slices of the others, in the order of their numbers.
    pub units: Vec<UnitName>,
    /// The links, in the order of their numbers.
    pub links: Vec<LinkName>,
}

impl Names {
    /// Those of a folder with this configuration.
    ///
    /// # Errors
    /// The configuration cannot be used.
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
        // In the order in which the machine numbers them.
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

    /// What a GPU or slice is called.
    #[must_use]
    pub fn unit(&self, number: u32) -> String {
        let known = self.units.get(number as usize);
        known.map_or_else(|| format!("unit {number}"), |unit| unit.name.clone())
    }

    /// What a link is called.
    #[must_use]
    pub fn link(&self, number: u32) -> String {
        let known = self.links.get(number as usize);
        known.map_or_else(|| format!("link {number}"), |link| link.name.clone())
    }

    /// What a link is; one that is not known is taken for a GPU's own.
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
    fn links_are_named_as_the_machine_numbers_them() {
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
                "memory of GPU 0 4g.40gb at 0",
                "memory of GPU 0 3g.40gb at 4",
                "memory of GPU 1",
            ]
        );
        assert_eq!((names.links[4].rate, names.links[6].rate), (5, 10));
        assert_eq!(names.link_kind(8), LinkKind::Memory);
        assert_eq!(
            (names.unit(9), names.link(99)),
            ("unit 9".to_owned(), "link 99".to_owned())
        );
    }
}
