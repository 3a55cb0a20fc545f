//! Graphs built by explicit calls: nodes, their dependencies, and their parameters.

use crate::context::Context;
use crate::copy::Copy3d;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pointer::{In, Out};
use crate::state::State;
use crate::table::Handle;
use crate::work::Work;

use super::exchange::{InOut, write_lists};
use super::nodes::{self, Graph, Node, NodeAction, NodeRef};
use super::parameters::{
    HostParameters, KernelParameters, KernelParametersV1, NodeParameters, SetParameters,
    copy_parameters, copy_work, known_event,
};

/// `CUgraphEdgeData`, of which only the default, all zeros, is supported.
pub(crate) type Edge = u64;

/// Returns the ids of nodes; fails for a node of another graph.
fn ids_of(graph: Handle<Graph>, list: In<Handle<NodeRef>>, count: usize) -> Result<Vec<usize>> {
    let list = list.list(count)?;
    list.into_iter()
        .map(|node| match nodes::find(node)? {
            (of, id) if of == graph => Ok(id),
            _ => Err(Error::INVALID_VALUE),
        })
        .collect()
}

/// Fails unless the edge data are absent or all default.
fn check_edges(edges: In<Edge>, count: usize) -> Result {
    if edges.is_null() || edges.list(count)?.iter().all(|edge| *edge == 0) {
        return Ok(());
    }
    Err(Error::NOT_SUPPORTED)
}

fn graph_of(state: &State, graph: Handle<Graph>) -> Result<&Graph> {
    state.graphs.get(graph).ok_or(Error::INVALID_VALUE)
}

fn node_of(state: &State, node: Handle<NodeRef>) -> Result<&Node> {
    let (graph, id) = nodes::find(node)?;
    graph_of(state, graph)?
        .nodes
        .get(&id)
        .ok_or(Error::INVALID_VALUE)
}

fn node_mut(state: &mut State, node: Handle<NodeRef>) -> Result<&mut Node> {
    let (graph, id) = nodes::find(node)?;
    let graph = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    graph.nodes.get_mut(&id).ok_or(Error::INVALID_VALUE)
}

/// Implements `cuGraphCreate`: creates an empty graph.
pub(crate) fn create(out: Out<Handle<Graph>>, flags: u32) -> Result {
    let driver = driver()?;
    if flags != 0 || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let graph = nodes::create(&mut driver.state(), None)?;
    out.put(graph)
}

/// Implements `cuGraphDestroy`: fails for the graph of a child node.
pub(crate) fn destroy(graph: Handle<Graph>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    if graph_of(&state, graph)?.owner.is_some() {
        return Err(Error::INVALID_VALUE);
    }
    nodes::destroy(&mut state, graph);
    Ok(())
}

/// Implements `cuGraphClone`: copies a graph with its child graphs.
pub(crate) fn clone(out: Out<Handle<Graph>>, graph: Handle<Graph>) -> Result {
    let driver = driver()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let new = nodes::copy(&mut driver.state(), graph, None)?;
    out.put(new)
}

/// Implements `cuGraphNodeFindInClone`: finds the copy of a node in a clone.
pub(crate) fn find_in_clone(
    out: Out<Handle<NodeRef>>,
    original: Handle<NodeRef>,
    clone: Handle<Graph>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    node_of(&state, original)?;
    let found = graph_of(&state, clone)?
        .nodes
        .values()
        .find(|node| node.original == original);
    out.put(found.ok_or(Error::INVALID_VALUE)?.handle)
}

/// Dependencies of a new node, as passed by the caller.
#[derive(Clone, Copy)]
pub(crate) struct Dependencies {
    pub(crate) list: In<Handle<NodeRef>>,
    pub(crate) edges: In<Edge>,
    pub(crate) count: usize,
}

impl Dependencies {
    /// Creates dependencies with default edge data.
    pub(crate) const fn new(list: In<Handle<NodeRef>>, count: usize) -> Self {
        Self {
            list,
            edges: In::from_raw(std::ptr::null()),
            count,
        }
    }

    /// Returns the ids of the nodes in a graph.
    pub(super) fn ids(&self, graph: Handle<Graph>) -> Result<Vec<usize>> {
        check_edges(self.edges, self.count)?;
        ids_of(graph, self.list, self.count)
    }
}

fn add(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    action: impl FnOnce(&Driver, &mut State) -> Result<NodeAction>,
) -> Result {
    let driver = driver()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    graph_of(&state, graph)?;
    let after = dependencies.ids(graph)?;
    let action = match action(driver, &mut state)? {
        NodeAction::Child(child) => NodeAction::Child(nodes::copy(&mut state, child, Some(graph))?),
        other => other,
    };
    let child = match &action {
        NodeAction::Child(child) => *child,
        _ => Handle::NULL,
    };
    match nodes::add(&mut state, graph, action, &after) {
        Ok(id) => out.put(graph_of(&state, graph)?.nodes[&id].handle),
        Err(error) => {
            nodes::destroy(&mut state, child);
            Err(error)
        }
    }
}

/// Implements `cuGraphAddKernelNode_v2`: adds a kernel node.
pub(crate) fn add_kernel(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    parameters: In<KernelParameters>,
) -> Result {
    add(out, graph, dependencies, |driver, state| {
        parameters.get()?.work(driver, state).map(NodeAction::Work)
    })
}

/// Implements `cuGraphAddKernelNode`: adds a kernel node, with parameters of version 1.
pub(crate) fn add_kernel_v1(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    parameters: In<KernelParametersV1>,
) -> Result {
    add(out, graph, dependencies, |driver, state| {
        parameters
            .get()?
            .widen()
            .work(driver, state)
            .map(NodeAction::Work)
    })
}

/// Implements `cuGraphAddMemcpyNode`: adds a copy node.
pub(crate) fn add_copy(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    parameters: In<Copy3d>,
    context: Handle<Context>,
) -> Result {
    add(out, graph, dependencies, |driver, state| {
        copy_work(driver, state, &parameters.get()?, context).map(NodeAction::Work)
    })
}

/// Implements `cuGraphAddMemsetNode`: adds a memset node.
pub(crate) fn add_set(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    parameters: In<SetParameters>,
    context: Handle<Context>,
) -> Result {
    add(out, graph, dependencies, |driver, state| {
        parameters
            .get()?
            .work(driver, state, context)
            .map(NodeAction::Work)
    })
}

/// Implements `cuGraphAddHostNode`: adds a host function node.
pub(crate) fn add_host(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    parameters: In<HostParameters>,
) -> Result {
    add(out, graph, dependencies, |_, _| {
        parameters.get()?.work().map(NodeAction::Work)
    })
}

/// Implements `cuGraphAddEmptyNode`: adds a node without work.
pub(crate) fn add_empty(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
) -> Result {
    add(out, graph, dependencies, |_, _| {
        Ok(NodeAction::Work(Work::Nothing))
    })
}

/// Implements `cuGraphAddChildGraphNode`: adds a node with a copy of a graph.
pub(crate) fn add_child(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    child: Handle<Graph>,
) -> Result {
    add(out, graph, dependencies, |_, _| {
        Ok(NodeAction::Child(child))
    })
}

/// Implements `cuGraphAddEventRecordNode`: adds a node that records an event.
pub(crate) fn add_record(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    event: Handle<Event>,
) -> Result {
    add(out, graph, dependencies, |_, state| {
        known_event(state, event).map(NodeAction::Record)
    })
}

/// Implements `cuGraphAddEventWaitNode`: adds a node that waits for an event.
pub(crate) fn add_wait(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    event: Handle<Event>,
) -> Result {
    add(out, graph, dependencies, |_, state| {
        known_event(state, event).map(NodeAction::Wait)
    })
}

/// Implements `cuGraphAddNode` and `cuGraphAddNode_v2`: adds a node of any kind.
pub(crate) fn add_any(
    out: Out<Handle<NodeRef>>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    parameters: In<NodeParameters>,
) -> Result {
    add(out, graph, dependencies, |driver, state| {
        parameters.get()?.action(driver, state)
    })
}

/// Implements `cuGraphDestroyNode`: removes a node with its edges.
pub(crate) fn destroy_node(node: Handle<NodeRef>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let (graph, id) = nodes::find(node)?;
    let there = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    let node = there.remove(id).ok_or(Error::INVALID_VALUE)?;
    if let NodeAction::Child(child) = node.action {
        nodes::destroy(&mut state, child);
    }
    Ok(())
}

/// Edges as pairs of an earlier and a later node, as passed by the caller.
#[derive(Clone, Copy)]
pub(crate) struct Pairs {
    pub(crate) from: In<Handle<NodeRef>>,
    pub(crate) to: In<Handle<NodeRef>>,
    pub(crate) edges: In<Edge>,
    pub(crate) count: usize,
}

impl Pairs {
    /// Creates pairs with default edge data.
    pub(crate) const fn new(
        from: In<Handle<NodeRef>>,
        to: In<Handle<NodeRef>>,
        count: usize,
    ) -> Self {
        Self {
            from,
            to,
            edges: In::from_raw(std::ptr::null()),
            count,
        }
    }
}

/// Applies `perform` to each pair; if one fails, undoes the earlier ones.
fn for_pairs(
    graph: Handle<Graph>,
    pairs: Pairs,
    perform: impl Fn(&mut Graph, usize, usize) -> Result,
    undo: impl Fn(&mut Graph, usize, usize) -> Result,
) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let there = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    check_edges(pairs.edges, pairs.count)?;
    let from = ids_of(graph, pairs.from, pairs.count)?;
    let to = ids_of(graph, pairs.to, pairs.count)?;
    for (at, (&earlier, &later)) in from.iter().zip(&to).enumerate() {
        if let Err(error) = perform(there, earlier, later) {
            for (&earlier, &later) in from.iter().zip(&to).take(at).rev() {
                undo(there, earlier, later)?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Implements `cuGraphAddDependencies` and `cuGraphAddDependencies_v2`: adds edges.
pub(crate) fn add_dependencies(graph: Handle<Graph>, pairs: Pairs) -> Result {
    for_pairs(graph, pairs, Graph::connect, Graph::disconnect)
}

/// Implements `cuGraphRemoveDependencies` and `cuGraphRemoveDependencies_v2`: removes edges.
pub(crate) fn remove_dependencies(graph: Handle<Graph>, pairs: Pairs) -> Result {
    for_pairs(graph, pairs, Graph::disconnect, Graph::connect)
}

fn rows(handles: Vec<Handle<NodeRef>>) -> Vec<[Handle<NodeRef>; 1]> {
    handles.into_iter().map(|handle| [handle]).collect()
}

/// Implements `cuGraphGetNodes`: lists the nodes of a graph.
pub(crate) fn get_nodes(
    graph: Handle<Graph>,
    out: Out<Handle<NodeRef>>,
    count: InOut<usize>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let handles = graph_of(&state, graph)?
        .nodes
        .values()
        .map(|node| [node.handle]);
    write_lists(&handles.collect::<Vec<_>>(), [out], count, Handle::NULL)
}

/// Implements `cuGraphGetRootNodes`: lists the nodes without dependencies.
pub(crate) fn get_roots(
    graph: Handle<Graph>,
    out: Out<Handle<NodeRef>>,
    count: InOut<usize>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let nodes = graph_of(&state, graph)?.nodes.values();
    let roots = nodes
        .filter(|node| node.after.is_empty())
        .map(|node| [node.handle]);
    write_lists(&roots.collect::<Vec<_>>(), [out], count, Handle::NULL)
}

/// Writes default data for as many edges as were listed.
fn write_edges(edges: Option<Out<Edge>>, given: InOut<usize>) -> Result {
    match edges.filter(|edges| !edges.is_null()) {
        Some(edges) => (0..given.get()?).try_for_each(|at| edges.put_at(at, 0)),
        None => Ok(()),
    }
}

/// Implements `cuGraphGetEdges` and `cuGraphGetEdges_v2`: lists the edges of a graph.
pub(crate) fn get_edges(
    graph: Handle<Graph>,
    from: Out<Handle<NodeRef>>,
    to: Out<Handle<NodeRef>>,
    edges: Option<Out<Edge>>,
    count: InOut<usize>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    if from.is_null() != to.is_null()
        || from.is_null() && edges.is_some_and(|edges| !edges.is_null())
    {
        return Err(Error::INVALID_VALUE);
    }
    let graph = graph_of(&state, graph)?;
    let pairs = graph.nodes.values().flat_map(|later| {
        let earlier = graph.handles(&later.after);
        earlier.into_iter().map(|earlier| [earlier, later.handle])
    });
    let pairs: Vec<_> = pairs.collect();
    write_lists(&pairs, [from, to], count, Handle::NULL)?;
    write_edges(edges, count)
}

fn get_neighbours(
    node: Handle<NodeRef>,
    out: Out<Handle<NodeRef>>,
    edges: Option<Out<Edge>>,
    count: InOut<usize>,
    which: impl Fn(&Node) -> &[usize],
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    if out.is_null() && edges.is_some_and(|edges| !edges.is_null()) {
        return Err(Error::INVALID_VALUE);
    }
    let (graph, _) = nodes::find(node)?;
    let there = node_of(&state, node)?;
    let handles = graph_of(&state, graph)?.handles(which(there));
    write_lists(&rows(handles), [out], count, Handle::NULL)?;
    write_edges(edges, count)
}

/// Implements `cuGraphNodeGetDependencies` and `cuGraphNodeGetDependencies_v2`: lists the nodes a node waits for.
pub(crate) fn get_dependencies(
    node: Handle<NodeRef>,
    out: Out<Handle<NodeRef>>,
    edges: Option<Out<Edge>>,
    count: InOut<usize>,
) -> Result {
    get_neighbours(node, out, edges, count, |node| &node.after)
}

/// Implements `cuGraphNodeGetDependentNodes` and `cuGraphNodeGetDependentNodes_v2`: lists the nodes that wait for a
/// node.
pub(crate) fn get_dependents(
    node: Handle<NodeRef>,
    out: Out<Handle<NodeRef>>,
    edges: Option<Out<Edge>>,
    count: InOut<usize>,
) -> Result {
    get_neighbours(node, out, edges, count, |node| &node.before)
}

/// Implements `cuGraphNodeGetType`: returns the kind of a node.
pub(crate) fn get_kind(node: Handle<NodeRef>, out: Out<u32>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    out.put(node_of(&state, node)?.action.kind())
}

fn get_kernel(node: Handle<NodeRef>) -> Result<KernelParameters> {
    let driver = driver()?;
    let mut state = driver.state();
    let there = node_of(&state, node)?;
    let NodeAction::Work(Work::Kernel(launched)) = &there.action else {
        return Err(Error::INVALID_VALUE);
    };
    if let Some(exported) = &there.exported {
        return Ok(KernelParameters::again(launched, exported));
    }
    let (parameters, exported) = KernelParameters::of(&state, launched);
    node_mut(&mut state, node)?.exported = Some(exported);
    Ok(parameters)
}

/// Implements `cuGraphKernelNodeGetParams_v2`: returns a kernel node's parameters.
pub(crate) fn kernel_parameters(node: Handle<NodeRef>, out: Out<KernelParameters>) -> Result {
    out.put(get_kernel(node)?)
}

/// Implements `cuGraphKernelNodeGetParams`: returns a kernel node's parameters in version 1.
pub(crate) fn kernel_parameters_v1(node: Handle<NodeRef>, out: Out<KernelParametersV1>) -> Result {
    out.put(get_kernel(node)?.narrow())
}

/// Implements `cuGraphKernelNodeGetAttribute`, of which only one is there: whether kernels may change the node
/// (`CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE`). None may.
pub(crate) fn kernel_attribute(
    node: Handle<NodeRef>,
    attribute: u32,
    out: Out<[u64; 8]>,
) -> Result {
    const UPDATABLE: u32 = 13;
    let _parameters = get_kernel(node)?;
    if attribute != UPDATABLE {
        return Err(Error::NOT_SUPPORTED);
    }
    out.put([0; 8])
}

/// Implements `cuGraphMemcpyNodeGetParams`: returns a copy node's parameters.
pub(crate) fn copy_parameters_of(node: Handle<NodeRef>, out: Out<Copy3d>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match &node_of(&state, node)?.action {
        NodeAction::Work(Work::Copy(copy)) => out.put(copy_parameters(&state, copy)),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Implements `cuGraphMemsetNodeGetParams`: returns a memset node's parameters.
pub(crate) fn set_parameters_of(node: Handle<NodeRef>, out: Out<SetParameters>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match &node_of(&state, node)?.action {
        NodeAction::Work(Work::Set(set)) => out.put(SetParameters::of(set)),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Implements `cuGraphHostNodeGetParams`: returns a host node's function and data.
pub(crate) fn host_parameters_of(node: Handle<NodeRef>, out: Out<HostParameters>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match &node_of(&state, node)?.action {
        NodeAction::Work(Work::Host(call)) => out.put(HostParameters::of(*call)?),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Implements `cuGraphChildGraphNodeGetGraph`: returns the graph that belongs to a child node.
pub(crate) fn child_of(node: Handle<NodeRef>, out: Out<Handle<Graph>>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match node_of(&state, node)?.action {
        NodeAction::Child(child) => out.put(child),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Implements `cuGraphEventRecordNodeGetEvent`: returns the event that a node records.
pub(crate) fn recorded_event(node: Handle<NodeRef>, out: Out<Handle<Event>>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match node_of(&state, node)?.action {
        NodeAction::Record(event) => out.put(event),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Implements `cuGraphEventWaitNodeGetEvent`: returns the event for which a node waits.
pub(crate) fn awaited_event(node: Handle<NodeRef>, out: Out<Handle<Event>>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match node_of(&state, node)?.action {
        NodeAction::Wait(event) => out.put(event),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Replaces the action of a node by another of the same kind.
fn change(
    node: Handle<NodeRef>,
    action: impl FnOnce(&Driver, &mut State) -> Result<NodeAction>,
) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    node_of(&state, node)?;
    let action = action(driver, &mut state)?;
    let there = node_mut(&mut state, node)?;
    if there.action.kind() != action.kind() || matches!(action, NodeAction::Child(_)) {
        return Err(Error::INVALID_VALUE);
    }
    there.action = action;
    there.exported = None;
    Ok(())
}

/// Implements `cuGraphKernelNodeSetParams_v2`: replaces a kernel node's parameters.
pub(crate) fn change_kernel(node: Handle<NodeRef>, parameters: In<KernelParameters>) -> Result {
    change(node, |driver, state| {
        parameters.get()?.work(driver, state).map(NodeAction::Work)
    })
}

/// Implements `cuGraphKernelNodeSetParams`: replaces a kernel node's parameters, given in version 1.
pub(crate) fn change_kernel_v1(
    node: Handle<NodeRef>,
    parameters: In<KernelParametersV1>,
) -> Result {
    change(node, |driver, state| {
        parameters
            .get()?
            .widen()
            .work(driver, state)
            .map(NodeAction::Work)
    })
}

/// Implements `cuGraphMemcpyNodeSetParams`: replaces a copy node's parameters.
pub(crate) fn change_copy(node: Handle<NodeRef>, parameters: In<Copy3d>) -> Result {
    change(node, |driver, state| {
        copy_work(driver, state, &parameters.get()?, Handle::NULL).map(NodeAction::Work)
    })
}

/// Implements `cuGraphMemsetNodeSetParams`: replaces a memset node's parameters.
pub(crate) fn change_set(node: Handle<NodeRef>, parameters: In<SetParameters>) -> Result {
    change(node, |driver, state| {
        parameters
            .get()?
            .work(driver, state, Handle::NULL)
            .map(NodeAction::Work)
    })
}

/// Implements `cuGraphHostNodeSetParams`: replaces a host node's function and data.
pub(crate) fn change_host(node: Handle<NodeRef>, parameters: In<HostParameters>) -> Result {
    change(node, |_, _| parameters.get()?.work().map(NodeAction::Work))
}

/// Implements `cuGraphEventRecordNodeSetEvent`: replaces the event that a node records.
pub(crate) fn change_record(node: Handle<NodeRef>, event: Handle<Event>) -> Result {
    change(node, |_, state| {
        known_event(state, event).map(NodeAction::Record)
    })
}

/// Implements `cuGraphEventWaitNodeSetEvent`: replaces the event for which a node waits.
pub(crate) fn change_wait(node: Handle<NodeRef>, event: Handle<Event>) -> Result {
    change(node, |_, state| {
        known_event(state, event).map(NodeAction::Wait)
    })
}

/// Implements `cuGraphNodeSetParams`: replaces the parameters of a node of any kind.
pub(crate) fn change_any(node: Handle<NodeRef>, parameters: In<NodeParameters>) -> Result {
    change(node, |driver, state| {
        parameters.get()?.action(driver, state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_as_far_as_there_is_room() {
        let rows = [[5_u64, 6], [7, 8]];
        let mut count = 9;
        let nowhere: Out<u64> = null();
        write_lists(&rows, [nowhere; 2], InOut::of(&mut count), 0).unwrap();
        assert_eq!(count, 2);
        let mut to = [99_u64; 3];
        for (room, want, given) in [(1, [5, 99, 99], 1), (3, [5, 7, 0], 2)] {
            let mut from = [99; 3];
            count = room;
            write_lists(
                &rows,
                [out(&mut from), out(&mut to)],
                InOut::of(&mut count),
                0,
            )
            .unwrap();
            assert_eq!((from, count), (want, given));
        }
        assert_eq!(to, [6, 8, 0]);
    }

    fn null<T>() -> Out<T> {
        // SAFETY: `Out` is a pointer and nothing else.
        unsafe { std::mem::transmute(std::ptr::null_mut::<T>()) }
    }

    fn out<T, const N: usize>(place: &mut [T; N]) -> Out<T> {
        // SAFETY: as above.
        unsafe { std::mem::transmute(place.as_mut_ptr()) }
    }
}
