//! Arguments of the nodes of executable graphs, from which it is known what memory a launch of the graph uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Handle;
use crate::restoring::ADDRESSES;

/// Number of words that are kept of all graphs at most: 512 KiB.
const WORDS_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
struct Table {
    words: BTreeMap<Handle, Box<[u64]>>,
    /// Number of all words.
    count: usize,
    /// Whether kernels may launch graphs, of which no call of the program shows what a launch uses.
    has_device_launches: bool,
}

/// Arguments of the nodes of executable graphs, as far as they are known and there is room.
#[derive(Debug, Default)]
pub struct Graphs(Mutex<Table>);

impl Graphs {
    /// Creates the set without a graph.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Table {
            words: BTreeMap::new(),
            count: 0,
            has_device_launches: false,
        }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the words of the arguments of all nodes of an executable graph, in place of those of another one with this handle. Only words that may be
    /// addresses are kept. Beyond the bound of all graphs, or without such a word, the graph is not known.
    pub fn note(&self, graph: Handle, mut words: BTreeSet<u64>) {
        words.retain(|word| ADDRESSES.contains(word));
        let mut table = self.table();
        table.remove(graph);
        let has_room = table.count + words.len() <= WORDS_MAX;
        if has_room && !words.is_empty() && !table.has_device_launches {
            table.count += words.len();
            table.words.insert(graph, words.into_iter().collect());
        }
    }

    /// Notes that kernels may launch some graph: from now on no graph is known.
    pub fn note_device_launches(&self) {
        let mut table = self.table();
        *table = Table {
            has_device_launches: true,
            ..Table::default()
        };
    }

    /// Forgets an executable graph, which is destroyed or changed.
    pub fn forget(&self, graph: Handle) {
        self.table().remove(graph);
    }

    /// Returns the words of the arguments of all nodes of an executable graph; `None` if they are not known.
    #[must_use]
    pub fn words(&self, graph: Handle) -> Option<Vec<u64>> {
        self.table().words.get(&graph).map(|words| words.to_vec())
    }
}

impl Table {
    fn remove(&mut self, graph: Handle) {
        self.count -= self.words.remove(&graph).map_or(0, |words| words.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f00_0000_0000;

    fn words(count: u64) -> BTreeSet<u64> {
        (AT..AT + count).collect()
    }

    #[test]
    fn a_graph_is_known_until_it_is_forgotten_or_another_has_its_handle() {
        let graphs = Graphs::new();
        assert_eq!(graphs.words(1), None);
        graphs.note(1, words(2));
        assert_eq!(graphs.words(1), Some(vec![AT, AT + 1]));
        graphs.note(1, words(1));
        assert_eq!(graphs.words(1), Some(vec![AT]));
        graphs.forget(1);
        graphs.forget(1);
        assert_eq!(graphs.words(1), None);
    }

    #[test]
    fn only_words_that_may_be_addresses_are_kept() {
        let graphs = Graphs::new();
        graphs.note(
            1,
            [0, 7, (1 << 32) - 1, 1 << 32, (1 << 48) - 1, 1 << 48].into(),
        );
        assert_eq!(graphs.words(1), Some(vec![1 << 32, (1 << 48) - 1]));
        graphs.note(2, [0, 7].into());
        assert_eq!(graphs.words(2), None);
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

    #[test]
    fn no_graph_is_known_once_kernels_may_launch_one() {
        let graphs = Graphs::new();
        graphs.note(1, words(1));
        graphs.note_device_launches();
        graphs.note(2, words(1));
        assert_eq!((graphs.words(1), graphs.words(2)), (None, None));
    }
}
