//! Arguments of the nodes of executable graphs, from which it is known what memory a launch of the graph uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Handle;

/// Number of words that are kept of all graphs at most: 512 KiB.
const WORDS_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
struct Known {
    words: BTreeMap<Handle, Box<[u64]>>,
    /// Number of all words.
    count: usize,
}

/// Arguments of the nodes of executable graphs, as far as they are known and there is room.
#[derive(Debug, Default)]
pub struct Graphs(Mutex<Known>);

impl Graphs {
    /// Creates the set without a graph.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Known {
            words: BTreeMap::new(),
            count: 0,
        }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the words of the arguments of all nodes of an executable graph, in place of what was known of one with this handle. Beyond
    /// the bound of all graphs the graph is not known.
    pub fn note(&self, graph: Handle, words: BTreeSet<u64>) {
        let mut known = self.known();
        known.remove(graph);
        if known.count + words.len() <= WORDS_MAX {
            known.count += words.len();
            known.words.insert(graph, words.into_iter().collect());
        }
    }

    /// Forgets an executable graph, which is destroyed or changed.
    pub fn forget(&self, graph: Handle) {
        self.known().remove(graph);
    }

    /// Returns the words of the arguments of all nodes of an executable graph; `None` if they are not known.
    #[must_use]
    pub fn words(&self, graph: Handle) -> Option<Vec<u64>> {
        self.known().words.get(&graph).map(|words| words.to_vec())
    }
}

impl Known {
    fn remove(&mut self, graph: Handle) {
        self.count -= self.words.remove(&graph).map_or(0, |words| words.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: u64) -> BTreeSet<u64> {
        (0..count).collect()
    }

    #[test]
    fn a_graph_is_known_until_it_is_forgotten_or_another_has_its_handle() {
        let graphs = Graphs::new();
        assert_eq!(graphs.words(1), None);
        graphs.note(1, [7, 3].into());
        graphs.note(2, BTreeSet::new());
        assert_eq!(graphs.words(1), Some(vec![3, 7]));
        assert_eq!(graphs.words(2), Some(Vec::new()));
        graphs.note(1, [9].into());
        assert_eq!(graphs.words(1), Some(vec![9]));
        graphs.forget(1);
        graphs.forget(1);
        assert_eq!(graphs.words(1), None);
    }

    #[test]
    fn a_graph_without_room_is_not_known_and_one_that_leaves_makes_room() {
        let graphs = Graphs::new();
        graphs.note(1, words(WORDS_MAX as u64 - 2));
        graphs.note(2, words(3));
        assert_eq!(graphs.words(2), None);
        graphs.note(3, words(2));
        assert_eq!(graphs.words(3).map(|words| words.len()), Some(2));
        graphs.note(1, words(WORDS_MAX as u64));
        assert_eq!(graphs.words(1), None, "nor as it was before");
        graphs.note(2, words(3));
        assert!(graphs.words(2).is_some());
    }
}
