//! Effects of a graph's launch: those on memory, and its host functions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::work::{HostCall, Work};

use super::objects::Object;

/// Work of a node, and the indices of its predecessors.
pub(super) type Line = (Work, Vec<usize>);

/// Common part of all launches of a graph.
pub(super) struct Body {
    /// Nodes in topological order.
    lines: Vec<Line>,
    calls_the_host: bool,
    /// User objects, kept alive while a launch is in progress.
    _objects: Vec<Arc<Object>>,
}

impl Body {
    /// Creates the body; returns `None` if the graph has no effects and no user objects.
    pub(super) fn new(lines: Vec<Line>, objects: Vec<Arc<Object>>) -> Option<Arc<Self>> {
        let does_something = lines.iter().any(|(work, _)| work.has_effect());
        let calls_the_host = lines.iter().any(|(work, _)| matches!(work, Work::Host(_)));
        (does_something || !objects.is_empty()).then(|| {
            Arc::new(Self {
                lines,
                calls_the_host,
                _objects: objects,
            })
        })
    }
}

/// Effects of one launch of a graph, in an order in which they may be performed.
pub(crate) struct Program {
    body: Arc<Body>,
    /// Nodes whose effect was performed; empty without host functions, because all effects are then performed at the
    /// end.
    done: Box<[AtomicBool]>,
}

impl Program {
    /// Creates the program of a launch.
    pub(super) fn new(body: Arc<Body>) -> Arc<Self> {
        let places = if body.calls_the_host {
            body.lines.len()
        } else {
            0
        };
        Arc::new(Self {
            body,
            done: (0..places).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    fn is_done(&self, node: usize) -> bool {
        self.done
            .get(node)
            .is_some_and(|done| done.load(Ordering::Relaxed))
    }

    /// Marks a node as performed; returns whether it was not before.
    fn begin(&self, node: usize) -> bool {
        let done = self.done.get(node);
        done.is_none_or(|done| !done.swap(true, Ordering::Relaxed))
    }

    /// Returns the work of all nodes not yet performed, in topological order, and marks it as performed.
    pub(crate) fn works(&self) -> impl Iterator<Item = &Work> {
        let lines = self.body.lines.iter().enumerate();
        lines
            .filter(|(at, _)| self.begin(*at))
            .map(|(_, (work, _))| work)
    }

    /// Returns the work that must be performed before the host function of a node is called, and marks it as performed.
    pub(crate) fn works_before(&self, node: u32) -> impl Iterator<Item = &Work> {
        let mut open = vec![node as usize];
        let mut found = BTreeSet::new();
        while let Some(at) = open.pop() {
            for &earlier in self.body.lines.get(at).map_or(&[][..], |(_, after)| after) {
                // Predecessors of a performed node are performed.
                if !self.is_done(earlier) && found.insert(earlier) {
                    open.push(earlier);
                }
            }
        }
        found
            .into_iter()
            .filter(|at| self.begin(*at))
            .map(|at| &self.body.lines[at].0)
    }

    /// Returns the host function of a node.
    pub(crate) fn host_call(&self, node: u32) -> Option<HostCall> {
        match self.body.lines.get(node as usize)? {
            (Work::Host(call), _) => Some(*call),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;
    use crate::work::{Set, Side};

    fn set(value: u32) -> Work {
        let to = Side {
            address: 0,
            pitch: 0,
            slice: 0,
        };
        Work::Set(Set {
            to,
            value,
            element: 4,
            extent: [1, 1],
        })
    }

    fn values<'a>(works: impl Iterator<Item = &'a Work>) -> Vec<u32> {
        works
            .filter_map(|work| match work {
                Work::Set(set) => Some(set.value),
                _ => None,
            })
            .collect()
    }

    extern "C" fn nothing(_data: *mut c_void) {}

    #[test]
    fn effects_before_a_host_function_are_performed_once() {
        let host = || Work::Host(HostCall::Function(nothing, 0));
        let lines = vec![
            (set(0), vec![]),
            (set(1), vec![]),
            (set(2), vec![0]),
            (host(), vec![2]),
            (set(4), vec![3]),
            (host(), vec![1, 4]),
            (set(6), vec![5]),
        ];
        let body = Body::new(lines, Vec::new()).unwrap();
        for _launch in 0..2 {
            let program = Program::new(Arc::clone(&body));
            assert!(program.host_call(3).is_some() && program.host_call(2).is_none());
            assert!(program.host_call(99).is_none());
            assert_eq!(values(program.works_before(3)), [0, 2]);
            assert_eq!(values(program.works_before(5)), [1, 4]);
            assert_eq!(values(program.works()), [6]);
        }
        let program = Program::new(body);
        assert_eq!(values(program.works()), [0, 1, 2, 4, 6]);
    }

    #[test]
    fn a_graph_without_effects_has_no_program() {
        assert!(Body::new(vec![(Work::Nothing, vec![])], Vec::new()).is_none());
        let body = Body::new(vec![(set(5), vec![])], Vec::new()).unwrap();
        let program = Program::new(body);
        assert_eq!(values(program.works()), [5]);
    }
}
