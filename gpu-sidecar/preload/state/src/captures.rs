//! Stream captures in progress.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Stream captures of the process.
#[derive(Debug, Default)]
pub struct Captures {
    /// Number of captures in progress. A capture abandoned by destroying its stream stays counted until the process ends; launches
    /// then make one needless query of the driver.
    in_progress: AtomicU32,
    /// Held between a query of a stream's capture status and recording an event in it, so that no capture begins in between.
    transition: Mutex<()>,
}

impl Captures {
    /// Creates the record of a process that captures nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            in_progress: AtomicU32::new(0),
            transition: Mutex::new(()),
        }
    }

    /// Returns whether some stream of the process captures.
    #[inline]
    #[must_use]
    pub fn any(&self) -> bool {
        self.in_progress.load(Ordering::Relaxed) != 0
    }

    /// Prevents streams from beginning to capture while the guard is held.
    pub fn transition(&self) -> MutexGuard<'_, ()> {
        self.transition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a capture that is about to begin, under the lock of [`Self::transition`].
    pub fn begin(&self) {
        self.in_progress.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a capture that has ended, or has not begun.
    pub fn end(&self) {
        let fewer = |count: u32| count.checked_sub(1);
        let _before = self
            .in_progress
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_counted_and_never_fewer_than_none() {
        let captures = Captures::new();
        assert!(!captures.any());
        captures.end();
        captures.begin();
        captures.begin();
        captures.end();
        assert!(captures.any());
        captures.end();
        assert!(!captures.any());
    }
}
