//! Processes of GPU functions that will compute no more: when one counts as faulted, and is to be ended so that a new one takes its place (mechanisms §2.8).
//!
//! A process faults in two ways. Its driver has reported an error that stays (*sticky*, as after an illegal address): every later call fails, and only a new
//! process computes again. Or its work on the device does not progress: nothing that was launched ends, and nothing else is launched. Under leases the
//! second one holds up every other instance of the slot, and the requests that it runs, until the longest timeout of a revision.
//!
//! How long work usually takes is known from requests that have ended, and from the longest time for which work of the process itself has been in flight
//! without a break: the longer one counts. While neither is known, [`STALL_UNKNOWN`] is allowed.
//!
//! # Examples
//!
//! ```
//! use policy::faults::{Fault, Watch, Work};
//! use policy::{Span, Time};
//!
//! let ms = |ms: u64| Time(ms * 1_000_000);
//! let hung = Work {
//!     unfinished_since: Some(ms(10)),
//!     launches: 7,
//!     longest: None,
//!     ended: Span::from_millis(30),
//!     has_error: false,
//! };
//! let (mut watch, usual) = (Watch::new(), Some(Span::from_secs(3)));
//! watch.observe(ms(20), &hung);
//! watch.observe(ms(15_000), &hung);
//! assert_eq!(watch.fault(ms(15_000), usual), None);
//! assert_eq!(watch.fault(ms(15_020), usual), Some(Fault::NoProgress));
//! ```

use crate::{Span, Time};

/// Number of usual execution times after which work that does not progress counts as hung.
pub const STALL_FACTOR: u64 = 5;
/// Shortest time without progress after which work counts as hung: copies and other work of the driver may come before a kernel in its stream, an input may be
/// much larger than usual, and parts of one launch, or of work for which the program waits, end unseen.
pub const STALL_MIN: Span = Span::from_secs(10);
/// Longest time without progress that is allowed, whatever is usual: queues state how long requests take.
pub const STALL_MAX: Span = Span::from_secs(300);
/// Time without progress after which work counts as hung while it is not known how long it usually takes.
pub const STALL_UNKNOWN: Span = Span::from_secs(60);
/// Number of times that work must have been in flight until their longest is what is usual.
pub const KNOWN_FROM: u64 = 20;
/// Time in which a process with a sticky error may answer its requests and end by itself.
pub const STICKY_GRACE: Span = Span::from_secs(1);

/// Why a process counts as faulted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The driver has reported an error that stays.
    StickyError,
    /// Work on the device does not end, and nothing else is launched.
    NoProgress,
}

impl Fault {
    /// All faults, in the order of metrics and documentation.
    pub const ALL: [Self; 2] = [Self::StickyError, Self::NoProgress];

    /// Returns the name in kebab case, as in metrics and events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StickyError => "sticky-error",
            Self::NoProgress => "no-progress",
        }
    }
}

/// Work of a process on its device at one time, as it states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Time since which work is in flight without a break; `None`: nothing is.
    pub unfinished_since: Option<Time>,
    /// Number of launches so far.
    pub launches: u64,
    /// Total time of work that has ended.
    pub ended: Span,
    /// Longest time for which work has been in flight without a break; `None`: it was so less than [`KNOWN_FROM`] times.
    pub longest: Option<Span>,
    /// Whether the driver has reported a sticky error.
    pub has_error: bool,
}

/// Observation of one process.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    last: Work,
    /// Time of the last observation that showed progress, or no work in flight.
    progressed: Time,
    error_since: Option<Time>,
}

impl Watch {
    /// Returns the observation of a new process.
    #[must_use]
    pub const fn new() -> Self {
        let last = Work {
            unfinished_since: None,
            launches: 0,
            ended: Span::ZERO,
            longest: None,
            has_error: false,
        };
        Self {
            last,
            progressed: Time::ZERO,
            error_since: None,
        }
    }

    /// Takes the present work of the process.
    pub fn observe(&mut self, now: Time, work: &Work) {
        if work.has_error {
            self.error_since.get_or_insert(now);
        }
        if work.unfinished_since.is_none() || *work != self.last {
            self.progressed = now;
        }
        self.last = *work;
    }

    /// Restarts the wait for progress: the process could make none, since it was stopped.
    pub fn restart(&mut self, now: Time) {
        self.progressed = now;
    }

    /// Returns the fault of the process at `now`, if any. `requests`: usual execution time of its requests, if it is known.
    #[must_use]
    pub fn fault(&self, now: Time, requests: Option<Span>) -> Option<Fault> {
        if self
            .error_since
            .is_some_and(|since| now.since(since) >= STICKY_GRACE)
        {
            return Some(Fault::StickyError);
        }
        let is_busy = self.last.unfinished_since.is_some();
        let usual = requests.max(self.last.longest);
        let is_hung = is_busy && now.since(self.progressed) >= stalls_after(usual);
        is_hung.then_some(Fault::NoProgress)
    }

    /// Returns since when the driver has reported a sticky error, if it has.
    #[must_use]
    pub const fn error_since(&self) -> Option<Time> {
        self.error_since
    }
}

/// Returns the time without progress after which work counts as hung.
#[must_use]
pub fn stalls_after(usual: Option<Span>) -> Span {
    let allowed = usual.map(|usual| Span(usual.0.saturating_mul(STALL_FACTOR)));
    allowed.map_or(STALL_UNKNOWN, |allowed| allowed.clamp(STALL_MIN, STALL_MAX))
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Option<Span> = Some(Span::from_millis(20));

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn busy(launches: u64) -> Work {
        Work {
            unfinished_since: Some(ms(1)),
            launches,
            ..Work::default()
        }
    }

    #[test]
    fn work_that_progresses_is_no_fault_however_long_it_lasts() {
        let mut watch = Watch::new();
        for step in 0..1_000 {
            watch.observe(ms(step * 9_900), &busy(step));
            assert_eq!(watch.fault(ms(step * 9_900 + 9_899), USUAL), None);
        }
        // One launch, whose parts end one after the other.
        for step in 0..1_000 {
            let now = ms(20_000_000 + step * 9_900);
            let ended = Span::from_millis(step);
            watch.observe(
                now,
                &Work {
                    ended,
                    ..busy(1_000)
                },
            );
            assert_eq!(watch.fault(now, USUAL), None);
        }
    }

    #[test]
    fn a_process_without_work_in_flight_does_not_hang() {
        let mut watch = Watch::new();
        watch.observe(ms(1), &Work::default());
        assert_eq!(watch.fault(ms(1_000_000), USUAL), None);
        // The time before it had work does not count.
        watch.observe(ms(1_000_000), &busy(1));
        assert_eq!(watch.fault(ms(1_009_999), USUAL), None);
        assert_eq!(watch.fault(ms(1_010_000), USUAL), Some(Fault::NoProgress));
    }

    #[test]
    fn five_usual_times_are_allowed_and_a_minute_where_none_is_known() {
        for (usual, allowed_ms) in [(Some(3_000), 15_000), (Some(400), 10_000), (None, 60_000)] {
            let mut watch = Watch::new();
            watch.observe(ms(1), &busy(1));
            let usual = usual.map(Span::from_millis);
            assert_eq!(watch.fault(ms(allowed_ms), usual), None);
            assert_eq!(
                watch.fault(ms(allowed_ms + 1), usual),
                Some(Fault::NoProgress)
            );
        }
        assert_eq!(stalls_after(Some(Span(u64::MAX))), STALL_MAX);
    }

    #[test]
    fn the_longer_one_of_what_requests_and_work_usually_take_counts() {
        for (requests, longest, allowed_ms) in [
            (None, Some(3_000), 15_000),
            (Some(20), Some(3_000), 15_000),
            (Some(3_000), Some(20), 15_000),
            (Some(3_000), None, 15_000),
        ] {
            let mut watch = Watch::new();
            let longest = longest.map(Span::from_millis);
            watch.observe(ms(0), &Work { longest, ..busy(1) });
            let requests = requests.map(Span::from_millis);
            assert_eq!(watch.fault(ms(allowed_ms - 1), requests), None);
            let fault = watch.fault(ms(allowed_ms), requests);
            assert_eq!(fault, Some(Fault::NoProgress));
        }
    }

    #[test]
    fn a_process_that_was_stopped_has_all_its_time_again() {
        let mut watch = Watch::new();
        watch.observe(ms(1), &busy(1));
        watch.restart(ms(10_000));
        watch.observe(ms(19_999), &busy(1));
        assert_eq!(watch.fault(ms(19_999), USUAL), None);
        assert_eq!(watch.fault(ms(20_000), USUAL), Some(Fault::NoProgress));
    }

    #[test]
    fn an_error_that_stays_is_a_fault_after_a_second() {
        let mut watch = Watch::new();
        let failed = Work {
            has_error: true,
            ..Work::default()
        };
        watch.observe(ms(5), &failed);
        watch.observe(ms(900), &failed);
        assert_eq!(watch.fault(ms(1_004), USUAL), None);
        assert_eq!(watch.fault(ms(1_005), None), Some(Fault::StickyError));
    }
}
