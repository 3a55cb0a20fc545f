//! What a stream can be told to do.

use std::sync::Arc;

use crate::Span;
use crate::compute::Kernel;
use crate::machine::EventId;
use crate::node::Direction;

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the host.
    HostToDevice,
    /// To the host.
    DeviceToHost,
    /// To another GPU or slice of the node, by its number.
    Peer(u32),
    /// Within the memory of the GPU or slice: every byte is read and written there.
    Within,
}

/// What a stream can be told to do.
#[derive(Clone, Debug)]
pub enum Op {
    /// Run a kernel.
    Kernel(Kernel),
    /// Copy bytes.
    Copy {
        /// Where to.
        way: Way,
        /// How many.
        bytes: u64,
    },
    /// Write bytes of the GPU's or slice's own memory, as memset does.
    Set {
        /// How many.
        bytes: u64,
    },
    /// Let time pass without holding anything.
    Delay(Span),
    /// Run a function of the host: it has its turn, and ends when the host says so.
    Host,
    /// Run all of a graph.
    Graph(Arc<Graph>),
    /// Record an event: it happens when all before it has ended.
    Record(EventId),
    /// Go on only when what was last recorded in the event, before this command, has happened.
    Wait(EventId),
}

/// Work with an order of its own.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// Those that wait for no other.
    pub(crate) roots: Vec<u32>,
}

/// A piece of work of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) op: Op,
    /// For how many others it waits.
    pub(crate) before: u32,
    /// Those that wait for it.
    pub(crate) next: Vec<u32>,
}

impl Way {
    /// Which copy engine carries it: that of the source, from one device to another; none, within a device.
    pub(crate) const fn direction(self) -> Option<Direction> {
        match self {
            Self::HostToDevice => Some(Direction::ToDevice),
            Self::DeviceToHost | Self::Peer(_) => Some(Direction::FromDevice),
            Self::Within => None,
        }
    }
}

impl Op {
    /// The copy engine that it needs.
    pub(crate) const fn engine(&self) -> Option<Direction> {
        match self {
            Self::Copy { way, .. } => way.direction(),
            _ => None,
        }
    }
}

impl Graph {
    /// Adds a kernel, copy, memset, delay or host function that runs when those in `after`, which must be in the graph
    /// already, have ended. Others, graphs and events among them, are not taken. Returns its place.
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
            // Named twice, it is waited for once.
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

    /// How many pieces of work it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_takes_work_behind_work_and_nothing_else() {
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
