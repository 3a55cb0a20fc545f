//! What a node is made of: GPUs, switches, links; and the way of a copy through it.

use std::collections::BTreeMap;

use crate::Span;
use crate::network::{LinkId, Network, Route};
use crate::part::Part;

/// What a node is made of.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Its PCIe switches.
    pub switches: Vec<Switch>,
    /// Links between two GPUs besides.
    pub nvlinks: Vec<NvLink>,
    /// How much slower and smaller than life it is.
    pub scale: Scale,
}

/// How much slower and smaller than life a node is, for runs beside programs that keep the real clock on machines with
/// little memory. A transfer's bytes are given as they are on the node, made smaller already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// By how much kernels, delays, time slices, their switches and copies take longer: 1 to 8.
    pub time: u32,
    /// By how much memories, contexts' residues and all bytes per second are smaller: 1 to 512.
    pub bytes: u32,
}

impl Default for Scale {
    fn default() -> Self {
        Self { time: 1, bytes: 1 }
    }
}

impl Scale {
    const TIME_MAX: u32 = 8;
    const BYTES_MAX: u32 = 512;

    fn check(self) -> Result<(), NodeError> {
        for (name, value, max) in [
            ("time", self.time, Self::TIME_MAX),
            ("bytes", self.bytes, Self::BYTES_MAX),
        ] {
            if !(1..=max).contains(&value) {
                return Err(NodeError::Scale { name, value, max });
            }
        }
        Ok(())
    }

    /// A span on this node.
    pub(crate) fn span(self, span: Span) -> Span {
        Span(span.0.saturating_mul(self.time.into()))
    }

    /// A size on this node.
    pub(crate) fn size(self, bytes: u64) -> u64 {
        bytes / u64::from(self.bytes)
    }

    /// A link's bytes per second on this node.
    pub(crate) fn rate(self, bytes_per_second: u64) -> u64 {
        (bytes_per_second / (u64::from(self.time) * u64::from(self.bytes))).max(1)
    }
}

/// A GPU of a node.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// What kind it is.
    pub part: Part,
    /// Its slices, by the names of their profiles; empty: it is whole.
    pub slices: Vec<String>,
}

/// GPUs that share a way to the host.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Which, by their places in [`Node::gpus`]; each GPU is behind one switch at most.
    pub gpus: Vec<usize>,
    /// Bytes per second to the host, each direction by itself.
    pub uplink_bytes_per_second: u64,
}

/// A link between two GPUs.
#[derive(Clone, Copy, Debug)]
pub struct NvLink {
    /// Which two; two GPUs have one link at most.
    pub gpus: [usize; 2],
    /// Bytes per second, each direction by itself.
    pub bytes_per_second: u64,
}

/// A node cannot be as it is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// A switch or link names a GPU that the node has not.
    #[error("{link}: there is no GPU {gpu}: the node has {gpus}, counted from 0")]
    NoGpu {
        /// What names it.
        link: &'static str,
        /// The GPU it names.
        gpu: usize,
        /// How many there are.
        gpus: usize,
    },
    /// A GPU is behind two switches, or twice behind one.
    #[error("switch: GPU {gpu} is behind one already")]
    SecondSwitch {
        /// Which GPU.
        gpu: usize,
    },
    /// Two GPUs have two links, whichever is named first.
    #[error("nvlink: GPUs {one} and {other} have one already; state the bandwidth of all together")]
    SecondLink {
        /// The one named first.
        one: usize,
        /// The one named second.
        other: usize,
    },
    /// A link leads from a GPU to itself.
    #[error("nvlink: from GPU {gpu} to itself")]
    LinkToItself {
        /// Which GPU.
        gpu: usize,
    },
    /// A switch or link has no bandwidth, or more than there is.
    #[error("{link}: {bytes_per_second} bytes per second: allowed: 1 to {RATE_MAX}")]
    Rate {
        /// What has it.
        link: &'static str,
        /// What it has.
        bytes_per_second: u64,
    },
    /// The scale is out of range.
    #[error("scale: {name} = {value}: allowed: 1 to {max}")]
    Scale {
        /// Which of the two.
        name: &'static str,
        /// What it is.
        value: u32,
        /// What it may be.
        max: u32,
    },
}

/// Bytes per second of a link at most.
const RATE_MAX: u64 = 1 << 50;

fn checked(link: &'static str, bytes_per_second: u64) -> Result<u64, NodeError> {
    if (1..=RATE_MAX).contains(&bytes_per_second) {
        return Ok(bytes_per_second);
    }
    Err(NodeError::Rate {
        link,
        bytes_per_second,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToDevice = 0,
    FromDevice = 1,
}

/// The links of a GPU, by [`Direction`]: its own, and those of the switch it is behind.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    own: [LinkId; 2],
    switch: Option<(usize, [LinkId; 2])>,
}

impl Lanes {
    /// All that lie between the device and the host.
    fn to_host(self, direction: Direction) -> Route {
        let at = direction as usize;
        match self.switch {
            None => Route::new([self.own[at]]),
            Some((_, switch)) => Route::new([self.own[at], switch[at]]),
        }
    }
}

/// The links of a node, and which a copy crosses.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    lanes: Vec<Lanes>,
    /// From one GPU to another.
    nvlinks: BTreeMap<(usize, usize), LinkId>,
}

impl Fabric {
    /// Adds a node's links to a network: of each GPU to the device and from it, of each switch the same, of each NVLink
    /// there and back, in this order.
    ///
    /// # Errors
    /// The node cannot be so.
    pub(crate) fn new(node: &Node, network: &mut Network) -> Result<Self, NodeError> {
        let (gpus, scale) = (node.gpus.len(), node.scale);
        scale.check()?;
        let mut lanes: Vec<_> = node
            .gpus
            .iter()
            .map(|gpu| {
                let rate = scale.rate(gpu.part.host_link_bytes_per_second);
                Lanes {
                    own: [network.add(rate), network.add(rate)],
                    switch: None,
                }
            })
            .collect();
        for (at, switch) in node.switches.iter().enumerate() {
            let link = "switch";
            let rate = scale.rate(checked(link, switch.uplink_bytes_per_second)?);
            let links = [network.add(rate), network.add(rate)];
            for &gpu in &switch.gpus {
                let lanes = lanes
                    .get_mut(gpu)
                    .ok_or(NodeError::NoGpu { link, gpu, gpus })?;
                if lanes.switch.replace((at, links)).is_some() {
                    return Err(NodeError::SecondSwitch { gpu });
                }
            }
        }
        let mut nvlinks = BTreeMap::new();
        for nvlink in &node.nvlinks {
            let [one, other] = nvlink.gpus;
            let link = "nvlink";
            if let Some(&gpu) = nvlink.gpus.iter().find(|&&gpu| gpu >= gpus) {
                return Err(NodeError::NoGpu { link, gpu, gpus });
            }
            if one == other {
                return Err(NodeError::LinkToItself { gpu: one });
            }
            let rate = scale.rate(checked(link, nvlink.bytes_per_second)?);
            for way in [(one, other), (other, one)] {
                if nvlinks.insert(way, network.add(rate)).is_some() {
                    return Err(NodeError::SecondLink { one, other });
                }
            }
        }
        Ok(Self { lanes, nvlinks })
    }

    /// The links that a copy from a GPU to the host, or from the host to it, crosses.
    pub(crate) fn to_host(&self, gpu: usize, direction: Direction) -> Route {
        self.lanes[gpu].to_host(direction)
    }

    /// The links that a copy from one GPU to another crosses, or between two slices of one.
    pub(crate) fn to_peer(&self, gpu: usize, to: usize) -> Route {
        if let Some(link) = self.nvlinks.get(&(gpu, to)) {
            return Route::new([*link]);
        }
        let (lanes, others) = (self.lanes[gpu], self.lanes[to]);
        let out = lanes.own[Direction::FromDevice as usize];
        let into = others.own[Direction::ToDevice as usize];
        match (lanes.switch, others.switch) {
            // Within the switch, past its way to the host.
            (Some((one, _)), Some((other, _))) if one == other => Route::new([out, into]),
            (Some((_, up)), Some((_, down))) => Route::new([
                out,
                up[Direction::FromDevice as usize],
                into,
                down[Direction::ToDevice as usize],
            ]),
            (Some((_, up)), None) => Route::new([out, up[Direction::FromDevice as usize], into]),
            (None, Some((_, down))) => Route::new([out, into, down[Direction::ToDevice as usize]]),
            (None, None) => Route::new([out, into]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Node {
        let gpu = Gpu {
            part: Part::named("V100").unwrap(),
            slices: Vec::new(),
        };
        Node {
            gpus: vec![gpu.clone(), gpu],
            ..Node::default()
        }
    }

    fn error(change: impl FnOnce(&mut Node)) -> String {
        let mut node = two();
        change(&mut node);
        Fabric::new(&node, &mut Network::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_cannot_be_is_named() {
        let switch = |gpus: &[usize]| Switch {
            gpus: gpus.to_vec(),
            uplink_bytes_per_second: 1,
        };
        let nvlink = |gpus| NvLink {
            gpus,
            bytes_per_second: 1,
        };
        assert_eq!(
            error(|node| node.switches = vec![switch(&[0]), switch(&[1, 0])]),
            "switch: GPU 0 is behind one already"
        );
        assert_eq!(
            error(|node| node.switches = vec![switch(&[0, 2])]),
            "switch: there is no GPU 2: the node has 2, counted from 0"
        );
        assert_eq!(
            error(|node| node.nvlinks = vec![nvlink([0, 1]), nvlink([1, 0])]),
            "nvlink: GPUs 1 and 0 have one already; state the bandwidth of all together"
        );
        assert_eq!(
            error(|node| node.nvlinks = vec![nvlink([1, 1])]),
            "nvlink: from GPU 1 to itself"
        );
        let none = NvLink {
            gpus: [0, 1],
            bytes_per_second: 0,
        };
        assert!(error(|node| node.nvlinks = vec![none]).starts_with("nvlink: 0 bytes per second"));
        assert_eq!(
            error(|node| node.scale.time = 9),
            "scale: time = 9: allowed: 1 to 8"
        );
        assert_eq!(
            error(|node| node.scale.bytes = 0),
            "scale: bytes = 0: allowed: 1 to 512"
        );
    }
}
