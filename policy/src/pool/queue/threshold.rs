//! The threshold θ of mechanisms §2.2, which adapts to the load: as large as the pool can serve in time.
//!
//! The controller uses additive increase and multiplicative decrease on z = RRC·(1 − p) = p·n − m, so functions of
//! different percentiles share one θ. Its integers are millionths of a request, which gives the same results on every
//! machine.

use super::Adaptation;
use crate::pool::percentile::{Percentile, WHOLE};

/// Number of completed requests below which a step draws no conclusion.
const COMPLETED_MIN: u64 = 50;
/// One miss beyond the percentile.
const MISS: i64 = WHOLE as i64;
/// Increase per step: 2 in RRC at p = 0.98.
const INCREASE: i64 = 40_000;

#[derive(Clone, Debug)]
pub(super) struct Controller {
    theta: i64,
    highest: i64,
    /// Increase per step in percent of the threshold, besides [`INCREASE`].
    rise_percent: i64,
    /// Number of completed requests of the high group since the last step.
    completed: u64,
    in_time: u64,
    /// Sum of the percentiles of the completed requests: how many of them should have been in time.
    wanted: u64,
}

impl Controller {
    pub(super) const fn new(adaptation: Adaptation) -> Self {
        let (theta, highest, rise_percent) = match adaptation {
            Adaptation::FromOneMiss => (MISS, 10 * MISS, 0),
            Adaptation::FromTwentyMisses => (20 * MISS, 20 * MISS, 3),
        };
        Self {
            theta,
            highest,
            rise_percent,
            completed: 0,
            in_time: 0,
            wanted: 0,
        }
    }

    /// Returns θ·(1 − p), in millionths of a request.
    pub(super) const fn theta(&self) -> i64 {
        self.theta
    }

    /// Records a completed request of a function in the high group.
    pub(super) fn completed(&mut self, percentile: Percentile, in_time: bool) {
        self.completed += 1;
        self.in_time += u64::from(in_time);
        self.wanted += u64::from(percentile.parts_per_million());
    }

    /// Adapts the threshold according to whether the high group is too large for the pool. With fewer than 50 requests
    /// nothing can be concluded yet, and they keep counting.
    pub(super) fn step(&mut self) {
        if self.completed < COMPLETED_MIN {
            return;
        }
        self.theta = if self.in_time * u64::from(WHOLE) < self.wanted {
            self.theta * 9 / 10
        } else {
            let rise = INCREASE + self.theta * self.rise_percent / 100;
            (self.theta + rise).min(self.highest)
        };
        self.completed = 0;
        self.in_time = 0;
        self.wanted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stepped(controller: &mut Controller, completed: u64, in_time: u64) -> i64 {
        for n in 0..completed {
            controller.completed(Percentile::default(), n < in_time);
        }
        controller.step();
        controller.theta()
    }

    #[test]
    fn the_threshold_falls_by_a_tenth_below_the_percentile_and_rises_by_a_step_at_it() {
        let mut controller = Controller::new(Adaptation::FromOneMiss);
        assert_eq!(stepped(&mut controller, 100, 97), 900_000);
        assert_eq!(stepped(&mut controller, 100, 98), 940_000);
    }

    #[test]
    fn too_few_requests_keep_counting_until_there_are_fifty() {
        let mut controller = Controller::new(Adaptation::FromOneMiss);
        assert_eq!(stepped(&mut controller, 49, 0), MISS);
        assert_eq!(stepped(&mut controller, 1, 1), 900_000);
        assert_eq!(stepped(&mut controller, 49, 0), 900_000);
    }

    #[test]
    fn the_threshold_stays_between_zero_and_ten_misses() {
        let mut controller = Controller::new(Adaptation::FromOneMiss);
        for _ in 0..1_000 {
            stepped(&mut controller, 50, 50);
        }
        assert_eq!(controller.theta(), 10 * MISS);
        for _ in 0..1_000 {
            stepped(&mut controller, 50, 0);
        }
        assert_eq!(controller.theta(), 0);
    }

    #[test]
    fn a_threshold_from_twenty_misses_falls_by_a_tenth_and_rises_by_a_step_and_three_percent() {
        let mut controller = Controller::new(Adaptation::FromTwentyMisses);
        assert_eq!(stepped(&mut controller, 100, 100), 20 * MISS);
        assert_eq!(stepped(&mut controller, 100, 97), 18 * MISS);
        assert_eq!(stepped(&mut controller, 100, 98), 18_580_000);
        for _ in 0..1_000 {
            stepped(&mut controller, 50, 0);
        }
        assert_eq!(controller.theta(), 0);
        assert_eq!(stepped(&mut controller, 50, 50), INCREASE);
    }

    #[test]
    fn functions_of_mixed_percentiles_are_judged_by_their_mean() {
        let (half, most) = (500_000, 980_000);
        let run = |in_time: u64| {
            let mut controller = Controller::new(Adaptation::FromOneMiss);
            for n in 0..100 {
                let ppm = if n % 2 == 0 { half } else { most };
                controller.completed(Percentile::from_parts_per_million(ppm), n < in_time);
            }
            controller.step();
            controller.theta()
        };
        assert_eq!(run(73), 900_000);
        assert_eq!(run(74), 1_040_000);
    }
}
