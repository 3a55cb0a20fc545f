//! Which nodes hold a function, and which of them serves a request (M2.17).
//!
//! A function goes to the node with the least expected load of those whose host memory can take its model. Load is the
//! sum over functions of rate × time on a slot, swap included, as a share of the node's slots. A function that would
//! load a node by more than a tenth gets two nodes, and each bears half; one that falls below 8 % gives the second up
//! again, so that a rate about the edge moves nothing to and fro. A request goes to the node of its function
//! with the least work outstanding for each of its slots.
//!
//! [`Nodes::place`] and [`Nodes::set_load`] are O(nodes), [`Nodes::route`] is O(1).

use std::fmt;

use super::{FunctionId, IDS_MAX};
use crate::Span;

/// A node: a small integer. Dense, from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u32);

/// How long one second of requests keeps one slot busy: rate × time with the swap. 1 s: one slot is full.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LoadPerSecond(pub Span);

/// Two nodes for functions above this part of a node, in percent, until they are below the other.
const SECOND_ABOVE: u128 = 10;
const SECOND_BELOW: u128 = 8;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Nothing new is placed here.
    closed: bool,
    slots: u32,
    memory_free: u64,
    /// Wide, so that no sum of loads is too large for it.
    load: u128,
    outstanding: u64,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    bytes: u64,
    load: u64,
    first: u32,
    second: Option<u32>,
}

impl Placed {
    /// What each of its nodes bears.
    fn share(&self) -> u64 {
        self.load / if self.second.is_some() { 2 } else { 1 }
    }

    fn nodes(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.first).chain(self.second)
    }
}

/// Why a function has no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// The id is not below [`IDS_MAX`].
    IdTooLarge,
    /// It has one already.
    Placed,
    /// No open node has that much host memory left.
    NoHostMemory,
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IdTooLarge => "the function's id is too large",
            Self::Placed => "the function has a node already",
            Self::NoHostMemory => "no node has the host memory",
        })
    }
}

impl std::error::Error for PlaceError {}

/// What becomes of a function whose load has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This node holds it, too.
    Added(NodeId),
    /// This node does not hold it any more; what it still has to do it finishes.
    Dropped(NodeId),
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    nodes: Vec<Node>,
    functions: Vec<Option<Placed>>,
}

impl Nodes {
    /// A node has come, with so many slots and so many bytes of host memory for models; one without slots counts as
    /// having one.
    pub fn add_node(&mut self, slots: u32, host_memory: u64) -> NodeId {
        let id = u32::try_from(self.nodes.len()).expect("a cluster has fewer nodes than 2^32");
        self.nodes.push(Node {
            closed: false,
            slots: slots.max(1),
            memory_free: host_memory,
            load: 0,
            outstanding: 0,
        });
        NodeId(id)
    }

    /// Nothing new is placed on a node, as while it is drained, or things are again.
    pub fn set_closed(&mut self, node: NodeId, closed: bool) {
        if let Some(node) = self.nodes.get_mut(node.0 as usize) {
            node.closed = closed;
        }
    }

    /// Finds a node for a function, or two.
    ///
    /// # Errors
    /// [`PlaceError`]. A second node that cannot be found is none.
    pub fn place(
        &mut self,
        function: FunctionId,
        bytes: u64,
        load: LoadPerSecond,
    ) -> Result<(NodeId, Option<NodeId>), PlaceError> {
        if function.0 >= IDS_MAX {
            return Err(PlaceError::IdTooLarge);
        }
        if self.placed(function).is_some() {
            return Err(PlaceError::Placed);
        }
        let first = self
            .least_loaded(bytes, None)
            .ok_or(PlaceError::NoHostMemory)?;
        let mut placed = Placed {
            bytes,
            load: load.0.0,
            first,
            second: None,
        };
        if self.exceeds(placed.load, first, SECOND_ABOVE) {
            placed.second = self.least_loaded(bytes, Some(first));
        }
        self.bear(&placed);
        let at = function.0 as usize;
        if self.functions.len() <= at {
            self.functions.resize(at + 1, None);
        }
        self.functions[at] = Some(placed);
        Ok((NodeId(first), placed.second.map(NodeId)))
    }

    /// A function goes.
    pub fn remove(&mut self, function: FunctionId) {
        if let Some(placed) = self.placed(function) {
            self.forget(&placed);
            self.functions[function.0 as usize] = None;
        }
    }

    /// The expected load of a function has changed; says whether it is to have another node, or one fewer.
    pub fn set_load(&mut self, function: FunctionId, load: LoadPerSecond) -> Option<Change> {
        let before = self.placed(function)?;
        self.forget(&before);
        let mut placed = Placed {
            load: load.0.0,
            ..before
        };
        let change = match before.second {
            None if self.exceeds(placed.load, placed.first, SECOND_ABOVE) => {
                placed.second = self.least_loaded(placed.bytes, Some(placed.first));
                placed.second.map(|node| Change::Added(NodeId(node)))
            }
            Some(second) if !self.exceeds(placed.load, placed.first, SECOND_BELOW) => {
                placed.second = None;
                Some(Change::Dropped(NodeId(second)))
            }
            None | Some(_) => None,
        };
        self.bear(&placed);
        self.functions[function.0 as usize] = Some(placed);
        change
    }

    /// The node that serves a request of this function, which takes so long on a slot. `None` if it has no node.
    pub fn route(&mut self, function: FunctionId, work: Span) -> Option<NodeId> {
        let placed = self.placed(function)?;
        let node = match placed.second {
            Some(second) if self.waits_longer(placed.first, second) => second,
            _ => placed.first,
        };
        let outstanding = &mut self.nodes[node as usize].outstanding;
        *outstanding = outstanding.saturating_add(work.0);
        Some(NodeId(node))
    }

    /// A request that was routed to a node is done, with the work that [`Nodes::route`] was told.
    pub fn done(&mut self, node: NodeId, work: Span) {
        if let Some(node) = self.nodes.get_mut(node.0 as usize) {
            node.outstanding = node.outstanding.saturating_sub(work.0);
        }
    }

    /// The expected load of a node, for all its slots.
    #[must_use]
    pub fn load(&self, node: NodeId) -> Option<LoadPerSecond> {
        let load = self.nodes.get(node.0 as usize)?.load;
        Some(LoadPerSecond(Span(u64::try_from(load).unwrap_or(u64::MAX))))
    }

    /// What is left of a node's host memory, in bytes.
    #[must_use]
    pub fn memory_free(&self, node: NodeId) -> Option<u64> {
        Some(self.nodes.get(node.0 as usize)?.memory_free)
    }

    fn placed(&self, function: FunctionId) -> Option<Placed> {
        *self.functions.get(function.0 as usize)?
    }

    fn least_loaded(&self, bytes: u64, but: Option<u32>) -> Option<u32> {
        let mut best: Option<u32> = None;
        for (id, node) in (0..).zip(&self.nodes) {
            if node.closed || node.memory_free < bytes || Some(id) == but {
                continue;
            }
            let less = |best: u32| {
                let best = &self.nodes[best as usize];
                per_slot(node.load, best) < per_slot(best.load, node)
            };
            if best.is_none_or(less) {
                best = Some(id);
            }
        }
        best
    }

    fn exceeds(&self, load: u64, node: u32, percent: u128) -> bool {
        let full = u128::from(self.nodes[node as usize].slots) * 1_000_000_000;
        u128::from(load) * 100 > full * percent
    }

    fn waits_longer(&self, one: u32, other: u32) -> bool {
        let (one, other) = (&self.nodes[one as usize], &self.nodes[other as usize]);
        per_slot(u128::from(one.outstanding), other) > per_slot(u128::from(other.outstanding), one)
    }

    fn bear(&mut self, placed: &Placed) {
        for node in placed.nodes() {
            let node = &mut self.nodes[node as usize];
            node.memory_free -= placed.bytes;
            node.load += u128::from(placed.share());
        }
    }

    fn forget(&mut self, placed: &Placed) {
        for node in placed.nodes() {
            let node = &mut self.nodes[node as usize];
            node.memory_free += placed.bytes;
            node.load -= u128::from(placed.share());
        }
    }
}

/// One side of a comparison of loads per slot: of one, times the slots of the other.
fn per_slot(load: u128, other: &Node) -> u128 {
    load * u128::from(other.slots)
}
