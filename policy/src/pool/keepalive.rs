//! How long a model stays loaded where models are not swapped, from the history of its idle times (M2.21).
//!
//! The history is a histogram of the times between requests, in buckets of one minute, up to four hours. After a
//! request the model may be unloaded until shortly before the next request is expected (the 5th percentile), and is
//! then kept until hardly any is expected any more (the 99th). A function with too few idle times, or with most of them
//! beyond the histogram, keeps its model for a fixed time.
//!
//! # Examples
//!
//! ```
//! use policy::Span;
//! use policy::pool::keepalive::IdleHistogram;
//!
//! let mut history = IdleHistogram::default();
//! assert_eq!(history.windows().unload_after, Span::from_secs(600));
//! for _ in 0..10 {
//!     history.record(Span::from_secs(1_800));
//! }
//! let windows = history.windows();
//! assert!(!windows.loaded_at(Span::from_secs(60)));
//! assert!(windows.loaded_at(Span::from_secs(1_800)));
//! ```

use crate::Span;

const BUCKET: Span = Span::from_secs(60);
const BUCKETS: usize = 240;
const HEAD_PERCENT: u64 = 5;
const TAIL_PERCENT: u64 = 99;

/// Period in which a model is loaded after its function's last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Time after the last request at which the model, which is unloaded at once, is loaded again; zero if it stays
    /// loaded.
    pub load_after: Span,
    /// Time after the last request at which the model is unloaded.
    pub unload_after: Span,
}

impl Windows {
    /// Returns whether the model should be loaded at `idle` after the last request.
    #[must_use]
    pub fn loaded_at(self, idle: Span) -> bool {
        self.load_after <= idle && idle < self.unload_after
    }
}

/// Idle times of one function.
#[derive(Clone, Debug)]
pub struct IdleHistogram {
    buckets: [u32; BUCKETS],
    /// Number of idle times within the histogram.
    within: u64,
    beyond: u64,
    fixed: Span,
    idle_times_min: u64,
}

impl IdleHistogram {
    /// Creates an empty history. `fixed` is how long a model is kept while its history is inconclusive, which it is
    /// until there are `idle_times_min` idle times.
    #[must_use]
    pub const fn new(fixed: Span, idle_times_min: u64) -> Self {
        Self {
            buckets: [0; BUCKETS],
            within: 0,
            beyond: 0,
            fixed,
            idle_times_min,
        }
    }

    /// Records that a request arrived `idle` after the previous one had ended; zero if that one still runs.
    pub fn record(&mut self, idle: Span) {
        let bucket = usize::try_from(idle.0 / BUCKET.0).unwrap_or(BUCKETS);
        match self.buckets.get_mut(bucket) {
            Some(bucket) if *bucket < u32::MAX => {
                *bucket += 1;
                self.within += 1;
            }
            // A saturated bucket cannot become more significant.
            Some(_) => {}
            None => self.beyond = self.beyond.saturating_add(1),
        }
    }

    /// Returns the period in which the model is loaded from now on. O(buckets), of which there are 240.
    #[must_use]
    pub fn windows(&self) -> Windows {
        let few = self.within.saturating_add(self.beyond) < self.idle_times_min.max(1);
        if few || self.beyond > self.within {
            return Windows {
                load_after: Span::ZERO,
                unload_after: self.fixed,
            };
        }
        // From the lower edge of the head's bucket to the upper edge of the tail's.
        let head = self.bucket_at(HEAD_PERCENT);
        let tail = self.bucket_at(TAIL_PERCENT) + 1;
        Windows {
            load_after: Span(BUCKET.0 * head),
            unload_after: Span(BUCKET.0 * tail),
        }
    }

    /// Returns the bucket of the nearest rank.
    fn bucket_at(&self, percent: u64) -> u64 {
        let rank = (self.within * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (at, &count) in (0..).zip(&self.buckets) {
            seen += u64::from(count);
            if seen >= rank {
                return at;
            }
        }
        BUCKETS as u64 - 1
    }
}

impl Default for IdleHistogram {
    /// Keeps models for ten minutes (M1.9) until there are ten idle times.
    fn default() -> Self {
        Self::new(Span::from_secs(600), 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn minutes(n: u64) -> Span {
        Span::from_secs(60 * n)
    }

    #[test]
    fn without_enough_history_a_model_is_kept_for_a_fixed_time() {
        let mut history = IdleHistogram::default();
        for _ in 0..9 {
            history.record(minutes(30));
            let windows = history.windows();
            assert_eq!(
                (windows.load_after, windows.unload_after),
                (Span::ZERO, minutes(10))
            );
        }
        history.record(minutes(30));
        let windows = history.windows();
        assert_eq!(
            (windows.load_after, windows.unload_after),
            (minutes(30), minutes(31))
        );
        assert!(!windows.loaded_at(minutes(29)));
        assert!(windows.loaded_at(minutes(30)));
        assert!(!windows.loaded_at(minutes(31)));
    }

    #[test]
    fn a_model_is_kept_from_the_5th_to_the_99th_percentile_of_idle_times() {
        let mut history = IdleHistogram::default();
        for n in 0..100 {
            history.record(minutes(n));
        }
        let windows = history.windows();
        assert_eq!(
            (windows.load_after, windows.unload_after),
            (minutes(4), minutes(99))
        );
    }

    #[test]
    fn idle_times_mostly_beyond_four_hours_are_inconclusive() {
        let mut history = IdleHistogram::default();
        for _ in 0..10 {
            history.record(minutes(5));
            history.record(minutes(240));
        }
        assert_eq!(history.windows().load_after, minutes(5));
        history.record(Span(u64::MAX));
        assert_eq!(history.windows().load_after, Span::ZERO);
        assert_eq!(history.windows().unload_after, minutes(10));
    }

    #[test]
    fn a_busy_function_is_never_unloaded_before_its_next_request() {
        let mut history = IdleHistogram::default();
        for _ in 0..1_000 {
            history.record(Span::ZERO);
        }
        assert!(history.windows().loaded_at(Span::ZERO));
        assert_eq!(history.windows().unload_after, minutes(1));
    }
}
