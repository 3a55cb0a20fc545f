//! Which nodes hold a function, and which of them serves a request (M2.17).
//!
//! A function is placed on the node with the least expected load among those with enough host memory for its model.
//! Load is the sum over functions of rate × time on a slot, swap included, as a share of the node's slots. A function
//! that would load a node by more than a tenth gets two nodes, each of which bears half; a function that falls below 8
//! % gives the second node up again, so a rate near the threshold causes no oscillation. A request is routed to the
//! function's node with the least outstanding work per slot.
//!
//! [`Nodes::place`] and [`Nodes::set_load`] are O(nodes), [`Nodes::route`] is O(1).
//!
//! # Examples
//!
//! ```
//! use policy::Span;
//! use policy::pool::FunctionId;
//! use policy::pool::nodes::{LoadPerSecond, Nodes};
//!
//! let mut nodes = Nodes::default();
//! let (one, other) = (nodes.add_node(1, 16 << 30), nodes.add_node(4, 64 << 30));
//! let load = LoadPerSecond(Span::from_millis(50));
//! assert_eq!(nodes.place(FunctionId(0), 1 << 30, load), Ok((one, None)));
//! // The first node is loaded by now.
//! assert_eq!(nodes.place(FunctionId(1), 1 << 30, load), Ok((other, None)));
//! assert_eq!(nodes.route(FunctionId(1), Span::from_millis(5)), Some(other));
//! ```

use std::fmt;

use super::{FunctionId, IDS_MAX};
use crate::Span;

/// Id of a node: a small integer. Dense, from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u32);

/// Slot time that one second of requests occupies: rate × time including the swap. One second means that one slot is
/// full.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LoadPerSecond(pub Span);

/// Part of a node, in percent, above which a function gets a second node; below [`SECOND_BELOW`] it loses it again.
const SECOND_ABOVE: u128 = 10;
const SECOND_BELOW: u128 = 8;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// No new function is placed on this node.
    closed: bool,
    slots: u32,
    memory_free: u64,
    /// Sum of the functions' loads, wide enough that it cannot overflow.
    load: u128,
    outstanding: u64,
}

#[derive(Clone, Copy, Debug)]
struct Assignment {
    bytes: u64,
    load: u64,
    first: u32,
    second: Option<u32>,
}

impl Assignment {
    /// Returns the load that each of its nodes bears.
    fn share(&self) -> u64 {
        self.load / if self.second.is_some() { 2 } else { 1 }
    }

    fn nodes(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.first).chain(self.second)
    }
}

/// Reason why a function gets no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// The id is not below [`IDS_MAX`].
    IdTooLarge,
    /// The function already has a node.
    AlreadyPlaced,
    /// No open node has that much host memory left.
    NoHostMemory,
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IdTooLarge => "function id is too large",
            Self::AlreadyPlaced => "function already has a node",
            Self::NoHostMemory => "no node has enough free host memory",
        })
    }
}

impl std::error::Error for PlaceError {}

/// Change of a function's nodes after its load has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This node now holds the function, too.
    Added(NodeId),
    /// This node no longer holds the function; it finishes the requests that it already has.
    Dropped(NodeId),
}

/// Nodes of a cluster and their functions; see the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    nodes: Vec<Node>,
    functions: Vec<Option<Assignment>>,
}

impl Nodes {
    /// Adds a node with `slots` slots and `host_memory` bytes of host memory for models, and returns its id. A node
    /// without slots counts as having one.
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

    /// Closes a node to new functions, as while it is drained, or opens it again.
    pub fn set_closed(&mut self, node: NodeId, closed: bool) {
        if let Some(node) = self.nodes.get_mut(node.0 as usize) {
            node.closed = closed;
        }
    }

    /// Places a function on one node, or on two.
    ///
    /// # Errors
    /// Returns [`PlaceError`] if the first node cannot be found. A second node that cannot be found is omitted.
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
            return Err(PlaceError::AlreadyPlaced);
        }
        let first = self
            .least_loaded(bytes, None)
            .ok_or(PlaceError::NoHostMemory)?;
        let mut placed = Assignment {
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

    /// Removes a function from its nodes.
    pub fn remove(&mut self, function: FunctionId) {
        if let Some(placed) = self.placed(function) {
            self.forget(&placed);
            self.functions[function.0 as usize] = None;
        }
    }

    /// Updates the expected load of a function, and returns whether it gets another node or loses one.
    pub fn set_load(&mut self, function: FunctionId, load: LoadPerSecond) -> Option<Change> {
        let before = self.placed(function)?;
        self.forget(&before);
        let mut placed = Assignment {
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

    /// Routes a request that takes `work` on a slot to a node of its function, or returns `None` if the function has no
    /// node.
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

    /// Records that a request routed to a node is done. `work` must be the value passed to [`Nodes::route`].
    pub fn done(&mut self, node: NodeId, work: Span) {
        if let Some(node) = self.nodes.get_mut(node.0 as usize) {
            node.outstanding = node.outstanding.saturating_sub(work.0);
        }
    }

    /// Returns the expected load of a node, summed over all its slots.
    #[must_use]
    pub fn load(&self, node: NodeId) -> Option<LoadPerSecond> {
        let load = self.nodes.get(node.0 as usize)?.load;
        Some(LoadPerSecond(Span(u64::try_from(load).unwrap_or(u64::MAX))))
    }

    /// Returns the free host memory of a node, in bytes.
    #[must_use]
    pub fn memory_free(&self, node: NodeId) -> Option<u64> {
        Some(self.nodes.get(node.0 as usize)?.memory_free)
    }

    fn placed(&self, function: FunctionId) -> Option<Assignment> {
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

    fn bear(&mut self, placed: &Assignment) {
        for node in placed.nodes() {
            let node = &mut self.nodes[node as usize];
            node.memory_free -= placed.bytes;
            node.load += u128::from(placed.share());
        }
    }

    fn forget(&mut self, placed: &Assignment) {
        for node in placed.nodes() {
            let node = &mut self.nodes[node as usize];
            node.memory_free += placed.bytes;
            node.load -= u128::from(placed.share());
        }
    }
}

/// Returns one side of a comparison of loads per slot: the load of one node times the slots of the other.
fn per_slot(load: u128, other: &Node) -> u128 {
    load * u128::from(other.slots)
}
