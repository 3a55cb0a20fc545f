//! What a launch of a graph does besides taking time: its effect on memory, and its functions of the host.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::work::{HostCall, Work};

use super::objects::Object;

/// A node of a program: what it does, and behind which nodes before it.
pub(super) type Line = (Work, Vec<usize>);

/// What all launches of a graph have in common.
pub(super) struct Body {
    /// Each behind those that it waits for.
    lines: Vec<Line>,
    calls_the_host: bool,
    /// Kept for as long as a launch is under way.
    _objects: Vec<Arc<Object>>,
}

impl Body {
    /// `None`: it does nothing that the timeline does not see.
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

/// What one launch of a graph does to memory, in an order in which it may be done.
pub(crate) struct Program {
    body: Arc<Body>,
    /// Which nodes have had their effect; without functions of the host all have it at once, at the end.
    done: Box<[AtomicBool]>,
}

impl Program {
    /// A launch.
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

    /// Whether it was not done before, and is to be done now.
    fn begin(&self, node: usize) -> bool {
        let done = self.done.get(node);
        done.is_none_or(|done| !done.swap(true, Ordering::Relaxed))
    }

    /// What the nodes do that have had no effect so far, each behind those that it waits for.
    pub(crate) fn works(&self) -> impl Iterator<Item = &Work> {
        let lines = self.body.lines.iter().enumerate();
        lines
            .filter(|(at, _)| self.begin(*at))
            .map(|(_, (work, _))| work)
    }

    /// What has to be done before the function of the host at a node is called: all that it waits for.
    pub(crate) fn works_before(&self, node: u32) -> impl Iterator<Item = &Work> {
        let mut open = vec![node as usize];
        let mut found = BTreeSet::new();
        while let Some(at) = open.pop() {
            for &earlier in self.body.lines.get(at).map_or(&[][..], |(_, after)| after) {
                // Whatever comes before something that is done is done.
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

    /// The function of the host at a node.
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
    fn what_a_function_of_the_host_waits_for_is_done_before_it_and_once() {
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
    fn a_program_without_effect_is_none() {
        assert!(Body::new(vec![(Work::Nothing, vec![])], Vec::new()).is_none());
        let body = Body::new(vec![(set(5), vec![])], Vec::new()).unwrap();
        let program = Program::new(body);
        assert_eq!(values(program.works()), [5]);
    }
}
