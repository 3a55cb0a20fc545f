//! Graphs, their nodes and the edges between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::state::State;
use crate::table::{Handle, Kind, Table};
use crate::work::Work;

use super::objects::Held;
use super::parameters::ExportedParameters;

/// Kinds of nodes, numbered as `CUgraphNodeType`.
pub(super) mod kind {
    pub(in crate::graph) const KERNEL: u32 = 0;
    pub(in crate::graph) const COPY: u32 = 1;
    pub(in crate::graph) const SET: u32 = 2;
    pub(in crate::graph) const HOST: u32 = 3;
    pub(in crate::graph) const CHILD: u32 = 4;
    pub(in crate::graph) const EMPTY: u32 = 5;
    pub(in crate::graph) const WAIT: u32 = 6;
    pub(in crate::graph) const RECORD: u32 = 7;
}

/// Largest number of nodes in all graphs of a process.
const NODES: usize = 1 << 22;

/// Identity of a node, for which programs hold handles.
pub(crate) struct NodeRef {
    graph: Handle<Graph>,
    id: usize,
}

impl Kind for NodeRef {
    const NUMBER: u64 = 20;
}

/// All nodes by handle. Locked briefly, by threads that already hold the state.
static NODE_REFS: Mutex<Table<NodeRef>> = Mutex::new(Table::new(NODES));

fn node_refs() -> MutexGuard<'static, Table<NodeRef>> {
    NODE_REFS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the graph of a node, and the node's id in it.
pub(super) fn find(node: Handle<NodeRef>) -> Result<(Handle<Graph>, usize)> {
    node_refs()
        .get(node)
        .map(|place| (place.graph, place.id))
        .ok_or(Error::INVALID_VALUE)
}

/// Action of a node.
#[derive(Clone, Debug)]
pub(crate) enum NodeAction {
    Work(Work),
    /// Runs a graph that belongs to this node.
    Child(Handle<Graph>),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

impl NodeAction {
    /// Returns the kind, as a `CUgraphNodeType`.
    pub(super) const fn kind(&self) -> u32 {
        match self {
            Self::Work(work) => kind_of(work),
            Self::Child(_) => kind::CHILD,
            Self::Record(_) => kind::RECORD,
            Self::Wait(_) => kind::WAIT,
        }
    }
}

/// Returns the kind of a node with this work.
pub(super) const fn kind_of(work: &Work) -> u32 {
    match work {
        Work::Kernel(_) => kind::KERNEL,
        Work::Copy(_) => kind::COPY,
        Work::Set(_) => kind::SET,
        Work::Host(_) => kind::HOST,
        Work::Nothing => kind::EMPTY,
    }
}

/// A node of a graph.
pub(crate) struct Node {
    pub(super) handle: Handle<NodeRef>,
    pub(super) action: NodeAction,
    /// Ids of the nodes it waits for.
    pub(super) after: Vec<usize>,
    /// Ids of the nodes that wait for it.
    pub(super) before: Vec<usize>,
    /// Node of which this node is a copy; null for none.
    pub(super) original: Handle<NodeRef>,
    /// Parameters of a kernel, in memory to which the program has pointers.
    pub(super) exported: Option<Box<ExportedParameters>>,
}

/// A graph of nodes by id.
pub(crate) struct Graph {
    /// Nodes by id, in order of their addition. No id is reused.
    pub(super) nodes: BTreeMap<usize, Node>,
    next: usize,
    /// Graph that contains the child node to which this graph belongs.
    pub(super) owner: Option<Handle<Self>>,
    /// User objects bound to the lifetime of the graph.
    pub(super) objects: Vec<Held>,
}

impl Kind for Graph {
    const NUMBER: u64 = 8;
}

impl Graph {
    pub(super) const fn new(owner: Option<Handle<Self>>) -> Self {
        Self {
            nodes: BTreeMap::new(),
            next: 0,
            owner,
            objects: Vec::new(),
        }
    }

    /// Adds a node that waits for others; `own` is this graph's handle. Fails for unknown or repeated dependencies.
    pub(super) fn add(
        &mut self,
        own: Handle<Self>,
        action: NodeAction,
        after: &[usize],
    ) -> Result<usize> {
        let distinct: BTreeSet<_> = after.iter().collect();
        if distinct.len() != after.len() || after.iter().any(|id| !self.nodes.contains_key(id)) {
            return Err(Error::INVALID_VALUE);
        }
        let id = self.next;
        let place = NodeRef { graph: own, id };
        let handle = node_refs().insert(place).ok_or(Error::OUT_OF_MEMORY)?;
        let node = Node {
            handle,
            action,
            after: after.to_vec(),
            before: Vec::new(),
            original: Handle::NULL,
            exported: None,
        };
        self.nodes.insert(id, node);
        self.next += 1;
        for earlier in after {
            if let Some(earlier) = self.nodes.get_mut(earlier) {
                earlier.before.push(id);
            }
        }
        Ok(id)
    }

    /// Removes a node and its edges.
    pub(super) fn remove(&mut self, id: usize) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        for earlier in &node.after {
            if let Some(earlier) = self.nodes.get_mut(earlier) {
                earlier.before.retain(|&at| at != id);
            }
        }
        for later in &node.before {
            if let Some(later) = self.nodes.get_mut(later) {
                later.after.retain(|&at| at != id);
            }
        }
        node_refs().remove(node.handle);
        Some(node)
    }

    /// Adds an edge; fails if it exists or would form a cycle.
    pub(super) fn connect(&mut self, earlier: usize, later: usize) -> Result {
        let there = self.nodes.get(&later).ok_or(Error::INVALID_VALUE)?;
        let is_known = self.nodes.contains_key(&earlier);
        if !is_known || there.after.contains(&earlier) || self.reaches(later, earlier) {
            return Err(Error::INVALID_VALUE);
        }
        if let Some(node) = self.nodes.get_mut(&later) {
            node.after.push(earlier);
        }
        if let Some(node) = self.nodes.get_mut(&earlier) {
            node.before.push(later);
        }
        Ok(())
    }

    /// Removes an edge; fails if it does not exist.
    pub(super) fn disconnect(&mut self, earlier: usize, later: usize) -> Result {
        let there = self.nodes.get_mut(&later).ok_or(Error::INVALID_VALUE)?;
        let at = there.after.iter().position(|&id| id == earlier);
        there.after.remove(at.ok_or(Error::INVALID_VALUE)?);
        if let Some(node) = self.nodes.get_mut(&earlier) {
            node.before.retain(|&id| id != later);
        }
        Ok(())
    }

    /// Returns whether `first` is `last` or precedes it.
    fn reaches(&self, first: usize, last: usize) -> bool {
        self.before_and(&[last]).contains(&first)
    }

    /// Returns the given nodes and all that precede them.
    pub(super) fn before_and(&self, last: &[usize]) -> BTreeSet<usize> {
        let mut seen = BTreeSet::new();
        let mut open = last.to_vec();
        while let Some(id) = open.pop() {
            if seen.insert(id)
                && let Some(node) = self.nodes.get(&id)
            {
                open.extend(&node.after);
            }
        }
        seen
    }

    /// Returns all ids in topological order, and otherwise in order of addition.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut waits: BTreeMap<_, _> = self
            .nodes
            .iter()
            .map(|(&id, node)| (id, node.after.len()))
            .collect();
        let mut ready: BinaryHeap<_> = waits
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(&id, _)| Reverse(id))
            .collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(Reverse(id)) = ready.pop() {
            order.push(id);
            for later in &self.nodes[&id].before {
                if let Some(count) = waits.get_mut(later) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(Reverse(*later));
                    }
                }
            }
        }
        order
    }

    /// Returns the handles of nodes.
    pub(super) fn handles(&self, ids: &[usize]) -> Vec<Handle<NodeRef>> {
        ids.iter()
            .filter_map(|id| self.nodes.get(id))
            .map(|node| node.handle)
            .collect()
    }
}

/// Creates an empty graph.
pub(super) fn create(state: &mut State, owner: Option<Handle<Graph>>) -> Result<Handle<Graph>> {
    let graph = state.graphs.insert(Graph::new(owner));
    graph.ok_or(Error::OUT_OF_MEMORY)
}

/// Adds a node to a graph.
pub(super) fn add(
    state: &mut State,
    graph: Handle<Graph>,
    action: NodeAction,
    after: &[usize],
) -> Result<usize> {
    let there = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    there.add(graph, action, after)
}

/// Copies a graph with its child graphs. Nodes keep their ids.
pub(super) fn copy(
    state: &mut State,
    graph: Handle<Graph>,
    owner: Option<Handle<Graph>>,
) -> Result<Handle<Graph>> {
    let there = state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
    let (next, objects) = (there.next, there.objects.clone());
    let nodes: Vec<_> = there
        .order()
        .into_iter()
        .map(|id| {
            let node = &there.nodes[&id];
            (id, node.handle, node.action.clone(), node.after.clone())
        })
        .collect();
    let new = create(state, owner)?;
    for (id, original, action, after) in nodes {
        let action = match action {
            NodeAction::Child(child) => NodeAction::Child(copy(state, child, Some(new))?),
            other => other,
        };
        let there = state.graphs.get_mut(new).ok_or(Error::OUT_OF_MEMORY)?;
        there.next = id;
        there.add(new, action, &after)?;
        if let Some(node) = there.nodes.get_mut(&id) {
            node.original = original;
        }
    }
    if let Some(there) = state.graphs.get_mut(new) {
        there.next = next;
        there.objects = objects;
    }
    Ok(new)
}

/// Destroys a graph with its child graphs.
pub(super) fn destroy(state: &mut State, graph: Handle<Graph>) {
    let Some(there) = state.graphs.remove(graph) else {
        return;
    };
    for node in there.nodes.into_values() {
        node_refs().remove(node.handle);
        if let NodeAction::Child(child) = node.action {
            destroy(state, child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> (Graph, Handle<Graph>) {
        (Graph::new(None), Handle::NULL)
    }

    fn empty(graph: &mut Graph, own: Handle<Graph>, after: &[usize]) -> usize {
        graph
            .add(own, NodeAction::Work(Work::Nothing), after)
            .unwrap()
    }

    #[test]
    fn nodes_follow_their_dependencies() {
        let (mut graph, own) = graph();
        let [a, b] = [(); 2].map(|()| empty(&mut graph, own, &[]));
        let c = empty(&mut graph, own, &[a]);
        let d = empty(&mut graph, own, &[b, c]);
        assert_eq!(graph.order(), [a, b, c, d]);
        graph.connect(d, b).unwrap_err();
        graph.disconnect(b, d).unwrap();
        graph.connect(d, b).unwrap();
        assert_eq!(graph.order(), [a, c, d, b]);
        assert_eq!(graph.before_and(&[d]), BTreeSet::from([a, c, d]));
        assert_eq!(graph.nodes[&d].before, [b]);
    }

    #[test]
    fn cycles_and_repeated_edges_are_refused() {
        let (mut graph, own) = graph();
        let a = empty(&mut graph, own, &[]);
        let b = empty(&mut graph, own, &[a]);
        let c = empty(&mut graph, own, &[b]);
        for (earlier, later) in [(a, b), (c, a), (b, b), (b, 77), (77, b)] {
            assert_eq!(graph.connect(earlier, later), Err(Error::INVALID_VALUE));
        }
        assert_eq!(graph.disconnect(a, c), Err(Error::INVALID_VALUE));
        for after in [vec![a, a], vec![77]] {
            let added = graph.add(own, NodeAction::Work(Work::Nothing), &after);
            assert_eq!(added, Err(Error::INVALID_VALUE));
        }
    }

    #[test]
    fn a_removed_node_leaves_no_trace() {
        let (mut graph, own) = graph();
        let a = empty(&mut graph, own, &[]);
        let b = empty(&mut graph, own, &[a]);
        let c = empty(&mut graph, own, &[b]);
        let handle = graph.nodes[&b].handle;
        assert!(find(handle).is_ok());
        graph.remove(b).unwrap();
        assert_eq!(find(handle), Err(Error::INVALID_VALUE));
        assert!(graph.nodes[&a].before.is_empty() && graph.nodes[&c].after.is_empty());
        assert_eq!(empty(&mut graph, own, &[c]), 3);
        assert_eq!(graph.order(), [a, c, 3]);
    }
}
