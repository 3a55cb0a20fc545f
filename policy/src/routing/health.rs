//! When an instance gets no requests, and when it gets only a few.
//!
//! Three connection failures in a row, or one missed probe, eject an instance: for 1 s at first, twice as long each
//! further time, and 60 s at most. An instance that missed a probe returns as soon as it answers one. An instance that
//! accepted no connection returns when its time is over, and then a single failure ejects it again. The last usable
//! instance is kept until there is another. An answer resets all of this. After it has become ready or has returned, an
//! instance starts slowly: for its first five requests, and for 10 s at most, it may have only one request more than it
//! has answered.

use super::action::EjectReason;
use crate::{Span, Time};

/// Number of consecutive connection failures that eject an instance.
const FAILURES_MAX: u8 = 3;
/// Duration of the first ejection of an instance.
const BACK_OFF_MIN: Span = Span::from_secs(1);
/// Duration of the longest ejection of an instance.
const BACK_OFF_MAX: Span = Span::from_secs(60);
/// Number of answers after which the slow start of a returned instance ends.
const SLOW_START_ANSWERS: u32 = 5;
/// Time after which the slow start of a returned instance ends at the latest.
const SLOW_START: Span = Span::from_secs(10);

/// Time without news from an instance with requests after which it is probed.
const SILENCE: Span = Span::from_millis(400);

/// Returns whether an instance with `requests` requests, last heard from at `heard`, should be probed although no
/// exchange with it has failed: a stopped process keeps its connections open.
#[must_use]
pub fn is_silent(now: Time, requests: u32, heard: Time) -> bool {
    requests > 0 && now.since(heard) >= SILENCE
}

/// Health of one instance; see the [module](self).
#[derive(Clone, Copy, Debug)]
pub(super) struct Health {
    failures: u8,
    back_off: Span,
    pub(super) ejected: Option<(EjectReason, Time)>,
    /// Whether a probe was missed and none has been answered since.
    pub(super) has_missed: bool,
    /// End of the slow start, and the number of answers since its beginning.
    slow: Option<(Time, u32)>,
}

impl Health {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            failures: 0,
            back_off: BACK_OFF_MIN,
            ejected: None,
            has_missed: false,
            slow: Some((now.after(SLOW_START), 0)),
        }
    }

    /// Records an exchange that ended well.
    pub(super) const fn answered(&mut self) {
        self.failures = 0;
        self.back_off = BACK_OFF_MIN;
        if let Some((until, answers)) = self.slow {
            let answers = answers + 1;
            self.slow = if answers < SLOW_START_ANSWERS {
                Some((until, answers))
            } else {
                None
            };
        }
    }

    /// Records that the instance accepted no connection, and returns whether it must be ejected for that.
    pub(super) const fn failed_to_connect(&mut self) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.failures >= FAILURES_MAX
    }

    /// Ejects the instance and returns the end of the ejection.
    pub(super) fn eject(&mut self, now: Time, reason: EjectReason) -> Time {
        let until = now.after(self.back_off);
        self.ejected = Some((reason, until));
        self.back_off = Span(self.back_off.0.saturating_mul(2)).min(BACK_OFF_MAX);
        until
    }

    /// Ends the ejection and begins a slow start.
    pub(super) const fn come_back(&mut self, now: Time) {
        self.ejected = None;
        self.failures = FAILURES_MAX - 1;
        self.slow = Some((now.after(SLOW_START), 0));
    }

    /// Records an answered probe, which shows that the instance accepts connections.
    pub(super) const fn passed(&mut self) {
        self.failures = 0;
        self.has_missed = false;
    }

    /// Records a missed probe. If the instance is ejected, for whatever reason, it stays so until it answers a probe.
    pub(super) const fn missed(&mut self) {
        self.has_missed = true;
        if let Some((reason, _)) = &mut self.ejected {
            *reason = EjectReason::Probe;
        }
    }

    /// Returns how many requests the instance may have during a slow start, or `None` if there is none.
    pub(super) fn slow_places(&self, now: Time) -> Option<u32> {
        let (until, answers) = self.slow?;
        (now < until).then_some(answers + 1)
    }

    /// Returns when the slow start ends by itself.
    pub(super) fn slow_until(&self) -> Option<Time> {
        self.slow.map(|(until, _)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ejection_without_an_answer_in_between_is_twice_as_long() {
        let mut health = Health::new(Time::ZERO);
        let mut lengths = Vec::new();
        for _ in 0..8 {
            let until = health.eject(Time::ZERO, EjectReason::Connect);
            lengths.push(until.0 / 1_000_000_000);
            health.come_back(until);
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 60, 60]);
        health.answered();
        let until = health.eject(Time::ZERO, EjectReason::Probe);
        assert_eq!(until, Time(1_000_000_000));
    }

    #[test]
    fn three_failures_in_a_row_eject_and_one_after_an_ejection() {
        let mut health = Health::new(Time::ZERO);
        assert!(!health.failed_to_connect());
        assert!(!health.failed_to_connect());
        health.answered();
        assert!(!health.failed_to_connect());
        assert!(!health.failed_to_connect());
        assert!(health.failed_to_connect());
        health.come_back(Time::ZERO);
        assert!(health.failed_to_connect());
    }

    #[test]
    fn a_slow_start_ends_after_five_answers_or_ten_seconds() {
        let mut health = Health::new(Time::ZERO);
        for places in 1..=5 {
            assert_eq!(health.slow_places(Time(9_999_999_999)), Some(places));
            assert_eq!(health.slow_places(Time(10_000_000_000)), None);
            health.answered();
        }
        assert_eq!(health.slow_places(Time::ZERO), None);
    }

    #[test]
    fn an_instance_is_silent_only_while_it_has_requests() {
        let heard = Time(1_000);
        let later = heard.after(SILENCE);
        assert!(is_silent(later, 1, heard));
        assert!(!is_silent(later, 0, heard));
        assert!(!is_silent(Time(later.0 - 1), 1, heard));
        // A clock read on another core may be behind.
        assert!(!is_silent(Time(0), 1, heard));
    }
}
