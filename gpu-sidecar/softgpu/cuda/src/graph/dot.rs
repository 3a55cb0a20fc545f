//! Graphs in Graphviz's DOT format.

use std::fmt::Write as _;

use crate::driver::driver;
use crate::error::{Error, Result};
use crate::pointer::Text;
use crate::state::State;
use crate::table::Handle;
use crate::work::Work;

use super::nodes::{Graph, Node, NodeAction};

/// Returns the label of a node.
fn label(state: &State, node: &Node) -> String {
    match &node.action {
        NodeAction::Work(Work::Kernel(launched)) => {
            let name = state.functions.get(launched.function);
            let name = name.map_or_else(
                || "kernel".into(),
                |function| function.name.to_string_lossy(),
            );
            let ([x, y, z], [bx, by, bz]) = (launched.grid, launched.block);
            format!("{name}\\n{x} x {y} x {z} blocks of {bx} x {by} x {bz}")
        }
        NodeAction::Work(Work::Copy(copy)) => format!("MEMCPY\\n{} bytes", copy.bytes()),
        NodeAction::Work(Work::Set(set)) => format!(
            "MEMSET\\n{} x {} of {} bytes",
            set.extent[0], set.extent[1], set.element
        ),
        NodeAction::Work(Work::Host(_)) => "HOST".to_owned(),
        NodeAction::Work(Work::Nothing) => "EMPTY".to_owned(),
        NodeAction::Child(_) => "GRAPH".to_owned(),
        NodeAction::Record(_) => "EVENT_RECORD".to_owned(),
        NodeAction::Wait(_) => "EVENT_WAIT".to_owned(),
    }
}

/// Appends the nodes of a graph, with child graphs as clusters. Node names begin with `prefix`.
fn append(state: &State, graph: &Graph, prefix: &str, text: &mut String) -> std::fmt::Result {
    for (id, node) in &graph.nodes {
        writeln!(
            text,
            "  \"{prefix}{id}\" [shape=box, label=\"{id}\\n{}\"];",
            label(state, node)
        )?;
        for earlier in &node.after {
            writeln!(text, "  \"{prefix}{earlier}\" -> \"{prefix}{id}\";")?;
        }
        if let NodeAction::Child(child) = node.action
            && let Some(child) = state.graphs.get(child)
        {
            let name = format!("{prefix}{id}_");
            writeln!(text, "  subgraph \"cluster_{name}\" {{")?;
            append(state, child, &name, text)?;
            writeln!(text, "  }}")?;
        }
    }
    Ok(())
}

/// Implements `cuGraphDebugDotPrint`: writes a graph to a file; flags for more detail have no effect.
pub(crate) fn print(graph: Handle<Graph>, path: Text) -> Result {
    let driver = driver()?;
    let path = path.string()?;
    let state = driver.state();
    let there = state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
    let mut text = "digraph graph_1 {\n".to_owned();
    append(&state, there, "", &mut text).map_err(|_| Error::UNKNOWN)?;
    text.push_str("}\n");
    drop(state);
    std::fs::write(path, text).map_err(|_| Error::OPERATING_SYSTEM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::nodes;

    #[test]
    fn a_child_graph_is_drawn_as_a_cluster() {
        let mut state = State::new(0);
        let outer = nodes::create(&mut state, None).unwrap();
        let inner = nodes::create(&mut state, Some(outer)).unwrap();
        let empty = || NodeAction::Work(Work::Nothing);
        nodes::add(&mut state, inner, empty(), &[]).unwrap();
        let first = nodes::add(&mut state, outer, empty(), &[]).unwrap();
        nodes::add(&mut state, outer, NodeAction::Child(inner), &[first]).unwrap();
        let mut text = String::new();
        append(&state, state.graphs.get(outer).unwrap(), "", &mut text).unwrap();
        for line in [
            "\"0\" -> \"1\";",
            "subgraph \"cluster_1_\" {",
            "\"1_0\" [shape=box, label=\"0\\nEMPTY\"];",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let copy = nodes::copy(&mut state, outer, None).unwrap();
        nodes::destroy(&mut state, outer);
        assert!(state.graphs.get(inner).is_none() && state.graphs.get(copy).is_some());
        assert_eq!(state.graphs.iter().count(), 2);
    }
}
