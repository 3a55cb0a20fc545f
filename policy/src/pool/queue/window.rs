//! A function's outcomes over the last 10 minutes or 1000 requests, whichever is longer (mechanisms §2.2).
//!
//! Without a limit, an old outage would hold a function back for ever. Outcomes are kept in buckets of at least a
//! minute and at least 100 requests; the oldest bucket is dropped when its last outcome is 10 minutes old and 1000
//! others remain. So the window reaches back 10 to 11 minutes or 1000 to 1100 requests, a function takes 16 buckets
//! however many requests it has, and recording is O(1).

use crate::{Span, Time};

const REACH: Span = Span::from_secs(600);
const REACH_REQUESTS: u64 = 1_000;
const BUCKET: Span = Span::from_secs(60);
const BUCKET_REQUESTS: u32 = 100;
/// At most 12 buckets are within reach: each except the first began within the last 10 minutes and at least a minute
/// after the one before, or it holds 100 of the last 1000 requests.
const BUCKETS: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    newest: Time,
    requests: u32,
    in_time: u32,
}

/// Outcomes of a function's requests over its window.
///
/// # Examples
///
/// ```
/// use policy::Time;
/// use policy::pool::queue::Window;
///
/// let mut window = Window::default();
/// window.record(Time(1), true);
/// window.record(Time(2), false);
/// assert_eq!((window.requests(), window.in_time()), (2, 1));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Window {
    buckets: [Bucket; BUCKETS],
    first: usize,
    used: usize,
    /// Start of the last bucket.
    began: Time,
    requests: u64,
    in_time: u64,
}

impl Window {
    /// Returns the number of requests in the window (n of M2.13).
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the number of those that were in time (m of M2.13).
    #[must_use]
    pub const fn in_time(&self) -> u64 {
        self.in_time
    }

    /// Records the outcome of a request.
    pub fn record(&mut self, now: Time, in_time: bool) {
        self.refresh(now);
        let full = self.used == 0 || {
            let last = &self.buckets[(self.first + self.used - 1) % BUCKETS];
            last.requests >= BUCKET_REQUESTS && now.since(self.began) >= BUCKET
        };
        if full {
            debug_assert!(self.used < BUCKETS, "more buckets than can be within reach");
            self.buckets[(self.first + self.used) % BUCKETS] = Bucket::default();
            self.used += 1;
            self.began = now;
        }
        let last = &mut self.buckets[(self.first + self.used - 1) % BUCKETS];
        last.newest = now;
        last.requests += 1;
        last.in_time += u32::from(in_time);
        self.requests += 1;
        self.in_time += u64::from(in_time);
    }

    /// Takes counts from elsewhere in place of outcomes recorded here.
    pub(super) fn set(&mut self, requests: u64, in_time: u64) {
        *self = Self {
            requests,
            in_time,
            ..Self::default()
        };
    }

    /// Drops the outcomes of requests that are both too old and beyond the number which is kept. Returns whether any was dropped.
    pub fn refresh(&mut self, now: Time) -> bool {
        let before = self.requests;
        // With fewer requests nothing is dropped, whatever its age.
        while self.used > 0 && self.requests > REACH_REQUESTS {
            let oldest = self.buckets[self.first];
            let requests = self.requests - u64::from(oldest.requests);
            if now.since(oldest.newest) <= REACH || requests < REACH_REQUESTS {
                break;
            }
            self.requests = requests;
            self.in_time -= u64::from(oldest.in_time);
            self.first = (self.first + 1) % BUCKETS;
            self.used -= 1;
        }
        self.requests != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(gap: Span, requests: u64, in_time: impl Fn(u64) -> bool) -> Window {
        let mut window = Window::default();
        for n in 0..requests {
            window.record(Time(gap.0 * n), in_time(n));
            assert!(window.used <= 12, "{} buckets", window.used);
        }
        window
    }

    #[test]
    fn a_busy_function_is_judged_by_ten_to_eleven_minutes() {
        let gap = Span::from_millis(10);
        let window = fed(gap, 200_000, |n| n >= 100_000);
        assert!((60_000..=66_000).contains(&window.requests()));
        assert_eq!(window.in_time(), window.requests());
    }

    #[test]
    fn a_rarely_called_function_is_judged_by_1000_to_1100_requests() {
        let gap = Span::from_secs(30);
        let window = fed(gap, 5_000, |n| n % 2 == 0);
        assert!((1_000..=1_100).contains(&window.requests()));
        assert_eq!(window.in_time(), window.requests() / 2);
    }

    #[test]
    fn outcomes_are_never_forgotten_for_their_age_alone() {
        let mut window = fed(Span::from_secs(1), 500, |_| false);
        window.refresh(Time(u64::MAX));
        assert_eq!((window.requests(), window.in_time()), (500, 0));
    }

    #[test]
    fn outcomes_beyond_the_last_1000_are_forgotten_by_time_alone() {
        let mut window = fed(Span::from_millis(20), 20_000, |_| true);
        assert_eq!(window.requests(), 20_000);
        window.refresh(Time::ZERO.after(Span::from_secs(3_600)));
        assert!((1_000..5_000).contains(&window.requests()));
    }
}
