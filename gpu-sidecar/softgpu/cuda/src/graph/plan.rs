//! Plans of executable graphs: a copy of a graph with its child graphs, and its translation to commands.
//!
//! The server takes a graph of kernels, copies, memsets and host functions as one command. Event nodes split the graph:
//! each part is a command, and the commands for the events come in between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use device::Time;
use softgpu_wire::graph::GraphNode;
use softgpu_wire::record::{Record, StreamSlot};

use crate::error::{Error, Result};
use crate::event::Event;
use crate::state::State;
use crate::table::Handle;
use crate::work::Work;

use super::nodes::{self, Graph, NodeAction, NodeRef};
use super::program::Line;

/// Action of a step.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Work(Work),
    Child(Plan),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

/// A node of an executable graph.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Node of which the step is a copy, by which the program refers to it.
    pub(super) source: Handle<NodeRef>,
    pub(super) action: Action,
    /// Indices of the earlier steps it waits for.
    pub(super) after: Vec<usize>,
    pub(super) is_enabled: bool,
}

/// Steps of an executable graph in topological order; see the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
}

impl Action {
    /// Returns the kind, as a `CUgraphNodeType`.
    pub(super) const fn kind(&self) -> u32 {
        match self {
            Self::Work(work) => nodes::kind_of(work),
            Self::Child(_) => nodes::kind::CHILD,
            Self::Record(_) => nodes::kind::RECORD,
            Self::Wait(_) => nodes::kind::WAIT,
        }
    }
}

impl Plan {
    /// Returns the plan of a graph in its current state.
    pub(super) fn of(state: &State, graph: Handle<Graph>) -> Result<Self> {
        let there = state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
        let order = there.order();
        let mut places = std::collections::HashMap::with_capacity(order.len());
        let mut steps = Vec::with_capacity(order.len());
        for (at, id) in order.into_iter().enumerate() {
            places.insert(id, at);
            let node = &there.nodes[&id];
            let action = match &node.action {
                NodeAction::Work(work) => Action::Work(work.clone()),
                NodeAction::Child(child) => Action::Child(Self::of(state, *child)?),
                NodeAction::Record(event) => Action::Record(*event),
                NodeAction::Wait(event) => Action::Wait(*event),
            };
            steps.push(Step {
                source: node.handle,
                action,
                after: node.after.iter().map(|earlier| places[earlier]).collect(),
                is_enabled: true,
            });
        }
        Ok(Self { steps })
    }

    /// Returns the step of a node, here or in a child graph.
    pub(super) fn find(&mut self, node: Handle<NodeRef>) -> Option<&mut Step> {
        for step in &mut self.steps {
            if step.source == node {
                return Some(step);
            }
            if let Action::Child(child) = &mut step.action
                && let Some(found) = child.find(node)
            {
                return Some(found);
            }
        }
        None
    }

    /// Returns whether any node records or awaits an event.
    fn has_events(flat: &[FlatNode]) -> bool {
        flat.iter()
            .any(|flat| !matches!(flat.action, FlatAction::Work(_)))
    }

    /// Returns the commands of a launch, in order.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut flat = Vec::new();
        flatten(self, &[], &mut flat);
        if Self::has_events(&flat) {
            return cut(flat);
        }
        let lines = flat.into_iter().filter_map(|flat| match flat.action {
            FlatAction::Work(work) => Some((work, flat.after)),
            FlatAction::Record(_) | FlatAction::Wait(_) => None,
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() {
            Vec::new()
        } else {
            vec![Part::Nodes(lines)]
        }
    }

    /// Converts the plan to a new graph that belongs to another.
    pub(super) fn to_graph(
        &self,
        state: &mut State,
        owner: Handle<Graph>,
    ) -> Result<Handle<Graph>> {
        let graph = nodes::create(state, Some(owner))?;
        let mut ids = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let action = match &step.action {
                _ if !step.is_enabled => NodeAction::Work(Work::Nothing),
                Action::Work(work) => NodeAction::Work(work.clone()),
                Action::Child(plan) => NodeAction::Child(plan.to_graph(state, graph)?),
                Action::Record(event) => NodeAction::Record(*event),
                Action::Wait(event) => NodeAction::Wait(*event),
            };
            let after: Vec<_> = step.after.iter().map(|&at| ids[at]).collect();
            ids.push(nodes::add(state, graph, action, &after)?);
        }
        Ok(graph)
    }
}

/// A command of a launch.
#[derive(Debug)]
pub(super) enum Part {
    /// Nodes for the server, in topological order.
    Nodes(Vec<Line>),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

/// Action of a node in a flattened graph, without child graphs.
#[derive(Debug)]
enum FlatAction {
    Work(Work),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

#[derive(Debug)]
struct FlatNode {
    action: FlatAction,
    after: Vec<usize>,
}

fn push(flat: &mut Vec<FlatNode>, action: FlatAction, mut after: Vec<usize>) -> usize {
    after.sort_unstable();
    after.dedup();
    flat.push(FlatNode { action, after });
    flat.len() - 1
}

/// Appends a plan whose first steps wait for `entry`; returns the last steps, for which no other step waits.
fn flatten(plan: &Plan, entry: &[usize], flat: &mut Vec<FlatNode>) -> Vec<usize> {
    let mut ends = Vec::with_capacity(plan.steps.len());
    let mut is_last = vec![true; plan.steps.len()];
    for step in &plan.steps {
        let after: Vec<usize> = match step.after.as_slice() {
            [] => entry.to_vec(),
            earlier => earlier.iter().map(|&at| ends[at]).collect(),
        };
        for &earlier in &step.after {
            is_last[earlier] = false;
        }
        let end = match &step.action {
            _ if !step.is_enabled => push(flat, FlatAction::Work(Work::Nothing), after),
            Action::Work(work) => push(flat, FlatAction::Work(work.clone()), after),
            Action::Record(event) => push(flat, FlatAction::Record(*event), after),
            Action::Wait(event) => push(flat, FlatAction::Wait(*event), after),
            Action::Child(child) => {
                // A single node before and after the child avoids an edge from each predecessor to each first step.
                let entry = match after.as_slice() {
                    [] | [_] => after,
                    _ => vec![push(flat, FlatAction::Work(Work::Nothing), after)],
                };
                let lasts = flatten(child, &entry, flat);
                match (lasts.as_slice(), entry.as_slice()) {
                    ([one], _) | ([], [one]) => *one,
                    _ => push(flat, FlatAction::Work(Work::Nothing), lasts),
                }
            }
        };
        ends.push(end);
    }
    let lasts = ends.iter().zip(is_last).filter(|(_, is_last)| *is_last);
    lasts.map(|(end, _)| *end).collect()
}

/// Priority among ready nodes, chosen so that splitting delays as few nodes as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    /// Work that precedes a record.
    ForRecord,
    Record,
    Other,
    Wait,
}

fn priorities(flat: &[FlatNode]) -> Vec<Priority> {
    let priority = |flat: &FlatNode| match flat.action {
        FlatAction::Work(_) => Priority::Other,
        FlatAction::Record(_) => Priority::Record,
        FlatAction::Wait(_) => Priority::Wait,
    };
    let mut priorities: Vec<_> = flat.iter().map(priority).collect();
    let mut leads_to_record = vec![false; flat.len()];
    for (at, node) in flat.iter().enumerate().rev() {
        if leads_to_record[at] && priorities[at] == Priority::Other {
            priorities[at] = Priority::ForRecord;
        }
        if leads_to_record[at] || priorities[at] == Priority::Record {
            for &earlier in &node.after {
                leads_to_record[earlier] = true;
            }
        }
    }
    priorities
}

/// Splits a graph at its events. Nodes of a part wait for all earlier parts.
fn cut(flat: Vec<FlatNode>) -> Vec<Part> {
    let priorities = priorities(&flat);
    let mut waits: Vec<_> = flat.iter().map(|node| node.after.len()).collect();
    let mut before = vec![Vec::new(); flat.len()];
    for (at, node) in flat.iter().enumerate() {
        for &earlier in &node.after {
            before[earlier].push(at);
        }
    }
    let key = |at: usize| Reverse((priorities[at], at));
    let firsts = (0..flat.len()).filter(|&at| waits[at] == 0);
    let mut ready: BinaryHeap<_> = firsts.map(key).collect();
    let mut nodes: Vec<_> = flat.into_iter().map(Some).collect();
    let mut parts = Vec::new();
    let mut lines = Vec::new();
    // For each node, its part and its index in that part.
    let mut places = vec![(usize::MAX, 0); nodes.len()];
    while let Some(Reverse((_, at))) = ready.pop() {
        for &later in &before[at] {
            waits[later] -= 1;
            if waits[later] == 0 {
                ready.push(key(later));
            }
        }
        let Some(node) = nodes[at].take() else {
            continue;
        };
        let event = match node.action {
            FlatAction::Work(work) => {
                places[at] = (parts.len(), lines.len());
                let here = node.after.iter().map(|&earlier| places[earlier]);
                let here = here.filter(|(part, _)| *part == parts.len());
                let after = here.map(|(_, place)| place).collect();
                lines.push((work, after));
                continue;
            }
            FlatAction::Record(event) => Part::Record(event),
            FlatAction::Wait(event) => Part::Wait(event),
        };
        if !lines.is_empty() {
            parts.push(Part::Nodes(std::mem::take(&mut lines)));
        }
        parts.push(event);
    }
    if !lines.is_empty() {
        parts.push(Part::Nodes(lines));
    }
    parts
}

/// Encodes nodes for the server.
pub(super) fn encode(lines: &[Line]) -> Vec<u8> {
    let nodes: Vec<_> = lines
        .iter()
        .map(|(work, after)| GraphNode {
            record: Record {
                stamp: Time(0),
                stream: StreamSlot(0),
                token: None,
                command: work.command(),
            },
            after: after.clone(),
        })
        .collect();
    softgpu_wire::graph::encode(&nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(action: Action, after: &[usize]) -> Step {
        Step {
            source: Handle::NULL,
            action,
            after: after.to_vec(),
            is_enabled: true,
        }
    }

    fn nothing(after: &[usize]) -> Step {
        step(Action::Work(Work::Nothing), after)
    }

    fn after(part: &Part) -> Vec<Vec<usize>> {
        match part {
            Part::Nodes(lines) => lines.iter().map(|(_, after)| after.clone()).collect(),
            Part::Record(_) | Part::Wait(_) => panic!("an event"),
        }
    }

    #[test]
    fn child_graphs_are_flattened() {
        assert!(Plan::default().parts().is_empty());
        let child = Plan {
            steps: vec![nothing(&[]), nothing(&[]), nothing(&[0])],
        };
        let plan = Plan {
            steps: vec![
                nothing(&[]),
                nothing(&[]),
                step(Action::Child(child), &[0, 1]),
                nothing(&[2]),
                step(Action::Child(Plan::default()), &[3]),
                nothing(&[4, 3]),
            ],
        };
        let parts = plan.parts();
        let [part] = parts.as_slice() else {
            panic!("{parts:?}");
        };
        // Node 2 precedes the child, 3 to 5 are the child, 6 follows it.
        let want: [&[usize]; 9] = [&[], &[], &[0, 1], &[2], &[2], &[3], &[4, 5], &[6], &[7]];
        assert_eq!(after(part), want);
        let bytes = encode(match part {
            Part::Nodes(lines) => lines,
            Part::Record(_) | Part::Wait(_) => panic!("an event"),
        });
        let nodes = softgpu_wire::graph::decode(&bytes).unwrap();
        assert_eq!(nodes.len(), want.len());
    }

    #[test]
    fn a_plan_is_split_at_its_events() {
        let event = Handle::NULL;
        let plan = Plan {
            steps: vec![
                step(Action::Wait(event), &[]),
                nothing(&[]),
                nothing(&[]),
                nothing(&[1]),
                step(Action::Record(event), &[3]),
                nothing(&[0, 4, 2]),
                nothing(&[5]),
            ],
        };
        let parts = plan.parts();
        let [first, Part::Record(_), second, Part::Wait(_), third] = parts.as_slice() else {
            panic!("{parts:?}");
        };
        let none: &[usize] = &[];
        assert_eq!(after(first), [none, &[0]]);
        assert_eq!(after(second), [none]);
        assert_eq!(after(third), [none, &[0]]);
    }

    #[test]
    fn a_disabled_node_has_no_effect_but_keeps_its_edges() {
        let mut plan = Plan {
            steps: vec![
                nothing(&[]),
                step(Action::Record(Handle::NULL), &[0]),
                nothing(&[1]),
            ],
        };
        plan.steps[1].is_enabled = false;
        let parts = plan.parts();
        assert_eq!(after(&parts[0]), [vec![], vec![0], vec![1]]);
    }
}
