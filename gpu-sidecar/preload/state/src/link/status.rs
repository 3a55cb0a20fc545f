//! What other threads know of the link.

use std::sync::atomic::{AtomicBool, Ordering};

/// What the thread of the link shares with the other threads of the process.
#[derive(Debug, Default)]
pub struct Status {
    /// Whether there is no connection, or a new one is not served yet, so that the heartbeat of the previous page is meaningless.
    is_lost: AtomicBool,
    /// Whether the agent was last given up for lack of a heartbeat.
    is_hung: AtomicBool,
}

impl Status {
    /// Creates the status of a process that has not lost its agent.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            is_lost: AtomicBool::new(false),
            is_hung: AtomicBool::new(false),
        }
    }

    /// Publishes [`super::Link::is_lost`].
    pub fn set_lost(&self, is_lost: bool) {
        self.is_lost.store(is_lost, Ordering::Release);
    }

    /// Returns whether no agent serves the process.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Notes that the agent has no heartbeat; its connection is to be closed, and the thread of the link then treats it as stopped.
    pub fn set_hung(&self) {
        self.is_hung.store(true, Ordering::Release);
    }

    /// Returns whether the agent was given up since the last call.
    #[must_use]
    pub fn take_hung(&self) -> bool {
        self.is_hung.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hung_agent_is_noticed_once() {
        let status = Status::new();
        assert!(!status.take_hung() && !status.is_lost());
        status.set_hung();
        assert!(status.take_hung());
        assert!(!status.take_hung());
        status.set_lost(true);
        assert!(status.is_lost());
    }
}
