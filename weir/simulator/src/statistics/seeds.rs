//! Statistics over several seeds: a mean with its interval, and whether an order holds in most of them.
//!
//! Each purpose of randomness has a stream of its own (workloads §1), so two policies under one seed are run with the same
//! arrivals. Their difference per seed then varies far less than either of them: [`Paired`] is the comparison to use.

use serde::Serialize;
use thiserror::Error;

use super::two_sided_95;

/// Error in computing an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SeedsError {
    /// Fewer than two values have no spread.
    #[error("an interval needs at least 2 seeds, not {0}")]
    TooFew(usize),
    /// A value is infinite or not a number.
    #[error("the value of seed number {0} is not a finite number")]
    NotFinite(usize),
    /// Two lists have different lengths.
    #[error("{0} seeds cannot be paired with {1}")]
    Unpaired(usize, usize),
}

/// Mean over seeds with its 95 % confidence interval (Student's t), in the unit of the values.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// Mean of the values.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of seeds, with one value each.
    pub seeds: usize,
}

impl Interval {
    /// Returns the interval of a single value, with zero width because its spread is unknown.
    #[must_use]
    pub const fn one(value: f64) -> Self {
        Self {
            mean: value,
            low: value,
            high: value,
            seeds: 1,
        }
    }

    /// Computes the interval of one value for each seed.
    ///
    /// # Errors
    ///
    /// Returns an error for fewer than 2 values, and for a value which is not finite.
    pub fn of(values: &[f64]) -> Result<Self, SeedsError> {
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(SeedsError::NotFinite(at));
        }
        if values.len() < 2 {
            return Err(SeedsError::TooFew(values.len()));
        }
        #[expect(clippy::cast_precision_loss, reason = "a count of seeds")]
        let count = values.len() as f64;
        // Equal values have no spread, even where the rounded mean would differ from them.
        let mean = if values.iter().all(|value| value == &values[0]) {
            values[0]
        } else {
            values.iter().sum::<f64>() / count
        };
        let square = |value: &f64| (value - mean) * (value - mean);
        let variance = values.iter().map(square).sum::<f64>() / (count - 1.0);
        let degrees = u32::try_from(values.len() - 1).unwrap_or(u32::MAX);
        let half = two_sided_95(degrees) * libm::sqrt(variance / count);
        Ok(Self {
            mean,
            low: mean - half,
            high: mean + half,
            seeds: values.len(),
        })
    }

    /// Returns the interval clamped to the possible values, beyond which an interval over few seeds may extend. The mean is kept.
    #[must_use]
    pub fn within(self, least: f64, most: f64) -> Self {
        Self {
            low: self.low.max(least.min(self.mean)),
            high: self.high.min(most.max(self.mean)),
            ..self
        }
    }

    /// Returns whether the interval overlaps the range from `from` to `to`.
    #[must_use]
    pub fn meets(&self, from: f64, to: f64) -> bool {
        self.low <= to && from <= self.high
    }
}

/// Number of seeds in which a condition held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct HeldCount {
    /// Number of seeds in which it held.
    pub seeds: usize,
    /// Number of all seeds.
    pub of: usize,
}

impl HeldCount {
    /// Counts the seeds in which the condition held.
    #[must_use]
    pub fn count(held: impl IntoIterator<Item = bool>) -> Self {
        let mut count = Self::default();
        for held in held {
            count.seeds += usize::from(held);
            count.of += 1;
        }
        count
    }

    /// Returns whether the condition held in at least nine of ten seeds; false without seeds.
    #[must_use]
    pub const fn in_nine_of_ten(&self) -> bool {
        self.of > 0 && self.seeds * 10 >= self.of * 9
    }

    /// Returns the share of seeds, from 0 to 1; 0 without seeds.
    #[must_use]
    pub fn share(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of seeds")]
        let share = self.seeds as f64 / self.of.max(1) as f64;
        share
    }
}

/// Comparison of two policies under the same seeds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Paired {
    /// Interval of the first policy's value minus the second's.
    pub difference: Interval,
    /// Seeds in which the first policy's value is greater.
    pub above: HeldCount,
    /// Seeds in which the first policy's value is less.
    pub below: HeldCount,
}

impl Paired {
    /// Compares two lists; `first[n]` and `second[n]` must come from the same seed.
    ///
    /// # Errors
    ///
    /// Returns an error for lists of different length, fewer than 2 seeds, and a value which is not finite.
    pub fn of(first: &[f64], second: &[f64]) -> Result<Self, SeedsError> {
        if first.len() != second.len() {
            return Err(SeedsError::Unpaired(first.len(), second.len()));
        }
        let pairs = || first.iter().zip(second);
        let differences: Vec<f64> = pairs().map(|(first, second)| first - second).collect();
        Ok(Self {
            difference: Interval::of(&differences)?,
            above: HeldCount::count(pairs().map(|(first, second)| first > second)),
            below: HeldCount::count(pairs().map(|(first, second)| first < second)),
        })
    }

    /// Returns whether the interval of the difference is entirely on one side of zero.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.difference.low > 0.0 || self.difference.high < 0.0
    }
}

/// Returns the rank of `values[at]` from the smallest, counted from 1; `None` if there is no such value. Equal values have the
/// last rank among them: only a value smaller than all others is first.
#[must_use]
pub fn place(values: &[f64], at: usize) -> Option<usize> {
    let own = *values.get(at)?;
    Some(values.iter().filter(|&&value| value <= own).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_agrees_with_a_textbook_example() {
        // Mean 3, standard deviation √2.5, four degrees: 2.776445 × 0.707107.
        let interval = Interval::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((interval.mean - 3.0).abs() < 1e-12);
        assert!((interval.low - 1.036_757).abs() < 1e-6, "{interval:?}");
        assert!((interval.high - 4.963_243).abs() < 1e-6);
        assert!(interval.meets(4.9, 7.0) && !interval.meets(5.0, 7.0));
        assert!(interval.meets(0.0, 1.1) && !interval.meets(0.0, 1.0));
    }

    #[test]
    fn equal_values_have_no_width() {
        let interval = Interval::of(&[0.1; 10]).unwrap();
        assert_eq!(
            (interval.low, interval.mean, interval.high),
            (0.1, 0.1, 0.1)
        );
    }

    #[test]
    fn refuses_too_few_unpaired_and_infinite_values() {
        assert_eq!(Interval::of(&[]), Err(SeedsError::TooFew(0)));
        assert_eq!(Interval::of(&[1.0]), Err(SeedsError::TooFew(1)));
        assert_eq!(
            Interval::of(&[1.0, f64::NAN]),
            Err(SeedsError::NotFinite(1))
        );
        assert_eq!(
            Paired::of(&[1.0, 2.0], &[1.0]),
            Err(SeedsError::Unpaired(2, 1))
        );
    }

    #[test]
    fn paired_differences_reveal_what_the_means_hide() {
        // Seeds differ by tens, policies by one.
        let first = [10.0, 20.0, 30.0, 40.0];
        let second = [9.0, 18.9, 29.1, 39.0];
        let paired = Paired::of(&first, &second).unwrap();
        assert!(paired.differs(), "{paired:?}");
        assert_eq!(paired.above, HeldCount { seeds: 4, of: 4 });
        assert_eq!(paired.below, HeldCount { seeds: 0, of: 4 });
        let (first, second) = (
            Interval::of(&first).unwrap(),
            Interval::of(&second).unwrap(),
        );
        assert!(first.meets(second.low, second.high));
        let turned = Paired::of(&[1.0, 2.0, 3.0], &[2.0, 1.0, 3.0]).unwrap();
        assert!(!turned.differs());
        assert_eq!((turned.above.seeds, turned.below.seeds), (1, 1));
    }

    #[test]
    fn nine_of_ten_is_a_share() {
        let held = |seeds, of| HeldCount { seeds, of }.in_nine_of_ten();
        assert!(held(9, 10) && held(18, 20) && held(5, 5));
        assert!(!held(8, 9) && !held(17, 19) && !held(0, 0));
        assert_eq!(
            HeldCount::count([true, false, true]),
            HeldCount { seeds: 2, of: 3 }
        );
        assert!((HeldCount { seeds: 2, of: 4 }.share() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn only_a_value_smaller_than_all_others_is_first() {
        let values = [0.5, 0.1, 0.9, 0.1];
        assert_eq!(place(&values, 1), Some(2));
        assert_eq!(place(&values, 0), Some(3));
        assert_eq!(place(&values, 2), Some(4));
        assert_eq!(place(&[0.2, 0.1], 1), Some(1));
        assert_eq!(place(&values, 4), None);
    }
}
