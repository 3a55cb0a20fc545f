//! Loss of the agent, and the time without one.

use std::borrow::Cow;
use std::time::Duration;

use super::event::Action;
use crate::nanoseconds;

/// Reason for which a connection could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkError {
    /// The connection was lost, or the agent does not answer.
    Lost,
    /// The agent refuses the process, and has sent the reason.
    Refused,
}

/// Outcome of a failed attempt to reach the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The agent does not answer or accepts no connection.
    Silent,
    /// The agent refuses this process.
    Refused,
    /// No agent is running.
    NoAgent,
}

/// Time without an agent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Absence {
    /// Start of the absence in nanoseconds; `None` while an agent is running.
    since: Option<u64>,
    /// Whether a log line has reported that the agent does not answer.
    is_reported: bool,
}

impl Absence {
    pub(super) const fn new() -> Self {
        Self {
            since: None,
            is_reported: false,
        }
    }

    /// Notes that the agent is running but does not answer. Returns a line to log, once.
    pub(super) fn end(&mut self) -> Option<Action> {
        self.since = None;
        let is_first = !std::mem::replace(&mut self.is_reported, true);
        let line = "the agent is running but does not answer yet: this process waits for it";
        is_first.then_some(Action::Log(Cow::Borrowed(line)))
    }

    /// Returns whether the absence has lasted for at least `span`.
    pub(super) fn has_lasted(&self, now: u64, span: Duration) -> bool {
        let since = self.since.unwrap_or(u64::MAX);
        now.saturating_sub(since) >= nanoseconds(span)
    }

    /// Notes that no agent is running at `now`.
    pub(super) fn extend(&mut self, now: u64) {
        let _since = self.since.get_or_insert(now);
    }
}

/// Loss of the connection, until an agent serves the process again.
#[derive(Debug, Clone, Default)]
pub(super) struct Loss {
    pub(super) absence: Absence,
    /// Whether the agent had no heartbeat while a thread was parked.
    pub(super) is_hung: bool,
    /// Whether the gate was open, or work was in flight, since the loss.
    pub(super) computes: bool,
    /// Time up to which the time without an agent is counted, in nanoseconds; `None` if the gate is as the agent left it, or
    /// closed.
    pub(super) counted_to: Option<u64>,
}
