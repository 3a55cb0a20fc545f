//! Shutdown signal for the agent's threads, with a wait that it interrupts.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shutdown flag: once set, it stays set.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sets the flag and wakes all waiting threads.
    pub(crate) fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Returns whether the flag is set.
    pub(crate) fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the flag is set, at most for `span`, and returns whether it is set.
    pub(crate) fn wait(&self, span: Duration) -> bool {
        let until = Instant::now() + span;
        let mut is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_set {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(is_set, left);
            is_set = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_set
    }
}
