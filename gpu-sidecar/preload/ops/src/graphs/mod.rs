//! Executable graphs. What the nodes of one use is read when it is instantiated, since the graph from which it is made may be gone when it is launched
//! amid a restore.

use std::collections::BTreeSet;

use crate::cuda::{Handle, SUCCESS};
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::{Platform, System};
use crate::residency;

/// Number of nodes of a graph with its child graphs that are read at most. What a larger graph uses is not known.
const NODES_MAX: usize = 1 << 14;

/// Memory that a node of a graph uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeUse {
    /// The memory at those of these words that are addresses.
    Words(Vec<u64>),
    /// What the nodes of this graph use.
    Child(Handle),
    /// None on the device: it calls a function of the program, which may write host memory.
    HostFunction,
    /// It is not known.
    Unknown,
}

/// Flag of graphs which kernels launch (`CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`).
const DEVICE_LAUNCH: u64 = 4;

/// Instantiates a graph with these flags. `executable` returns the handle that the driver has written.
pub fn instantiate<P: Platform>(
    host: P,
    call: Call<'_>,
    executable: impl FnOnce() -> Option<Handle>,
    graph: Handle,
    flags: u64,
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    if flags & DEVICE_LAUNCH != 0 {
        host.process().graphs.note_device_launches();
    }
    let code = call();
    if code == SUCCESS
        && let Some(executable) = executable()
    {
        note(host, executable, graph);
    }
    Outcome::Done(code)
}

/// Forgets what an executable graph uses, before it is destroyed or changed. It is not read again: programs which change graphs may do so at each step.
pub fn forget<P: System>(host: P, executable: Handle) {
    if host.is_active() {
        host.process().graphs.forget(executable);
    }
}

fn note<P: Platform>(host: P, executable: Handle, graph: Handle) {
    let graphs = &host.process().graphs;
    let may_stream = residency::may_stream(host);
    match may_stream.then(|| words_of(host, graph)).flatten() {
        Some(words) => graphs.note(executable, words),
        None => graphs.forget(executable),
    }
}

/// Returns the words of the arguments of all nodes; `None` if those of some node are not known.
fn words_of<P: Platform>(host: P, graph: Handle) -> Option<BTreeSet<u64>> {
    let mut words = BTreeSet::new();
    let mut graphs = vec![graph];
    let mut left = NODES_MAX;
    while let Some(graph) = graphs.pop() {
        let nodes = host.graph_nodes(graph, left).ok()?;
        left = left.checked_sub(nodes.len())?;
        for node in nodes {
            match host.node_use(node) {
                NodeUse::Words(own) => words.extend(own),
                NodeUse::Child(child) => graphs.push(child),
                NodeUse::HostFunction => host.process().note_host_function(),
                NodeUse::Unknown => return None,
            }
        }
    }
    Some(words)
}

#[cfg(test)]
mod tests;
