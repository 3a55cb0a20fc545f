//! Counts how many requests of the last hour were in time, from the counters of several processes that may restart at
//! any time.
//!
//! # Examples
//!
//! ```
//! use policy::Time;
//! use policy::window::{Counts, KEPT, Window};
//!
//! let mut window = Window::default();
//! let counts = |judged, in_time| Counts { judged, in_time };
//! // The first counts of a source may date from any time.
//! window.observe(Time(0), 1, counts(1_000, 900), false);
//! window.observe(Time(1), 1, counts(1_010, 909), false);
//! let last_hour = window.counts(Time(2), KEPT);
//! assert_eq!(last_hour, counts(10, 9));
//! assert_eq!(last_hour.ratio(), Some(9_000));
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::{Span, Time};

/// Length of time over which increments are aggregated.
pub const STEP: Span = Span::from_secs(15);
/// Length of time for which increments are kept.
pub const KEPT: Span = Span::from_secs(3_600);

/// Requests that count towards an objective, either of one counter or over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of requests judged.
    pub judged: u64,
    /// Number of requests that were in time; never more than `judged`.
    pub in_time: u64,
}

impl Counts {
    const fn plus(self, other: Self) -> Self {
        Self {
            judged: self.judged.saturating_add(other.judged),
            in_time: self.in_time.saturating_add(other.in_time),
        }
    }

    /// Returns the increase since `before`. A counter with a smaller value has restarted, so all of it is new.
    const fn since(self, before: Self) -> Self {
        if self.judged < before.judged || self.in_time < before.in_time {
            return self.bounded();
        }
        Self {
            judged: self.judged - before.judged,
            in_time: self.in_time - before.in_time,
        }
    }

    /// Returns the counts with `in_time` limited to `judged`, since a source may have restarted only one of its two
    /// counters.
    const fn bounded(self) -> Self {
        if self.in_time > self.judged {
            return Self {
                judged: self.judged,
                in_time: self.judged,
            };
        }
        self
    }

    /// Returns the share of requests that were in time, in ten-thousandths, or `None` if none was judged.
    ///
    /// The share is rounded down, but to no less than 1 where at least one request was in time. It is 10,000 only if
    /// all of them were.
    #[must_use]
    pub const fn ratio(self) -> Option<u32> {
        if self.judged == 0 {
            return None;
        }
        let in_time = if self.in_time < self.judged {
            self.in_time
        } else {
            self.judged
        };
        let ratio = in_time as u128 * 10_000 / self.judged as u128;
        #[expect(clippy::cast_possible_truncation, reason = "at most 10,000")]
        let ratio = ratio as u32;
        Some(if ratio == 0 && in_time > 0 { 1 } else { ratio })
    }
}

/// Requests of one function over the last hour ([`KEPT`]).
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Increments by the start of their step; at most `KEPT / STEP + 1` entries.
    steps: VecDeque<(Time, Counts)>,
    /// Last counts observed of each source.
    last: BTreeMap<u64, Counts>,
}

impl Window {
    /// Records the counts that a source reports at `now`, which must not go back.
    ///
    /// The first counts of an unknown source are ignored unless `is_new` is set, which means that the source has
    /// started to count since all sources were last polled. Otherwise they may date from any time.
    pub fn observe(&mut self, now: Time, source: u64, counts: Counts, is_new: bool) {
        let before = self.last.insert(source, counts);
        let more = match before {
            Some(before) => counts.since(before),
            None if is_new => counts.bounded(),
            None => Counts::default(),
        };
        self.forget(now);
        if more == Counts::default() {
            return;
        }
        match self.steps.back_mut() {
            Some((begin, own)) if now.since(*begin) < STEP => *own = own.plus(more),
            _ => self.steps.push_back((now, more)),
        }
    }

    /// Forgets the sources for which `kept` returns false. Their past increments stay.
    pub fn retain(&mut self, mut kept: impl FnMut(u64) -> bool) {
        self.last.retain(|source, _| kept(*source));
    }

    /// Returns the requests counted over the last `span`, to the accuracy of one [`STEP`].
    #[must_use]
    pub fn counts(&self, now: Time, span: Span) -> Counts {
        let own = self.steps.iter().rev();
        let own = own.take_while(|(begin, _)| now.since(*begin) < span);
        own.fold(Counts::default(), |sum, (_, counts)| sum.plus(*counts))
    }

    fn forget(&mut self, now: Time) {
        let is_old = |begin: Time| now.since(begin) >= KEPT;
        while self.steps.front().is_some_and(|(begin, _)| is_old(*begin)) {
            self.steps.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn counts(judged: u64, in_time: u64) -> Counts {
        Counts { judged, in_time }
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * SECOND.0)
    }

    #[test]
    fn counts_from_before_a_source_was_known_are_ignored_unless_it_is_new() {
        let mut window = Window::default();
        window.observe(at(0), 1, counts(1_000, 10), false);
        assert_eq!(window.counts(at(0), KEPT), counts(0, 0));
        window.observe(at(10), 1, counts(1_005, 12), false);
        window.observe(at(10), 2, counts(7, 7), true);
        assert_eq!(window.counts(at(10), KEPT), counts(12, 9));
        // The source has restarted under the same name.
        window.observe(at(20), 2, counts(3, 0), false);
        assert_eq!(window.counts(at(20), KEPT), counts(15, 9));
        // The source has restarted only one of its two counters.
        window.observe(at(21), 2, counts(1, 90), false);
        assert_eq!(window.counts(at(21), KEPT), counts(16, 10));
        // A source that was forgotten may have counted at any time.
        window.retain(|source| source != 2);
        window.observe(at(30), 2, counts(100, 100), false);
        assert_eq!(window.counts(at(30), KEPT), counts(16, 10));
    }

    #[test]
    fn a_ratio_is_rounded_down_but_never_to_zero() {
        assert_eq!(counts(0, 0).ratio(), None);
        assert_eq!(counts(3, 3).ratio(), Some(10_000));
        assert_eq!(counts(1_000_000, 999_999).ratio(), Some(9_999));
        assert_eq!(counts(1_000_000, 1).ratio(), Some(1));
        assert_eq!(counts(5, 0).ratio(), Some(0));
        assert_eq!(counts(u64::MAX, u64::MAX).ratio(), Some(10_000));
    }

    /// Compares the window with a list of all increments, each with its own time.
    #[test]
    fn a_window_agrees_with_all_increments_to_within_one_step() {
        for seed in 0..200_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let mut window = Window::default();
            let mut all: Vec<(Time, Counts)> = Vec::new();
            let mut sources: BTreeMap<u64, Counts> = BTreeMap::new();
            let mut now = Time::ZERO;
            for _ in 0..400 {
                now = Time(now.0 + next(40 * SECOND.0));
                let source = next(4);
                if next(20) == 0 {
                    sources.remove(&source);
                    window.retain(|own| own != source);
                }
                let is_known = sources.contains_key(&source);
                let is_new = next(2) == 0;
                let judged = next(50);
                let more = counts(judged, next(judged + 1));
                // A restart shows only in a smaller count; `more` may be zero.
                let own = sources.entry(source).or_default();
                let anew = is_known && next(15) == 0 && more.judged < own.judged;
                *own = if anew { more } else { own.plus(more) };
                let own = *own;
                window.observe(now, source, own, is_new);
                if is_known || is_new {
                    all.push((now, more));
                }
                for span in [Span::from_secs(300), KEPT] {
                    let sum = |span: Span| {
                        let own = all.iter().filter(|(at, _)| now.since(*at) < span);
                        own.fold(Counts::default(), |sum, (_, more)| sum.plus(*more))
                    };
                    let seen = window.counts(now, span);
                    // A step counts by its start, so the window covers the span, or up to one step less.
                    let (least, most) = (sum(span.less(STEP)), sum(span));
                    assert!(
                        least.judged <= seen.judged && seen.judged <= most.judged,
                        "seed {seed}: {least:?} {seen:?} {most:?}"
                    );
                    assert!(least.in_time <= seen.in_time && seen.in_time <= most.in_time);
                }
                assert!(window.steps.len() as u64 <= KEPT.0 / STEP.0 + 1);
            }
        }
    }
}
