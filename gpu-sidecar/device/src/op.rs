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
    /// Let time pass without holding anything, as a function of the host does.
    Delay(Span),
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
    pub(crate) nodes: Vec<(Op, Vec<usize>)>,
}

impl Way {
    /// Which copy engine carries it: that of the source, from one device to another.
    pub(crate) const fn direction(self) -> Direction {
        match self {
            Self::HostToDevice => Direction::ToDevice,
            Self::DeviceToHost | Self::Peer(_) => Direction::FromDevice,
        }
    }
}

impl Graph {
    /// Adds a kernel, copy or delay that runs when those in `after`, which must be in the graph already, have ended.
    /// Others, graphs and events among them, are not taken. Returns its place.
    pub fn add(&mut self, op: Op, after: &[usize]) -> Option<usize> {
        let place = self.nodes.len();
        let is_work = matches!(op, Op::Kernel(_) | Op::Copy { .. } | Op::Delay(_));
        if !is_work || after.iter().any(|&before| before >= place) {
            return None;
        }
        self.nodes.push((op, after.to_vec()));
        Some(place)
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
        assert_eq!(graph.add(Op::Delay(Span(1)), &[0]), Some(1));
        assert_eq!(graph.add(Op::Delay(Span(1)), &[2]), None);
        assert_eq!(graph.add(Op::Record(EventId(0)), &[]), None);
        assert_eq!(graph.add(Op::Graph(Arc::default()), &[]), None);
    }
}
