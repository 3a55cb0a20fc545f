//! Log lines about events which may come by the thousand: the first at once, then at most one a minute with their number; and
//! about states which begin and end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Shortest time between two lines about the same event.
pub const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Limit of the lines about one kind of event.
#[derive(Debug, Default)]
pub struct LineLimit(Mutex<LineState>);

#[derive(Debug, Default)]
struct LineState {
    last_line: Option<Instant>,
    events: u64,
}

impl LineLimit {
    /// Records an event. Returns the number of events since the last line, this one included, if a line is due.
    pub fn record(&self, now: Instant) -> Option<u64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .record(now)
    }
}

impl LineState {
    fn record(&mut self, now: Instant) -> Option<u64> {
        self.events += 1;
        let is_due = self
            .last_line
            .is_none_or(|last| now.saturating_duration_since(last) >= LINE_INTERVAL);
        is_due.then(|| {
            self.last_line = Some(now);
            std::mem::take(&mut self.events)
        })
    }
}

/// A state of failure, such as that of an upstream: begun by a failure, ended by a success.
#[derive(Debug, Default)]
pub struct Outage {
    /// Copy of `state.began.is_some()`, so that a success without an outage takes no lock.
    is_failing: AtomicBool,
    state: Mutex<OutageState>,
}

#[derive(Debug, Default)]
struct OutageState {
    began: Option<Instant>,
    line: LineState,
    /// Whether this outage had a line, so that its end has one.
    is_reported: bool,
    failures: u64,
}

/// Content of a line about an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutageReport {
    /// Number of failures of this outage so far.
    pub failures: u64,
    /// Time since its first failure.
    pub lasted: Duration,
}

impl Outage {
    /// Records a failure. Returns the content of a line if one is due: for the first failure, and then at most once per
    /// [`LINE_INTERVAL`], also where outages and successes alternate.
    pub fn fail(&self, now: Instant) -> Option<OutageReport> {
        let mut state = self.lock();
        self.is_failing.store(true, Ordering::Relaxed);
        let began = *state.began.get_or_insert(now);
        state.failures += 1;
        state.line.record(now)?;
        state.is_reported = true;
        Some(OutageReport {
            failures: state.failures,
            lasted: now.saturating_duration_since(began),
        })
    }

    /// Records a success. Returns the content of a line if it ends an outage whose begin had one. The clock is read during outages
    /// only, as nearly all successes end none.
    pub fn recover(&self, now: impl FnOnce() -> Instant) -> Option<OutageReport> {
        if !self.is_failing.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.lock();
        self.is_failing.store(false, Ordering::Relaxed);
        let began = state.began.take()?;
        let failures = std::mem::take(&mut state.failures);
        std::mem::take(&mut state.is_reported).then(|| OutageReport {
            failures,
            lasted: now().saturating_duration_since(began),
        })
    }

    fn lock(&self) -> MutexGuard<'_, OutageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn events_have_a_line_at_once_and_then_one_a_minute_with_their_number() {
        let limit = LineLimit::default();
        let start = Instant::now();
        assert_eq!(limit.record(start), Some(1));
        for second in 1..60 {
            assert_eq!(limit.record(start + SECOND * second), None);
        }
        assert_eq!(limit.record(start + LINE_INTERVAL), Some(60));
    }

    #[test]
    fn an_outage_has_a_line_when_it_begins_and_one_when_it_ends() {
        let outage = Outage::default();
        let start = Instant::now();
        assert_eq!(outage.recover(|| start), None);
        let report = |failures, seconds| {
            Some(OutageReport {
                failures,
                lasted: SECOND * seconds,
            })
        };
        assert_eq!(outage.fail(start), report(1, 0));
        assert_eq!(outage.fail(start + SECOND), None);
        assert_eq!(outage.recover(|| start + SECOND * 2), report(2, 2));
        assert_eq!(outage.recover(|| start + SECOND * 3), None);
    }

    #[test]
    fn failures_and_successes_in_turns_have_two_lines_a_minute_at_most() {
        let outage = Outage::default();
        let start = Instant::now();
        let mut lines = 0;
        for second in 0..600 {
            let now = start + SECOND * second;
            lines += usize::from(outage.fail(now).is_some());
            lines += usize::from(outage.recover(|| now).is_some());
        }
        assert_eq!(lines, 20);
    }
}
