//! Graphs and their nodes: what each does, and which wait for which.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::state::State;
use crate::table::{Handle, Kind, Table};
use crate::work::Work;

use super::objects::Held;
use super::parameters::Shown;

/// `CU_GRAPH_NODE_TYPE_…`
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

/// Nodes of all graphs of a process, at most.
const NODES: usize = 1 << 22;

/// Where a node is: programs hold handles of this.
pub(crate) struct Place {
    graph: Handle<Graph>,
    id: usize,
}

impl Kind for Place {
    const NUMBER: u64 = 20;
}

/// Where every node is. It is locked for a moment each time, by whoever holds the state.
static PLACES: Mutex<Table<Place>> = Mutex::new(Table::new(NODES));

fn places() -> MutexGuard<'static, Table<Place>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The graph in which a node is, and its number there.
pub(super) fn find(node: Handle<Place>) -> Result<(Handle<Graph>, usize)> {
    places()
        .get(node)
        .map(|place| (place.graph, place.id))
        .ok_or(Error::INVALID_VALUE)
}

/// What a node does.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Work(Work),
    /// All of a graph that belongs to this node.
    Child(Handle<Graph>),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

impl What {
    /// As the interface numbers it.
    pub(super) const fn kind(&self) -> u32 {
        match self {
            Self::Work(work) => kind_of(work),
            Self::Child(_) => kind::CHILD,
            Self::Record(_) => kind::RECORD,
            Self::Wait(_) => kind::WAIT,
        }
    }
}

/// The kind of a node that does this.
pub(super) const fn kind_of(work: &Work) -> u32 {
    match work {
        Work::Kernel(_) => kind::KERNEL,
        Work::Copy(_) => kind::COPY,
        Work::Set(_) => kind::SET,
        Work::Host(_) => kind::HOST,
        Work::Nothing => kind::EMPTY,
    }
}

/// A node.
pub(crate) struct Node {
    pub(super) handle: Handle<Place>,
    pub(super) what: What,
    /// Nodes that it waits for.
    pub(super) after: Vec<usize>,
    /// Nodes that wait for it.
    pub(super) before: Vec<usize>,
    /// The node of which it is a copy.
    pub(super) original: Handle<Place>,
    /// The parameters of a kernel, as the program was shown them.
    pub(super) shown: Option<Box<Shown>>,
}

/// A graph.
pub(crate) struct Graph {
    /// By their numbers, in the order in which they were added. No number is used twice.
    pub(super) nodes: BTreeMap<usize, Node>,
    next: usize,
    /// The graph that has a node of which it is all.
    pub(super) owner: Option<Handle<Self>>,
    /// What the program has bound to its life.
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

    /// Adds a node behind others. `own` is this graph's handle.
    pub(super) fn add(&mut self, own: Handle<Self>, what: What, after: &[usize]) -> Result<usize> {
        let distinct: BTreeSet<_> = after.iter().collect();
        if distinct.len() != after.len() || after.iter().any(|id| !self.nodes.contains_key(id)) {
            return Err(Error::INVALID_VALUE);
        }
        let id = self.next;
        let place = Place { graph: own, id };
        let handle = places().insert(place).ok_or(Error::OUT_OF_MEMORY)?;
        let node = Node {
            handle,
            what,
            after: after.to_vec(),
            before: Vec::new(),
            original: Handle::NULL,
            shown: None,
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

    /// Removes a node; what waited for it waits for it no more.
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
        places().remove(node.handle);
        Some(node)
    }

    /// Lets one node wait for another.
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

    /// Lets one node wait for another no more.
    pub(super) fn disconnect(&mut self, earlier: usize, later: usize) -> Result {
        let there = self.nodes.get_mut(&later).ok_or(Error::INVALID_VALUE)?;
        let at = there.after.iter().position(|&id| id == earlier);
        there.after.remove(at.ok_or(Error::INVALID_VALUE)?);
        if let Some(node) = self.nodes.get_mut(&earlier) {
            node.before.retain(|&id| id != later);
        }
        Ok(())
    }

    /// Whether a node is another one, or comes before it.
    fn reaches(&self, first: usize, last: usize) -> bool {
        self.before_and(&[last]).contains(&first)
    }

    /// These nodes, and all that come before them.
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

    /// The numbers of all nodes, each behind those that it waits for, and otherwise in the order in which they were added.
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

    /// The handles of nodes.
    pub(super) fn handles(&self, ids: &[usize]) -> Vec<Handle<Place>> {
        ids.iter()
            .filter_map(|id| self.nodes.get(id))
            .map(|node| node.handle)
            .collect()
    }
}

/// Adds a graph.
pub(super) fn create(state: &mut State, owner: Option<Handle<Graph>>) -> Result<Handle<Graph>> {
    let graph = state.graphs.insert(Graph::new(owner));
    graph.ok_or(Error::OUT_OF_MEMORY)
}

/// Adds a node to a graph.
pub(super) fn add(
    state: &mut State,
    graph: Handle<Graph>,
    what: What,
    after: &[usize],
) -> Result<usize> {
    let there = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    there.add(graph, what, after)
}

/// Copies a graph with the graphs of its nodes. Nodes have the same numbers as in the original.
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
            (id, node.handle, node.what.clone(), node.after.clone())
        })
        .collect();
    let new = create(state, owner)?;
    for (id, original, what, after) in nodes {
        let what = match what {
            What::Child(child) => What::Child(copy(state, child, Some(new))?),
            other => other,
        };
        let there = state.graphs.get_mut(new).ok_or(Error::OUT_OF_MEMORY)?;
        there.next = id;
        there.add(new, what, &after)?;
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

/// A graph is gone, with the graphs of its nodes.
pub(super) fn destroy(state: &mut State, graph: Handle<Graph>) {
    let Some(there) = state.graphs.remove(graph) else {
        return;
    };
    for node in there.nodes.into_values() {
        places().remove(node.handle);
        if let What::Child(child) = node.what {
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
        graph.add(own, What::Work(Work::Nothing), after).unwrap()
    }

    #[test]
    fn nodes_are_ordered_behind_those_that_they_wait_for() {
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
    fn what_would_be_a_circle_or_is_there_already_is_refused() {
        let (mut graph, own) = graph();
        let a = empty(&mut graph, own, &[]);
        let b = empty(&mut graph, own, &[a]);
        let c = empty(&mut graph, own, &[b]);
        for (earlier, later) in [(a, b), (c, a), (b, b), (b, 77), (77, b)] {
            assert_eq!(graph.connect(earlier, later), Err(Error::INVALID_VALUE));
        }
        assert_eq!(graph.disconnect(a, c), Err(Error::INVALID_VALUE));
        for after in [vec![a, a], vec![77]] {
            let added = graph.add(own, What::Work(Work::Nothing), &after);
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
