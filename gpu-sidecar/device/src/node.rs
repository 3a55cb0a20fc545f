//! What a node is made of: GPUs, switches, links; and the way of a copy through it.

use std::collections::BTreeMap;

use crate::network::{LinkId, Network};
use crate::op::Way;
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
}

/// A GPU of a node.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// What kind it is.
    pub part: Part,
    /// Its slices, by the names of their profiles; empty: it is whole.
    pub slices: Vec<String>,
    /// An MPS daemon runs for it, or for each slice.
    pub mps: bool,
}

/// GPUs that share a way to the host.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Which, by their places in [`Node::gpus`].
    pub gpus: Vec<usize>,
    /// Bytes per second to the host, each direction by itself.
    pub uplink_bytes_per_second: u64,
}

/// A link between two GPUs.
#[derive(Clone, Copy, Debug)]
pub struct NvLink {
    /// Which two.
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
    fn to_host(self, direction: Direction) -> Vec<LinkId> {
        let at = direction as usize;
        let switch = self.switch.map(|(_, links)| links[at]);
        [self.own[at]].into_iter().chain(switch).collect()
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
    /// A switch or link names a GPU that the node has not.
    pub(crate) fn new(node: &Node, network: &mut Network) -> Result<Self, NodeError> {
        let gpus = node.gpus.len();
        let mut lanes: Vec<_> = node
            .gpus
            .iter()
            .map(|gpu| {
                let bytes_per_second = gpu.part.host_link_bytes_per_second;
                Lanes {
                    own: [network.add(bytes_per_second), network.add(bytes_per_second)],
                    switch: None,
                }
            })
            .collect();
        for (at, switch) in node.switches.iter().enumerate() {
            let uplink = switch.uplink_bytes_per_second;
            let links = [network.add(uplink), network.add(uplink)];
            for &gpu in &switch.gpus {
                let link = "switch";
                let lanes = lanes
                    .get_mut(gpu)
                    .ok_or(NodeError::NoGpu { link, gpu, gpus })?;
                lanes.switch = Some((at, links));
            }
        }
        let mut nvlinks = BTreeMap::new();
        for nvlink in &node.nvlinks {
            let [one, other] = nvlink.gpus;
            if let Some(&gpu) = nvlink.gpus.iter().find(|&&gpu| gpu >= gpus) {
                let link = "nvlink";
                return Err(NodeError::NoGpu { link, gpu, gpus });
            }
            for way in [(one, other), (other, one)] {
                nvlinks.insert(way, network.add(nvlink.bytes_per_second));
            }
        }
        Ok(Self { lanes, nvlinks })
    }

    /// The links that a copy from or to this GPU crosses; `gpu_of` tells on which GPU a slice lies.
    pub(crate) fn links(
        &self,
        gpu: usize,
        way: Way,
        gpu_of: impl Fn(u32) -> Option<usize>,
    ) -> Vec<LinkId> {
        let lanes = self.lanes[gpu];
        let Way::Peer(other) = way else {
            return lanes.to_host(way.direction());
        };
        let to = gpu_of(other).unwrap_or(gpu);
        if let Some(link) = self.nvlinks.get(&(gpu, to)) {
            return vec![*link];
        }
        let others = self.lanes[to];
        let switch_of = |lanes: Lanes| lanes.switch.map(|(at, _)| at);
        if switch_of(lanes).is_some() && switch_of(lanes) == switch_of(others) {
            // Within the switch, past its way to the host.
            return vec![
                lanes.own[Direction::FromDevice as usize],
                others.own[Direction::ToDevice as usize],
            ];
        }
        let mut links = lanes.to_host(Direction::FromDevice);
        links.extend(others.to_host(Direction::ToDevice));
        links
    }
}
