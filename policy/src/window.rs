//! How many of the requests of the last hour were in time, from counters of several processes that may begin anew at any time.

use std::collections::{BTreeMap, VecDeque};

use crate::{Span, Time};

/// Increments of so long are kept together.
pub const STEP: Span = Span::from_secs(15);
/// What is older is forgotten.
pub const KEPT: Span = Span::from_secs(3_600);

/// Requests that count for an objective: those of a counter, or of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub judged: u64,
    /// Those that were in time; not more than `judged`.
    pub in_time: u64,
}

impl Counts {
    const fn plus(self, other: Self) -> Self {
        Self {
            judged: self.judged.saturating_add(other.judged),
            in_time: self.in_time.saturating_add(other.in_time),
        }
    }

    /// What has come since `before`. A counter that is less has begun anew.
    const fn since(self, before: Self) -> Self {
        if self.judged < before.judged || self.in_time < before.in_time {
            return self.bounded();
        }
        Self {
            judged: self.judged - before.judged,
            in_time: self.in_time - before.in_time,
        }
    }

    /// The same with no more in time than judged: a source may have begun only one of its two counters anew.
    const fn bounded(self) -> Self {
        if self.in_time > self.judged {
            return Self {
                judged: self.judged,
                in_time: self.judged,
            };
        }
        self
    }

    /// Returns the part that was in time, in ten-thousandths, rounded down but to at least 1 where there was one; `None`: nothing
    /// was judged.
    ///
    /// Only where all were in time it is 10,000.
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
        // At most 10,000.
        #[expect(clippy::cast_possible_truncation, reason = "at most 10,000")]
        let ratio = ratio as u32;
        Some(if ratio == 0 && in_time > 0 { 1 } else { ratio })
    }
}

/// The last hour of one function.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// By the time at which a step begins; at most `KEPT / STEP + 1` of them.
    steps: VecDeque<(Time, Counts)>,
    /// What each source said last.
    last: BTreeMap<u64, Counts>,
}

impl Window {
    /// A source's counters stand so at `now`, which does not go back.
    ///
    /// What a source that is not known has counted before counts only if `is_new`: it has begun to count since all sources were
    /// looked at the last time. Else it may be of any time.
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

    /// Sources that are not `kept` are gone. What they have counted stays.
    pub fn retain(&mut self, mut kept: impl FnMut(u64) -> bool) {
        self.last.retain(|source, _| kept(*source));
    }

    /// Returns what was counted in the last `span`, to the accuracy of a [`STEP`].
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
    fn what_a_source_counted_before_it_was_known_does_not_count_unless_it_is_new() {
        let mut window = Window::default();
        window.observe(at(0), 1, counts(1_000, 10), false);
        assert_eq!(window.counts(at(0), KEPT), counts(0, 0));
        window.observe(at(10), 1, counts(1_005, 12), false);
        window.observe(at(10), 2, counts(7, 7), true);
        assert_eq!(window.counts(at(10), KEPT), counts(12, 9));
        // It has begun anew, under the same name.
        window.observe(at(20), 2, counts(3, 0), false);
        assert_eq!(window.counts(at(20), KEPT), counts(15, 9));
        // It has begun one of its counters anew.
        window.observe(at(21), 2, counts(1, 90), false);
        assert_eq!(window.counts(at(21), KEPT), counts(16, 10));
        // One that is gone and is back may have counted at any time.
        window.retain(|source| source != 2);
        window.observe(at(30), 2, counts(100, 100), false);
        assert_eq!(window.counts(at(30), KEPT), counts(16, 10));
    }

    #[test]
    fn a_ratio_is_rounded_down_and_never_to_none() {
        assert_eq!(counts(0, 0).ratio(), None);
        assert_eq!(counts(3, 3).ratio(), Some(10_000));
        assert_eq!(counts(1_000_000, 999_999).ratio(), Some(9_999));
        assert_eq!(counts(1_000_000, 1).ratio(), Some(1));
        assert_eq!(counts(5, 0).ratio(), Some(0));
        assert_eq!(counts(u64::MAX, u64::MAX).ratio(), Some(10_000));
    }

    /// Against all increments, each with its own time.
    #[test]
    fn a_window_agrees_with_all_increments_to_a_step() {
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
                // One that begins anew with less than before is seen to have done so; `more` may be nothing.
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
                    // A step counts as its beginning: what is seen is of the span, or of less by a step.
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
