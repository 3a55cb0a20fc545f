//! Pool of this library's own events.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Handle;

/// Largest number of events kept for reuse.
pub const KEPT_MAX: usize = 4096;

/// Free events, each with its context.
#[derive(Debug, Default)]
pub struct EventPool(Mutex<Vec<(Handle, Handle)>>);

impl EventPool {
    /// Creates an empty pool.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn free(&self) -> MutexGuard<'_, Vec<(Handle, Handle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event of the context; `None` if the pool has none.
    pub fn take(&self, context: Handle) -> Option<Handle> {
        let mut free = self.free();
        let place = free.iter().rposition(|&(of, _)| of == context)?;
        Some(free.swap_remove(place).1)
    }

    /// Returns an event to the pool. Returns `false` if the pool is full, and the event has to be destroyed.
    #[must_use]
    pub fn put(&self, context: Handle, event: Handle) -> bool {
        let mut free = self.free();
        let has_room = free.len() < KEPT_MAX;
        if has_room {
            free.push((context, event));
        }
        has_room
    }

    /// Forgets the pooled events of a destroyed context, which were destroyed with it.
    pub fn forget(&self, context: Handle) {
        self.free().retain(|&(of, _)| of != context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_reused_in_its_context_alone() {
        let pool = EventPool::new();
        assert!(pool.put(1, 10) && pool.put(2, 20));
        assert_eq!(pool.take(3), None);
        assert_eq!(pool.take(1), Some(10));
        assert_eq!(pool.take(1), None);
        assert_eq!(pool.take(2), Some(20));
    }

    #[test]
    fn events_of_a_destroyed_context_are_forgotten() {
        let pool = EventPool::new();
        assert!(pool.put(1, 10) && pool.put(2, 20) && pool.put(1, 11));
        pool.forget(1);
        assert_eq!((pool.take(1), pool.take(2)), (None, Some(20)));
    }

    #[test]
    fn a_full_pool_takes_no_event() {
        let pool = EventPool::new();
        assert!((0..KEPT_MAX).all(|event| pool.put(1, event)));
        assert!(!pool.put(1, KEPT_MAX));
        assert!(pool.take(1).is_some());
        assert!(pool.put(1, KEPT_MAX));
    }
}
