//! Commands of a stream, and graphs of them.

use std::sync::Arc;

use crate::Span;
use crate::compute::Kernel;
use crate::machine::EventId;
use crate::node::Direction;

/// Source and destination of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// From host memory to the device.
    HostToDevice,
    /// From the device to host memory.
    DeviceToHost,
    /// From pageable host memory, which the driver stages, to the device.
    PageableToDevice,
    /// From the device to pageable host memory.
    DeviceToPageable,
    /// To another GPU or slice of the node, given by its number.
    Peer(u32),
    /// Within the memory of the GPU or slice, where every byte is both read and written.
    Within,
}

/// Command of a stream.
#[derive(Clone, Debug)]
pub enum Op {
    /// Runs a kernel on the SMs of the GPU or slice.
    Kernel(Kernel),
    /// Copies bytes between memories.
    Copy {
        /// Source and destination of the copy.
        kind: CopyKind,
        /// Number of bytes to copy.
        bytes: u64,
    },
    /// Writes to the GPU's or slice's own memory, as memset does.
    Set {
        /// Number of bytes to write.
        bytes: u64,
    },
    /// Lets time pass without holding a resource.
    Delay(Span),
    /// Runs a host function, which ends when the host reports it.
    Host,
    /// Runs all nodes of a graph.
    Graph(Arc<Graph>),
    /// Records an event, which completes when all earlier work of the stream has ended.
    Record(EventId),
    /// Waits until the record that was last submitted for the event before this command is complete.
    Wait(EventId),
}

/// Pieces of work with dependencies between them.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// Indices of the nodes without predecessors, which start first.
    pub(crate) roots: Vec<u32>,
}

/// Piece of work of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) op: Op,
    /// Number of predecessors.
    pub(crate) before: u32,
    /// Indices of the successors.
    pub(crate) next: Vec<u32>,
}

impl CopyKind {
    /// Returns the copy engine that carries the copy: between devices that of the source, within a device none.
    pub(crate) const fn direction(self) -> Option<Direction> {
        match self {
            Self::HostToDevice | Self::PageableToDevice => Some(Direction::ToDevice),
            Self::DeviceToHost | Self::DeviceToPageable | Self::Peer(_) => {
                Some(Direction::FromDevice)
            }
            Self::Within => None,
        }
    }
}

impl Op {
    /// Returns the copy engine that the command needs.
    pub(crate) const fn engine(&self) -> Option<Direction> {
        match self {
            Self::Copy { kind, .. } => kind.direction(),
            _ => None,
        }
    }
}

impl Graph {
    /// Adds a kernel, copy, memset, delay or host function which runs when its predecessors in `after` have ended, and returns
    /// its index. Returns `None` for other commands, graphs and events among them, and for predecessors that are not in the
    /// graph.
    pub fn add(&mut self, op: Op, after: &[usize]) -> Option<usize> {
        let place = self.nodes.len();
        let is_work = !matches!(op, Op::Graph(_) | Op::Record(_) | Op::Wait(_));
        if !is_work || after.iter().any(|&before| before >= place) {
            return None;
        }
        let number = u32::try_from(place).ok()?;
        let mut before = 0;
        for &other in after {
            let next = &mut self.nodes[other].next;
            // A predecessor that is listed twice counts once.
            if next.last() != Some(&number) {
                next.push(number);
                before += 1;
            }
        }
        if before == 0 {
            self.roots.push(number);
        }
        self.nodes.push(Node {
            op,
            before,
            next: Vec::new(),
        });
        Some(place)
    }

    /// Returns the number of nodes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the graph has no nodes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_accepts_only_work_after_existing_nodes() {
        let mut graph = Graph::default();
        let first = graph.add(Op::Delay(Span(1)), &[]);
        assert_eq!(first, Some(0));
        assert_eq!(graph.add(Op::Host, &[0, 0]), Some(1));
        assert_eq!(graph.add(Op::Delay(Span(1)), &[2]), None);
        assert_eq!(graph.add(Op::Record(EventId(0)), &[]), None);
        assert_eq!(graph.add(Op::Graph(Arc::default()), &[]), None);
        assert_eq!((graph.len(), graph.nodes[1].before), (2, 1));
    }
}
