//! Topology of a node: GPUs, switches and links, and the routes of copies.

use std::collections::BTreeMap;

use crate::Span;
use crate::network::{LinkId, Network, Route};
use crate::part::Part;

/// Components of a node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// GPUs of the node.
    pub gpus: Vec<Gpu>,
    /// PCIe switches of the node.
    pub switches: Vec<Switch>,
    /// Additional links between two GPUs.
    pub nvlinks: Vec<NvLink>,
    /// Reduction in speed and size.
    pub scale: Scale,
}

/// Reduction of a node's speed and size, for runs beside programs that use the real clock, on machines with little memory.
/// Transfer sizes have to be reduced by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Factor by which kernels, delays, time slices, switches and copies take longer: 1 to 8.
    pub time: u32,
    /// Divisor of memory sizes, contexts' residues and all bandwidths: 1 to 512.
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

    /// Returns a span multiplied by the scale's factor of time.
    pub(crate) fn span(self, span: Span) -> Span {
        Span(span.0.saturating_mul(self.time.into()))
    }

    /// Returns a size in bytes divided by the scale's divisor of sizes.
    pub(crate) fn size(self, bytes: u64) -> u64 {
        bytes / u64::from(self.bytes)
    }

    /// Returns a link's bandwidth on this node, in bytes per second.
    pub(crate) fn rate(self, bytes_per_second: u64) -> u64 {
        (bytes_per_second / (u64::from(self.time) * u64::from(self.bytes))).max(1)
    }
}

/// GPU of a node.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Model of the GPU.
    pub part: Part,
    /// Profile names of the GPU's slices; empty for a whole GPU.
    pub slices: Vec<String>,
}

/// PCIe switch: GPUs with a shared uplink to the host.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Indices of the switch's GPUs in [`Node::gpus`]; each GPU is behind at most one switch.
    pub gpus: Vec<usize>,
    /// Bandwidth of the uplink, in bytes per second for each direction.
    pub uplink_bytes_per_second: u64,
}

/// NVLink between two GPUs.
#[derive(Clone, Copy, Debug)]
pub struct NvLink {
    /// Indices of the two GPUs; a pair has at most one link.
    pub gpus: [usize; 2],
    /// Bandwidth in bytes per second for each direction.
    pub bytes_per_second: u64,
}

/// Reason for which a topology is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// A switch or link refers to a GPU that does not exist.
    #[error("{link}: no GPU {gpu}: the node has {gpus}, counted from 0")]
    NoGpu {
        /// Kind of the component, `switch` or `nvlink`.
        link: &'static str,
        /// Index of the GPU.
        gpu: usize,
        /// Number of GPUs of the node.
        gpus: usize,
    },
    /// A GPU is behind two switches, or is listed twice for one.
    #[error("switch: GPU {gpu} is already behind a switch")]
    SecondSwitch {
        /// Index of the GPU.
        gpu: usize,
    },
    /// A pair of GPUs has two links, in either order.
    #[error("nvlink: GPUs {one} and {other} are already linked; specify their total bandwidth")]
    SecondLink {
        /// Index of the first GPU of the second link.
        one: usize,
        /// Index of the second GPU of the second link.
        other: usize,
    },
    /// A link connects a GPU with itself.
    #[error("nvlink: GPU {gpu} is linked to itself")]
    LinkToItself {
        /// Index of the GPU.
        gpu: usize,
    },
    /// The bandwidth of a switch or link is out of range.
    #[error("{link}: {bytes_per_second} bytes per second: allowed: 1 to {RATE_MAX}")]
    Rate {
        /// Kind of the component, `switch` or `nvlink`.
        link: &'static str,
        /// Bandwidth of the component, in bytes per second.
        bytes_per_second: u64,
    },
    /// A factor of the scale is out of range.
    #[error("scale: {name} = {value}: allowed: 1 to {max}")]
    Scale {
        /// Name of the factor, `time` or `bytes`.
        name: &'static str,
        /// Value of the factor.
        value: u32,
        /// Largest allowed value of the factor.
        max: u32,
    },
}

/// Largest bandwidth of a link, in bytes per second.
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

/// Links of a GPU, indexed by [`Direction`]: its own, those of its switch with the switch's index, and its part of the driver's staging of
/// pageable memory.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    own: [LinkId; 2],
    switch: Option<(usize, [LinkId; 2])>,
    staging: [LinkId; 2],
}

impl Lanes {
    /// Returns the route between the device and the host.
    fn to_host(self, direction: Direction) -> Route {
        let at = direction as usize;
        match self.switch {
            None => Route::new([self.own[at]]),
            Some((_, switch)) => Route::new([self.own[at], switch[at]]),
        }
    }

    /// Returns the route between the device and pageable memory of the host.
    fn to_pageable(self, direction: Direction) -> Route {
        let at = direction as usize;
        match self.switch {
            None => Route::new([self.own[at], self.staging[at]]),
            Some((_, switch)) => Route::new([self.own[at], switch[at], self.staging[at]]),
        }
    }
}

/// Links of a node, and the routes of copies across them.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    lanes: Vec<Lanes>,
    /// Link from one GPU to another, by their indices.
    nvlinks: BTreeMap<(usize, usize), LinkId>,
}

impl Fabric {
    /// Adds a node's links to a network: for each GPU to the device and from it, for each switch the same, for each NVLink both
    /// directions, for each GPU staging to the device and from it, in this order.
    ///
    /// # Errors
    ///
    /// Returns an error if the topology is invalid.
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
                    staging: [LinkId::default(); 2],
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
        for (gpu, lanes) in node.gpus.iter().zip(&mut lanes) {
            let rate = scale.rate(gpu.part.pageable_bytes_per_second);
            lanes.staging = [network.add(rate), network.add(rate)];
        }
        Ok(Self { lanes, nvlinks })
    }

    /// Returns the route of a copy between a GPU and the host.
    pub(crate) fn to_host(&self, gpu: usize, direction: Direction) -> Route {
        self.lanes[gpu].to_host(direction)
    }

    /// Returns the route of a copy between a GPU and pageable memory of the host.
    pub(crate) fn to_pageable(&self, gpu: usize, direction: Direction) -> Route {
        self.lanes[gpu].to_pageable(direction)
    }

    /// Returns the route of a copy from one GPU to another, or between two slices of one GPU.
    pub(crate) fn to_peer(&self, gpu: usize, to: usize) -> Route {
        if let Some(link) = self.nvlinks.get(&(gpu, to)) {
            return Route::new([*link]);
        }
        let (lanes, others) = (self.lanes[gpu], self.lanes[to]);
        let out = lanes.own[Direction::FromDevice as usize];
        let into = others.own[Direction::ToDevice as usize];
        match (lanes.switch, others.switch) {
            // Within the switch, bypassing its uplink.
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
    fn invalid_topologies_are_refused_with_their_reason() {
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
            "switch: GPU 0 is already behind a switch"
        );
        assert_eq!(
            error(|node| node.switches = vec![switch(&[0, 2])]),
            "switch: no GPU 2: the node has 2, counted from 0"
        );
        assert_eq!(
            error(|node| node.nvlinks = vec![nvlink([0, 1]), nvlink([1, 0])]),
            "nvlink: GPUs 1 and 0 are already linked; specify their total bandwidth"
        );
        assert_eq!(
            error(|node| node.nvlinks = vec![nvlink([1, 1])]),
            "nvlink: GPU 1 is linked to itself"
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
