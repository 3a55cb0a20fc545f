//! Contexts in which the process uses memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::Handle;

/// Divisor of the device's memory which bounds a context's own memory when it has to be estimated.
const RESIDUE_PART: u64 = 32;

/// Contexts in which the process uses memory.
#[derive(Debug, Default)]
pub struct Contexts {
    /// Contexts in which memory was allocated or queried.
    live: BTreeSet<Handle>,
    /// One event per context, never recorded, whose query shows whether the context still works.
    probes: BTreeMap<Handle, Handle>,
}

impl Contexts {
    /// Registers a context. Returns whether it is the first one.
    pub fn register(&mut self, context: Handle) -> bool {
        self.live.insert(context) && self.live.len() == 1
    }

    /// Removes a destroyed context. Returns whether it was the last one.
    pub fn remove(&mut self, context: Handle) -> bool {
        self.probes.remove(&context);
        self.live.remove(&context) && self.live.is_empty()
    }

    /// Returns the contexts in which the process uses memory.
    pub fn live(&self) -> impl Iterator<Item = Handle> {
        self.live.iter().copied()
    }

    /// Returns whether the process uses memory in some context.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.live.is_empty()
    }

    /// Returns the probe of a context; `None` if it has none yet.
    #[must_use]
    pub fn probe(&self, context: Handle) -> Option<Handle> {
        self.probes.get(&context).copied()
    }

    /// Keeps a probe for a context unless it has one, and returns the one it has.
    pub fn keep_probe(&mut self, context: Handle, probe: Handle) -> Handle {
        *self.probes.entry(context).or_insert(probe)
    }
}

/// Returns an estimate of a context's own memory in bytes: the device's used memory that is not the `held` one of this process, which
/// is an upper bound since other processes may use the device, limited to the most that a context needs.
#[must_use]
pub fn residue(free: u64, total: u64, held: u64) -> u64 {
    let gone = total.saturating_sub(free).saturating_sub(held);
    gone.min(total / RESIDUE_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_context_are_noticed() {
        let mut contexts = Contexts::default();
        assert!(!contexts.any());
        assert!(contexts.register(1));
        assert!(!contexts.register(1) && !contexts.register(2));
        assert!(!contexts.remove(1) && !contexts.remove(1));
        assert!(contexts.any());
        assert!(contexts.remove(2));
        assert!(!contexts.any() && contexts.register(3));
    }

    #[test]
    fn a_context_has_one_probe_until_it_is_destroyed() {
        let mut contexts = Contexts::default();
        assert_eq!(contexts.probe(1), None);
        assert_eq!(contexts.keep_probe(1, 10), 10);
        assert_eq!(contexts.keep_probe(1, 11), 10);
        let _last = contexts.remove(1);
        assert_eq!(contexts.probe(1), None);
    }

    #[test]
    fn a_contexts_own_memory_is_bounded_by_what_a_context_needs() {
        assert_eq!(residue(31_500, 32_000, 100), 400);
        assert_eq!(residue(0, 32_000, 0), 1_000);
        assert_eq!(residue(32_000, 32_000, 100), 0);
        assert_eq!(residue(40_000, 32_000, 0), 0);
    }
}
