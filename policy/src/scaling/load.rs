//! The expected load of a function (M4.10).

use super::Rate;
use crate::{Span, Time};

/// Minimum age of a mean: the first request of a function would otherwise be a rate without bound.
const AGE_MIN: Span = Span::from_secs(1);

/// Settings of a prediction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadSettings {
    /// Time constant of the mean that follows the load; zero means the arrivals since the last prediction alone.
    pub short: Span,
    /// Time constant of the mean that remembers the load.
    pub long: Span,
    /// Factor by which the larger of the two means is multiplied, in percent.
    pub margin_percent: u32,
    /// Time within which the backlog is to be served.
    pub backlog_over: Span,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            short: Span::from_secs(10),
            long: Span::from_secs(60),
            margin_percent: 110,
            backlog_over: Span::from_secs(10),
        }
    }
}

/// Expected load of one function (M4.10): the larger of two weighted means of the arrivals, with a margin, and the
/// backlog.
///
/// The mean over 10 s follows a step, and the mean over 60 s remembers a burst; the larger of them rises quickly and
/// falls slowly. Until a mean is as old as its time constant it is the mean of what was observed, so that the first
/// seconds of a function do not count as an idle past.
#[derive(Clone, Debug)]
pub struct Load {
    settings: LoadSettings,
    begin: Time,
    /// Time up to which arrivals are included in the means.
    counted_to: Time,
    /// Number of arrivals since `counted_to`.
    arrived: u64,
    short: Mean,
    long: Mean,
}

/// Exponentially weighted mean, in requests per second, that starts at zero.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
}

impl Mean {
    fn add(&mut self, rate: f64, elapsed: Span, over: Span) {
        self.value = rate + (self.value - rate) * left(elapsed, over);
    }

    /// Returns the mean that would result if the load had always been as it was since the beginning, `age` ago.
    fn rate(self, age: Span, over: Span) -> f64 {
        self.value / (1.0 - left(age.max(AGE_MIN), over))
    }
}

/// Returns the part of a mean with time constant `over` that is left after `elapsed`.
fn left(elapsed: Span, over: Span) -> f64 {
    if over == Span::ZERO {
        return 0.0;
    }
    libm::exp(-elapsed.as_secs_f64() / over.as_secs_f64())
}

impl Load {
    /// Creates the load of a function that is observed from `now` on.
    #[must_use]
    pub const fn new(now: Time, settings: LoadSettings) -> Self {
        Self {
            settings,
            begin: now,
            counted_to: now,
            arrived: 0,
            short: Mean { value: 0.0 },
            long: Mean { value: 0.0 },
        }
    }

    /// Records the number of requests that have arrived since the last call. They count as spread over the time between
    /// two predictions.
    pub const fn arrive(&mut self, requests: u64) {
        self.arrived = self.arrived.saturating_add(requests);
    }

    /// Returns the load to be served from now on, with `backlog` requests waiting. Meant to be called about once per
    /// second.
    pub fn predict(&mut self, now: Time, backlog: u64) -> Rate {
        let LoadSettings {
            short,
            long,
            margin_percent,
            backlog_over,
        } = self.settings;
        let elapsed = now.since(self.counted_to);
        if elapsed > Span::ZERO {
            #[expect(
                clippy::cast_precision_loss,
                reason = "a mean needs no more than 53 bits"
            )]
            let rate = self.arrived as f64 / elapsed.as_secs_f64();
            self.short.add(rate, elapsed, short);
            self.long.add(rate, elapsed, long);
            self.arrived = 0;
            self.counted_to = now;
        }
        let age = self.counted_to.since(self.begin);
        let mean = (self.short.rate(age, short)).max(self.long.rate(age, long));
        let waiting = Rate::per_second(backlog).times(1_000_000_000, backlog_over.0);
        Rate::from_f64(mean)
            .times(u64::from(margin_percent), 100)
            .plus(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: LoadSettings = LoadSettings {
        short: Span::from_secs(10),
        long: Span::from_secs(60),
        margin_percent: 100,
        backlog_over: Span::from_secs(10),
    };

    /// Feeds one rate per second from second `from` on, and returns the prediction after the last.
    fn after(load: &mut Load, from: u64, rates: impl IntoIterator<Item = u64>) -> f64 {
        let mut predicted = Rate::ZERO;
        for (second, rate) in (from + 1..).zip(rates) {
            load.arrive(rate);
            predicted = load.predict(Time(second * 1_000_000_000), 0);
        }
        predicted.as_f64()
    }

    fn load(settings: LoadSettings) -> Load {
        Load::new(Time(100 * 1_000_000_000), settings)
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() < 1e-3 * expected + 1e-5,
            "{found} {expected}"
        );
    }

    #[test]
    fn a_steady_load_is_predicted_at_once_with_its_margin() {
        for seconds in [1, 2, 7, 300] {
            let found = after(&mut load(PLAIN), 100, std::iter::repeat_n(50, seconds));
            assert_near(found, 50.0);
        }
        let mut with_margin = load(LoadSettings::default());
        assert_near(after(&mut with_margin, 100, [50; 20]), 55.0);
    }

    #[test]
    fn a_backlog_is_to_be_served_within_ten_seconds() {
        let mut load = load(LoadSettings::default());
        let predicted = load.predict(Time(101 * 1_000_000_000), 40);
        assert_eq!(predicted, Rate::per_second(4));
    }

    #[test]
    fn a_step_up_is_followed_by_the_short_mean_and_down_by_the_long() {
        let mut load = load(PLAIN);
        after(&mut load, 100, [0; 600]);
        let up = after(&mut load, 700, [100; 10]);
        assert_near(up, 100.0 * (1.0 - libm::exp(-1.0)));
        after(&mut load, 710, [100; 590]);
        let down = after(&mut load, 1_300, [0; 60]);
        assert_near(down, 100.0 * libm::exp(-1.0));
    }

    #[test]
    fn the_prediction_does_not_depend_on_how_often_it_is_made() {
        let mut often = load(PLAIN);
        let mut seldom = load(PLAIN);
        let mut now = Time(100 * 1_000_000_000);
        for step in 0..40_000_u64 {
            now = now.after(Span::from_millis(1));
            often.arrive(3);
            let found = often.predict(now, 0);
            seldom.arrive(3);
            if step % 5_000 == 4_999 {
                assert_near(found.as_f64(), seldom.predict(now, 0).as_f64());
            }
        }
    }

    #[test]
    fn the_first_request_is_no_flood_and_an_early_clock_does_no_harm() {
        let mut load = load(PLAIN);
        load.arrive(1);
        let predicted = load.predict(Time(100 * 1_000_000_000 + 1_000), 0);
        assert!(predicted <= Rate(1_060_000), "{predicted:?}");
        load.arrive(1);
        // Arrivals that cannot be spread over time yet count later.
        assert_eq!(load.predict(Time::ZERO, 0), predicted);
        let later = load.predict(Time(101 * 1_000_000_000), 0);
        // The first request has decayed a little.
        assert!((1.98..2.0).contains(&later.as_f64()), "{later:?}");
    }
}
