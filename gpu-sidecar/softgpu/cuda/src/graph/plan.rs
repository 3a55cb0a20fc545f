//! What an executable graph is made of: a copy of the graph with the graphs of its nodes, and how it becomes commands.
//!
//! The server takes a graph as one command, which has kernels, copies, memsets and functions of the host. Where events are
//! recorded or waited for in between, the graph is cut: each part is a command, and the events' commands lie between them.

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

use super::nodes::{self, Graph, Place, What};
use super::program::Line;

/// What a step does.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Work(Work),
    Child(Plan),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

/// A node of a graph that can be launched.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The node that it is a copy of, by which the program knows it.
    pub(super) source: Handle<Place>,
    pub(super) action: Action,
    /// Steps before it that it waits for.
    pub(super) after: Vec<usize>,
    pub(super) is_enabled: bool,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
}

impl Action {
    /// As the interface numbers it.
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
    /// The plan of a graph as it is now.
    pub(super) fn of(state: &State, graph: Handle<Graph>) -> Result<Self> {
        let there = state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
        let order = there.order();
        let mut places = std::collections::HashMap::with_capacity(order.len());
        let mut steps = Vec::with_capacity(order.len());
        for (at, id) in order.into_iter().enumerate() {
            places.insert(id, at);
            let node = &there.nodes[&id];
            let action = match &node.what {
                What::Work(work) => Action::Work(work.clone()),
                What::Child(child) => Action::Child(Self::of(state, *child)?),
                What::Record(event) => Action::Record(*event),
                What::Wait(event) => Action::Wait(*event),
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

    /// The step of a node, here or in a graph of a node.
    pub(super) fn find(&mut self, node: Handle<Place>) -> Option<&mut Step> {
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

    /// Nodes that wait for events or record them.
    fn has_events(flat: &[Flat]) -> bool {
        flat.iter()
            .any(|flat| !matches!(flat.action, Deed::Work(_)))
    }

    /// The commands that a launch puts into its stream.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut flat = Vec::new();
        flatten(self, &[], &mut flat);
        if Self::has_events(&flat) {
            return cut(flat);
        }
        let lines = flat.into_iter().filter_map(|flat| match flat.action {
            Deed::Work(work) => Some((work, flat.after)),
            Deed::Record(_) | Deed::Wait(_) => None,
        });
        let lines: Vec<_> = lines.collect();
        if lines.is_empty() {
            Vec::new()
        } else {
            vec![Part::Nodes(lines)]
        }
    }

    /// As a new graph that belongs to another.
    pub(super) fn to_graph(
        &self,
        state: &mut State,
        owner: Handle<Graph>,
    ) -> Result<Handle<Graph>> {
        let graph = nodes::create(state, Some(owner))?;
        let mut ids = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let what = match &step.action {
                _ if !step.is_enabled => What::Work(Work::Nothing),
                Action::Work(work) => What::Work(work.clone()),
                Action::Child(plan) => What::Child(plan.to_graph(state, graph)?),
                Action::Record(event) => What::Record(*event),
                Action::Wait(event) => What::Wait(*event),
            };
            let after: Vec<_> = step.after.iter().map(|&at| ids[at]).collect();
            ids.push(nodes::add(state, graph, what, &after)?);
        }
        Ok(graph)
    }
}

/// One command of a launch.
#[derive(Debug)]
pub(super) enum Part {
    /// Nodes for the server, each behind those that it waits for.
    Nodes(Vec<Line>),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

/// What a node does where all graphs of nodes have become nodes.
#[derive(Debug)]
enum Deed {
    Work(Work),
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

#[derive(Debug)]
struct Flat {
    action: Deed,
    after: Vec<usize>,
}

fn push(flat: &mut Vec<Flat>, action: Deed, mut after: Vec<usize>) -> usize {
    after.sort_unstable();
    after.dedup();
    flat.push(Flat { action, after });
    flat.len() - 1
}

/// Appends a plan whose first steps wait for `entry`; gives back those that no other step waits for.
fn flatten(plan: &Plan, entry: &[usize], flat: &mut Vec<Flat>) -> Vec<usize> {
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
            _ if !step.is_enabled => push(flat, Deed::Work(Work::Nothing), after),
            Action::Work(work) => push(flat, Deed::Work(work.clone()), after),
            Action::Record(event) => push(flat, Deed::Record(*event), after),
            Action::Wait(event) => push(flat, Deed::Wait(*event), after),
            Action::Child(child) => {
                // One node before and one behind, so that not all of its firsts wait for many, nor many for all its lasts.
                let entry = match after.as_slice() {
                    [] | [_] => after,
                    _ => vec![push(flat, Deed::Work(Work::Nothing), after)],
                };
                let lasts = flatten(child, &entry, flat);
                match (lasts.as_slice(), entry.as_slice()) {
                    ([one], _) | ([], [one]) => *one,
                    _ => push(flat, Deed::Work(Work::Nothing), lasts),
                }
            }
        };
        ends.push(end);
    }
    let lasts = ends.iter().zip(is_last).filter(|(_, is_last)| *is_last);
    lasts.map(|(end, _)| *end).collect()
}

/// Which of several nodes that may come next comes first, so that as little as possible waits for what it need not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Something that a record waits for.
    ForRecord,
    Record,
    Other,
    Wait,
}

fn turns(flat: &[Flat]) -> Vec<Turn> {
    let turn = |flat: &Flat| match flat.action {
        Deed::Work(_) => Turn::Other,
        Deed::Record(_) => Turn::Record,
        Deed::Wait(_) => Turn::Wait,
    };
    let mut turns: Vec<_> = flat.iter().map(turn).collect();
    let mut leads_to_record = vec![false; flat.len()];
    for (at, node) in flat.iter().enumerate().rev() {
        if leads_to_record[at] && turns[at] == Turn::Other {
            turns[at] = Turn::ForRecord;
        }
        if leads_to_record[at] || turns[at] == Turn::Record {
            for &earlier in &node.after {
                leads_to_record[earlier] = true;
            }
        }
    }
    turns
}

/// Cuts at events. Nodes of a part come behind all of the parts before it.
fn cut(flat: Vec<Flat>) -> Vec<Part> {
    let turns = turns(&flat);
    let mut waits: Vec<_> = flat.iter().map(|node| node.after.len()).collect();
    let mut before = vec![Vec::new(); flat.len()];
    for (at, node) in flat.iter().enumerate() {
        for &earlier in &node.after {
            before[earlier].push(at);
        }
    }
    let key = |at: usize| Reverse((turns[at], at));
    let firsts = (0..flat.len()).filter(|&at| waits[at] == 0);
    let mut ready: BinaryHeap<_> = firsts.map(key).collect();
    let mut nodes: Vec<_> = flat.into_iter().map(Some).collect();
    let mut parts = Vec::new();
    let mut lines = Vec::new();
    // Of each node, in which part it is, and where in it.
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
            Deed::Work(work) => {
                places[at] = (parts.len(), lines.len());
                let here = node.after.iter().map(|&earlier| places[earlier]);
                let here = here.filter(|(part, _)| *part == parts.len());
                let after = here.map(|(_, place)| place).collect();
                lines.push((work, after));
                continue;
            }
            Deed::Record(event) => Part::Record(event),
            Deed::Wait(event) => Part::Wait(event),
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

/// As the server reads it.
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
    fn graphs_of_nodes_become_nodes() {
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
        // 2 is before the child, 3 to 5 are the child, 6 is behind it.
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
    fn a_plan_is_cut_at_its_events() {
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
    fn a_disabled_node_does_nothing_and_is_still_waited_for() {
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
