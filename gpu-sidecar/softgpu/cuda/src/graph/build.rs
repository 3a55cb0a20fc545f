//! Graphs built by hand: nodes, what they wait for, and what they are asked and told.

use crate::context::Context;
use crate::copy::Copy3d;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pointer::{In, Out};
use crate::state::State;
use crate::table::Handle;
use crate::work::Work;

use super::exchange::{InOut, give};
use super::nodes::{self, Graph, Node, Place, What};
use super::parameters::{
    HostParameters, KernelParameters, KernelParametersV1, NodeParameters, SetParameters,
    copy_parameters, copy_work, known_event,
};

/// `CUgraphEdgeData`, of which only the default is there: all zeros.
pub(crate) type Edge = u64;

/// The numbers of nodes that must be of one graph.
fn ids_of(graph: Handle<Graph>, list: In<Handle<Place>>, count: usize) -> Result<Vec<usize>> {
    let list = list.list(count)?;
    list.into_iter()
        .map(|node| match nodes::find(node)? {
            (of, id) if of == graph => Ok(id),
            _ => Err(Error::INVALID_VALUE),
        })
        .collect()
}

/// No data, or the default.
fn check_edges(edges: In<Edge>, count: usize) -> Result {
    if edges.is_null() || edges.list(count)?.iter().all(|edge| *edge == 0) {
        return Ok(());
    }
    Err(Error::NOT_SUPPORTED)
}

fn graph_of(state: &State, graph: Handle<Graph>) -> Result<&Graph> {
    state.graphs.get(graph).ok_or(Error::INVALID_VALUE)
}

fn node_of(state: &State, node: Handle<Place>) -> Result<&Node> {
    let (graph, id) = nodes::find(node)?;
    graph_of(state, graph)?
        .nodes
        .get(&id)
        .ok_or(Error::INVALID_VALUE)
}

fn node_mut(state: &mut State, node: Handle<Place>) -> Result<&mut Node> {
    let (graph, id) = nodes::find(node)?;
    let graph = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    graph.nodes.get_mut(&id).ok_or(Error::INVALID_VALUE)
}

/// `cuGraphCreate`
pub(crate) fn create(out: Out<Handle<Graph>>, flags: u32) -> Result {
    let driver = driver()?;
    if flags != 0 || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let graph = nodes::create(&mut driver.state(), None)?;
    out.put(graph)
}

/// `cuGraphDestroy`: not of a graph that belongs to a node.
pub(crate) fn destroy(graph: Handle<Graph>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    if graph_of(&state, graph)?.owner.is_some() {
        return Err(Error::INVALID_VALUE);
    }
    nodes::destroy(&mut state, graph);
    Ok(())
}

/// `cuGraphClone`
pub(crate) fn clone(out: Out<Handle<Graph>>, graph: Handle<Graph>) -> Result {
    let driver = driver()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let new = nodes::copy(&mut driver.state(), graph, None)?;
    out.put(new)
}

/// `cuGraphNodeFindInClone`
pub(crate) fn find_in_clone(
    out: Out<Handle<Place>>,
    original: Handle<Place>,
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

/// The nodes behind which a new one comes.
#[derive(Clone, Copy)]
pub(crate) struct Behind {
    pub(crate) list: In<Handle<Place>>,
    pub(crate) edges: In<Edge>,
    pub(crate) count: usize,
}

impl Behind {
    /// Without data of edges.
    pub(crate) const fn new(list: In<Handle<Place>>, count: usize) -> Self {
        Self {
            list,
            edges: In::from_raw(std::ptr::null()),
            count,
        }
    }

    /// Their numbers in a graph.
    pub(super) fn ids(&self, graph: Handle<Graph>) -> Result<Vec<usize>> {
        check_edges(self.edges, self.count)?;
        ids_of(graph, self.list, self.count)
    }
}

fn add(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    what: impl FnOnce(&Driver, &mut State) -> Result<What>,
) -> Result {
    let driver = driver()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    graph_of(&state, graph)?;
    let after = behind.ids(graph)?;
    let what = match what(driver, &mut state)? {
        What::Child(child) => What::Child(nodes::copy(&mut state, child, Some(graph))?),
        other => other,
    };
    let child = match &what {
        What::Child(child) => *child,
        _ => Handle::NULL,
    };
    match nodes::add(&mut state, graph, what, &after) {
        Ok(id) => out.put(graph_of(&state, graph)?.nodes[&id].handle),
        Err(error) => {
            nodes::destroy(&mut state, child);
            Err(error)
        }
    }
}

/// `cuGraphAddKernelNode_v2`
pub(crate) fn add_kernel(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    parameters: In<KernelParameters>,
) -> Result {
    add(out, graph, behind, |driver, state| {
        parameters.get()?.work(driver, state).map(What::Work)
    })
}

/// `cuGraphAddKernelNode`
pub(crate) fn add_kernel_v1(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    parameters: In<KernelParametersV1>,
) -> Result {
    add(out, graph, behind, |driver, state| {
        parameters
            .get()?
            .widen()
            .work(driver, state)
            .map(What::Work)
    })
}

/// `cuGraphAddMemcpyNode`
pub(crate) fn add_copy(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    parameters: In<Copy3d>,
    context: Handle<Context>,
) -> Result {
    add(out, graph, behind, |driver, state| {
        copy_work(driver, state, &parameters.get()?, context).map(What::Work)
    })
}

/// `cuGraphAddMemsetNode`
pub(crate) fn add_set(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    parameters: In<SetParameters>,
    context: Handle<Context>,
) -> Result {
    add(out, graph, behind, |driver, state| {
        parameters
            .get()?
            .work(driver, state, context)
            .map(What::Work)
    })
}

/// `cuGraphAddHostNode`
pub(crate) fn add_host(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    parameters: In<HostParameters>,
) -> Result {
    add(out, graph, behind, |_, _| {
        parameters.get()?.work().map(What::Work)
    })
}

/// `cuGraphAddEmptyNode`
pub(crate) fn add_empty(out: Out<Handle<Place>>, graph: Handle<Graph>, behind: Behind) -> Result {
    add(out, graph, behind, |_, _| Ok(What::Work(Work::Nothing)))
}

/// `cuGraphAddChildGraphNode`
pub(crate) fn add_child(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    child: Handle<Graph>,
) -> Result {
    add(out, graph, behind, |_, _| Ok(What::Child(child)))
}

/// `cuGraphAddEventRecordNode`
pub(crate) fn add_record(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    event: Handle<Event>,
) -> Result {
    add(out, graph, behind, |_, state| {
        known_event(state, event).map(What::Record)
    })
}

/// `cuGraphAddEventWaitNode`
pub(crate) fn add_wait(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    event: Handle<Event>,
) -> Result {
    add(out, graph, behind, |_, state| {
        known_event(state, event).map(What::Wait)
    })
}

/// `cuGraphAddNode`, `cuGraphAddNode_v2`
pub(crate) fn add_any(
    out: Out<Handle<Place>>,
    graph: Handle<Graph>,
    behind: Behind,
    parameters: In<NodeParameters>,
) -> Result {
    add(out, graph, behind, |driver, state| {
        parameters.get()?.what(driver, state)
    })
}

/// `cuGraphDestroyNode`
pub(crate) fn destroy_node(node: Handle<Place>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let (graph, id) = nodes::find(node)?;
    let there = state.graphs.get_mut(graph).ok_or(Error::INVALID_VALUE)?;
    let node = there.remove(id).ok_or(Error::INVALID_VALUE)?;
    if let What::Child(child) = node.what {
        nodes::destroy(&mut state, child);
    }
    Ok(())
}

/// Pairs of nodes: the earlier and the later one.
#[derive(Clone, Copy)]
pub(crate) struct Pairs {
    pub(crate) from: In<Handle<Place>>,
    pub(crate) to: In<Handle<Place>>,
    pub(crate) edges: In<Edge>,
    pub(crate) count: usize,
}

impl Pairs {
    /// Without data of edges.
    pub(crate) const fn new(from: In<Handle<Place>>, to: In<Handle<Place>>, count: usize) -> Self {
        Self {
            from,
            to,
            edges: In::from_raw(std::ptr::null()),
            count,
        }
    }
}

/// Does something for each pair; if one cannot be done, none is.
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

/// `cuGraphAddDependencies`, `cuGraphAddDependencies_v2`
pub(crate) fn add_dependencies(graph: Handle<Graph>, pairs: Pairs) -> Result {
    for_pairs(graph, pairs, Graph::connect, Graph::disconnect)
}

/// `cuGraphRemoveDependencies`, `cuGraphRemoveDependencies_v2`
pub(crate) fn remove_dependencies(graph: Handle<Graph>, pairs: Pairs) -> Result {
    for_pairs(graph, pairs, Graph::disconnect, Graph::connect)
}

fn rows(handles: Vec<Handle<Place>>) -> Vec<[Handle<Place>; 1]> {
    handles.into_iter().map(|handle| [handle]).collect()
}

/// `cuGraphGetNodes`
pub(crate) fn get_nodes(
    graph: Handle<Graph>,
    out: Out<Handle<Place>>,
    count: InOut<usize>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let handles = graph_of(&state, graph)?
        .nodes
        .values()
        .map(|node| [node.handle]);
    give(&handles.collect::<Vec<_>>(), [out], count, Handle::NULL)
}

/// `cuGraphGetRootNodes`
pub(crate) fn get_roots(
    graph: Handle<Graph>,
    out: Out<Handle<Place>>,
    count: InOut<usize>,
) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let nodes = graph_of(&state, graph)?.nodes.values();
    let roots = nodes
        .filter(|node| node.after.is_empty())
        .map(|node| [node.handle]);
    give(&roots.collect::<Vec<_>>(), [out], count, Handle::NULL)
}

/// Writes the data of as many edges as were given.
fn give_edges(edges: Option<Out<Edge>>, given: InOut<usize>) -> Result {
    match edges.filter(|edges| !edges.is_null()) {
        Some(edges) => (0..given.get()?).try_for_each(|at| edges.put_at(at, 0)),
        None => Ok(()),
    }
}

/// `cuGraphGetEdges`, `cuGraphGetEdges_v2`
pub(crate) fn get_edges(
    graph: Handle<Graph>,
    from: Out<Handle<Place>>,
    to: Out<Handle<Place>>,
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
    give(&pairs, [from, to], count, Handle::NULL)?;
    give_edges(edges, count)
}

fn get_neighbours(
    node: Handle<Place>,
    out: Out<Handle<Place>>,
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
    give(&rows(handles), [out], count, Handle::NULL)?;
    give_edges(edges, count)
}

/// `cuGraphNodeGetDependencies`, `cuGraphNodeGetDependencies_v2`
pub(crate) fn get_dependencies(
    node: Handle<Place>,
    out: Out<Handle<Place>>,
    edges: Option<Out<Edge>>,
    count: InOut<usize>,
) -> Result {
    get_neighbours(node, out, edges, count, |node| &node.after)
}

/// `cuGraphNodeGetDependentNodes`, `cuGraphNodeGetDependentNodes_v2`
pub(crate) fn get_dependents(
    node: Handle<Place>,
    out: Out<Handle<Place>>,
    edges: Option<Out<Edge>>,
    count: InOut<usize>,
) -> Result {
    get_neighbours(node, out, edges, count, |node| &node.before)
}

/// `cuGraphNodeGetType`
pub(crate) fn get_kind(node: Handle<Place>, out: Out<u32>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    out.put(node_of(&state, node)?.what.kind())
}

fn get_kernel(node: Handle<Place>) -> Result<KernelParameters> {
    let driver = driver()?;
    let mut state = driver.state();
    let there = node_of(&state, node)?;
    let What::Work(Work::Kernel(launched)) = there.what else {
        return Err(Error::INVALID_VALUE);
    };
    if let Some(shown) = &there.shown {
        return Ok(KernelParameters::again(&launched, shown));
    }
    let (parameters, shown) = KernelParameters::of(&state, &launched);
    node_mut(&mut state, node)?.shown = Some(shown);
    Ok(parameters)
}

/// `cuGraphKernelNodeGetParams_v2`
pub(crate) fn kernel_parameters(node: Handle<Place>, out: Out<KernelParameters>) -> Result {
    out.put(get_kernel(node)?)
}

/// `cuGraphKernelNodeGetParams`
pub(crate) fn kernel_parameters_v1(node: Handle<Place>, out: Out<KernelParametersV1>) -> Result {
    out.put(get_kernel(node)?.narrow())
}

/// `cuGraphMemcpyNodeGetParams`
pub(crate) fn copy_parameters_of(node: Handle<Place>, out: Out<Copy3d>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match &node_of(&state, node)?.what {
        What::Work(Work::Copy(copy)) => out.put(copy_parameters(&state, copy)),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// `cuGraphMemsetNodeGetParams`
pub(crate) fn set_parameters_of(node: Handle<Place>, out: Out<SetParameters>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match &node_of(&state, node)?.what {
        What::Work(Work::Set(set)) => out.put(SetParameters::of(set)),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// `cuGraphHostNodeGetParams`
pub(crate) fn host_parameters_of(node: Handle<Place>, out: Out<HostParameters>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match &node_of(&state, node)?.what {
        What::Work(Work::Host(call)) => out.put(HostParameters::of(*call)?),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// `cuGraphChildGraphNodeGetGraph`
pub(crate) fn child_of(node: Handle<Place>, out: Out<Handle<Graph>>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match node_of(&state, node)?.what {
        What::Child(child) => out.put(child),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// `cuGraphEventRecordNodeGetEvent`
pub(crate) fn recorded_event(node: Handle<Place>, out: Out<Handle<Event>>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match node_of(&state, node)?.what {
        What::Record(event) => out.put(event),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// `cuGraphEventWaitNodeGetEvent`
pub(crate) fn awaited_event(node: Handle<Place>, out: Out<Handle<Event>>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    match node_of(&state, node)?.what {
        What::Wait(event) => out.put(event),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Lets a node do something else of the same kind.
fn change(node: Handle<Place>, what: impl FnOnce(&Driver, &mut State) -> Result<What>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    node_of(&state, node)?;
    let what = what(driver, &mut state)?;
    let there = node_mut(&mut state, node)?;
    if there.what.kind() != what.kind() || matches!(what, What::Child(_)) {
        return Err(Error::INVALID_VALUE);
    }
    there.what = what;
    there.shown = None;
    Ok(())
}

/// `cuGraphKernelNodeSetParams_v2`
pub(crate) fn change_kernel(node: Handle<Place>, parameters: In<KernelParameters>) -> Result {
    change(node, |driver, state| {
        parameters.get()?.work(driver, state).map(What::Work)
    })
}

/// `cuGraphKernelNodeSetParams`
pub(crate) fn change_kernel_v1(node: Handle<Place>, parameters: In<KernelParametersV1>) -> Result {
    change(node, |driver, state| {
        parameters
            .get()?
            .widen()
            .work(driver, state)
            .map(What::Work)
    })
}

/// `cuGraphMemcpyNodeSetParams`
pub(crate) fn change_copy(node: Handle<Place>, parameters: In<Copy3d>) -> Result {
    change(node, |driver, state| {
        copy_work(driver, state, &parameters.get()?, Handle::NULL).map(What::Work)
    })
}

/// `cuGraphMemsetNodeSetParams`
pub(crate) fn change_set(node: Handle<Place>, parameters: In<SetParameters>) -> Result {
    change(node, |driver, state| {
        parameters
            .get()?
            .work(driver, state, Handle::NULL)
            .map(What::Work)
    })
}

/// `cuGraphHostNodeSetParams`
pub(crate) fn change_host(node: Handle<Place>, parameters: In<HostParameters>) -> Result {
    change(node, |_, _| parameters.get()?.work().map(What::Work))
}

/// `cuGraphEventRecordNodeSetEvent`
pub(crate) fn change_record(node: Handle<Place>, event: Handle<Event>) -> Result {
    change(node, |_, state| known_event(state, event).map(What::Record))
}

/// `cuGraphEventWaitNodeSetEvent`
pub(crate) fn change_wait(node: Handle<Place>, event: Handle<Event>) -> Result {
    change(node, |_, state| known_event(state, event).map(What::Wait))
}

/// `cuGraphNodeSetParams`
pub(crate) fn change_any(node: Handle<Place>, parameters: In<NodeParameters>) -> Result {
    change(node, |driver, state| parameters.get()?.what(driver, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_given_as_far_as_there_is_room() {
        let rows = [[5_u64, 6], [7, 8]];
        let mut count = 9;
        let nowhere: Out<u64> = null();
        give(&rows, [nowhere; 2], InOut::of(&mut count), 0).unwrap();
        assert_eq!(count, 2);
        let mut to = [99_u64; 3];
        for (room, want, given) in [(1, [5, 99, 99], 1), (3, [5, 7, 0], 2)] {
            let mut from = [99; 3];
            count = room;
            give(
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
