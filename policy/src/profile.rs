//! Predicts how long a request will take at the user container, from the requests before it.
//!
//! There is one estimator per request class of a revision. A class with fewer than [`TRUSTED_SAMPLES`] samples borrows
//! the estimate of the whole revision, and a revision without samples uses a configured default.
//!
//! The estimate is an exponentially weighted mean that clips samples far outside the usual deviation, so a single spike
//! moves it only a little. [`STREAK`] such samples in a row on the same side are a drift, and the estimate jumps there
//! at once. All arithmetic uses integers: the same samples give the same estimate on every machine.
//!
//! # Examples
//!
//! ```
//! use policy::Span;
//! use policy::profile::{ClassId, Profile};
//!
//! let mut profile = Profile::new(4, Span::from_millis(100));
//! assert_eq!(profile.estimate(ClassId(1)), Span::from_millis(100));
//! for _ in 0..3 {
//!     profile.observe(ClassId(1), Span::from_millis(20));
//! }
//! assert_eq!(profile.estimate(ClassId(1)), Span::from_millis(20));
//! // A class without samples borrows the estimate of the revision.
//! assert_eq!(profile.estimate(ClassId(2)), Span::from_millis(20));
//! ```

use crate::Span;

/// Weight of a sample in the mean and the deviation: 1 / 2^SHIFT.
const SHIFT: u32 = 3;
/// A sample is an outlier if it is further from the mean than this many mean absolute deviations and than
/// mean ÷ [`OUTLIER_FRACTION`].
const OUTLIER_DEVIATIONS: i64 = 4;
/// A sample nearer to the mean than mean ÷ this is no outlier: even a class without any deviation has noise.
const OUTLIER_FRACTION: i64 = 4;
/// Number of outliers in a row on one side after which they are the new normal. If every fifth sample is a random
/// spike, a row of eight has a probability of one in 400,000.
pub const STREAK: u8 = 8;
/// Number of samples from which a class is judged by its own estimate.
pub const TRUSTED_SAMPLES: u32 = 3;
/// Largest execution time that is distinguished; longer samples count as one day.
pub const EXECUTION_MAX: Span = Span::from_secs(86_400);

/// Number of buckets of the histogram: four per octave, from 1 µs.
const BUCKETS: usize = 152;
/// Number of samples at which all counts of the histogram are halved, so that old samples fade.
const HISTOGRAM_SAMPLES_MAX: u32 = 2_048;

/// Index of a request class, which the caller derives from the visible features of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u16);

/// Estimates for one revision; see the [module](self).
#[derive(Clone, Debug)]
pub struct Profile {
    default: Span,
    whole: Estimator,
    /// Estimators by class, created at the first sample of the class and kept.
    classes: Vec<Option<Box<Estimator>>>,
}

/// Estimate for one class.
#[derive(Clone, Debug)]
pub struct Estimator {
    samples: u32,
    mean: i64,
    deviation: i64,
    streak: u8,
    streak_above: bool,
    /// Sample of the streak that is nearest to the mean: the distance by which the mean has drifted at least.
    streak_nearest: i64,
    histogram: Histogram,
}

/// Histogram with fixed logarithmic buckets: quantiles to within 19 %, without allocation.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Profile {
    /// Creates a profile for `classes` classes. `default` is the estimate until the first sample.
    #[must_use]
    pub fn new(classes: u16, default: Span) -> Self {
        Self {
            default,
            whole: Estimator::new(),
            classes: (0..classes).map(|_| None).collect(),
        }
    }

    /// Records the execution time of a request of a class. A class out of range counts towards the revision only.
    pub fn observe(&mut self, class: ClassId, execution: Span) {
        self.whole.observe(execution);
        if let Some(slot) = self.classes.get_mut(usize::from(class.0)) {
            slot.get_or_insert_with(|| Box::new(Estimator::new()))
                .observe(execution);
        }
    }

    /// Returns the expected execution time of a request of a class.
    #[must_use]
    pub fn estimate(&self, class: ClassId) -> Span {
        self.best(class).map_or(self.default, Estimator::mean)
    }

    /// Returns the expected execution time of a request of a class by the samples of that class alone, or `None` until
    /// there are enough of them.
    #[must_use]
    pub fn estimate_of_class(&self, class: ClassId) -> Option<Span> {
        let own = self.classes.get(usize::from(class.0))?.as_deref()?;
        (own.samples >= TRUSTED_SAMPLES).then(|| own.mean())
    }

    /// Returns the execution time that `per_mille` thousandths of a class's requests do not exceed.
    #[must_use]
    pub fn quantile(&self, class: ClassId, per_mille: u16) -> Span {
        self.best(class)
            .map_or(self.default, |estimator| estimator.quantile(per_mille))
    }

    fn best(&self, class: ClassId) -> Option<&Estimator> {
        let own = self
            .classes
            .get(usize::from(class.0))
            .and_then(Option::as_deref);
        own.filter(|estimator| estimator.samples >= TRUSTED_SAMPLES)
            .or_else(|| (self.whole.samples > 0).then_some(&self.whole))
    }
}

impl Estimator {
    const fn new() -> Self {
        Self {
            samples: 0,
            mean: 0,
            deviation: 0,
            streak: 0,
            streak_above: false,
            streak_nearest: 0,
            histogram: Histogram::new(),
        }
    }

    /// Returns the current mean.
    #[must_use]
    pub fn mean(&self) -> Span {
        Span(self.mean.unsigned_abs())
    }

    /// Returns the smallest bucket bound that `per_mille` thousandths of the samples do not exceed.
    #[must_use]
    pub fn quantile(&self, per_mille: u16) -> Span {
        self.histogram.quantile(per_mille)
    }

    /// Adds one sample, which is capped at [`EXECUTION_MAX`].
    pub fn observe(&mut self, execution: Span) {
        let execution = execution.min(EXECUTION_MAX);
        self.histogram.observe(execution);
        let sample = i64::try_from(execution.0).expect("bounded by EXECUTION_MAX");
        self.samples = self.samples.saturating_add(1);
        if self.samples == 1 {
            self.mean = sample;
            self.deviation = sample / 4;
            return;
        }
        let error = sample - self.mean;
        let bound = (self.deviation * OUTLIER_DEVIATIONS).max(self.mean / OUTLIER_FRACTION);
        if error.abs() <= bound {
            self.streak = 0;
            self.step(error);
            return;
        }
        self.extend_streak(error > 0, sample);
        if self.streak == STREAK {
            self.mean = self.streak_nearest;
            self.deviation = self.streak_nearest / 4;
            self.streak = 0;
        } else {
            // The mean moves by the clipped error. The deviation does not move, because spikes would widen it.
            self.mean += (bound.min(self.mean / OUTLIER_FRACTION) * error.signum()) >> SHIFT;
        }
    }

    const fn step(&mut self, error: i64) {
        self.mean += error >> SHIFT;
        self.deviation += (error.abs() - self.deviation) >> SHIFT;
    }

    fn extend_streak(&mut self, above: bool, sample: i64) {
        if self.streak == 0 || self.streak_above != above {
            self.streak = 1;
            self.streak_above = above;
            self.streak_nearest = sample;
            return;
        }
        self.streak += 1;
        self.streak_nearest = if above {
            self.streak_nearest.min(sample)
        } else {
            self.streak_nearest.max(sample)
        };
    }
}

impl Histogram {
    const fn new() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
        }
    }

    fn observe(&mut self, execution: Span) {
        if self.total >= HISTOGRAM_SAMPLES_MAX {
            self.total = 0;
            for count in &mut self.counts {
                *count /= 2;
                self.total += *count;
            }
        }
        self.counts[Self::bucket(execution)] += 1;
        self.total += 1;
    }

    fn quantile(&self, per_mille: u16) -> Span {
        let wanted = (u64::from(self.total) * u64::from(per_mille.min(1_000)))
            .div_ceil(1_000)
            .max(1);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= wanted {
                return Self::upper_bound(bucket);
            }
        }
        Span::ZERO
    }

    /// Returns the bucket of a span: four times the octave of its microseconds, plus the next two bits.
    fn bucket(execution: Span) -> usize {
        let micros = (execution.0 / 1_000).max(1);
        let octave = micros.ilog2();
        let quarter = if octave >= 2 {
            (micros >> (octave - 2)) & 3
        } else {
            (micros << (2 - octave)) & 3
        };
        (octave as usize * 4 + usize::try_from(quarter).expect("two bits")).min(BUCKETS - 1)
    }

    /// Returns the exclusive upper bound of a bucket.
    fn upper_bound(bucket: usize) -> Span {
        let (octave, quarter) = (bucket / 4, bucket as u64 % 4);
        Span(((5 + quarter) << octave) * 250)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: ClassId = ClassId(2);
    const MS: u64 = 1_000_000;

    fn trained(samples: impl IntoIterator<Item = u64>) -> Profile {
        let mut profile = Profile::new(8, Span::ZERO);
        for ms in samples {
            profile.observe(CLASS, Span(ms * MS));
        }
        profile
    }

    fn estimate_ms(profile: &Profile) -> u64 {
        profile.estimate(CLASS).0 / MS
    }

    #[test]
    fn the_first_request_gets_the_default() {
        let profile = Profile::new(8, Span::from_millis(7));
        assert_eq!(profile.estimate(CLASS), Span::from_millis(7));
        assert_eq!(profile.quantile(CLASS, 990), Span::from_millis(7));
    }

    #[test]
    fn a_new_class_borrows_the_estimate_of_the_revision() {
        let profile = trained([40; 10]);
        assert_eq!(profile.estimate(ClassId(3)), Span::from_millis(40));
        assert_eq!(profile.estimate(ClassId(60_000)), Span::from_millis(40));
    }

    #[test]
    fn a_class_is_judged_by_its_own_samples_once_it_has_enough() {
        let mut profile = trained([40; 100]);
        for _ in 0..TRUSTED_SAMPLES {
            profile.observe(ClassId(3), Span::from_millis(5));
        }
        assert_eq!(profile.estimate(ClassId(3)), Span::from_millis(5));
        assert_eq!(estimate_ms(&profile), 40);
    }

    #[test]
    fn a_spike_of_a_thousand_times_moves_the_estimate_by_less_than_a_twentieth() {
        let profile = trained(std::iter::repeat_n(40, 50).chain([40_000]));
        assert!(
            (40..42).contains(&estimate_ms(&profile)),
            "{}",
            estimate_ms(&profile)
        );
    }

    #[test]
    fn occasional_spikes_do_not_add_up() {
        let profile = trained((0..500).map(|n| if n % 10 == 9 { 4_000 } else { 40 }));
        assert!(
            (36..48).contains(&estimate_ms(&profile)),
            "{}",
            estimate_ms(&profile)
        );
    }

    #[test]
    fn random_spikes_leave_the_estimate_where_it_was() {
        let mut profile = trained([40; 20]);
        let mut state = 1_u64;
        for n in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let spike = (state >> 33).is_multiple_of(5);
            profile.observe(CLASS, Span(if spike { 4_000 } else { 40 } * MS));
            assert!(
                estimate_ms(&profile) < 80,
                "sample {n}: {}",
                estimate_ms(&profile)
            );
        }
    }

    #[test]
    fn a_step_is_followed_within_a_streak() {
        let up = trained(std::iter::repeat_n(40, 50).chain([200; STREAK as usize]));
        assert_eq!(estimate_ms(&up), 200);
        let down = trained(std::iter::repeat_n(200, 50).chain([40; STREAK as usize]));
        assert_eq!(estimate_ms(&down), 40);
    }

    #[test]
    fn a_slow_drift_is_followed() {
        let profile = trained((0..400).map(|n| 40 + n / 2));
        assert!(
            (225..=240).contains(&estimate_ms(&profile)),
            "{}",
            estimate_ms(&profile)
        );
    }

    #[test]
    fn noise_of_a_third_leaves_the_estimate_near_the_mean() {
        let profile = trained((0..1_000_u64).map(|n| 30 + n * 7_919 % 21));
        assert!(
            (36..45).contains(&estimate_ms(&profile)),
            "{}",
            estimate_ms(&profile)
        );
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_truth() {
        let profile = trained(1..=1_000);
        for (per_mille, truth) in [(500, 500.0), (900, 900.0), (990, 990.0), (1_000, 1_000.0)] {
            #[expect(clippy::cast_precision_loss, reason = "a thousand milliseconds")]
            let ratio = (profile.quantile(CLASS, per_mille).0 / MS) as f64 / truth;
            assert!(
                (0.99..1.20).contains(&ratio),
                "quantile {per_mille}: {ratio}"
            );
        }
    }

    #[test]
    fn every_span_is_in_a_bucket_that_ends_above_it() {
        for shift in 10..46 {
            for offset in [0, 1, 1_000, 77_777] {
                let span = Span(((1_u64 << shift) + offset).min(EXECUTION_MAX.0));
                let bound = Histogram::upper_bound(Histogram::bucket(span));
                assert!(bound > span, "{span:?} {bound:?}");
                assert!(bound.0 <= span.0 / 4 * 5 + 1_500, "{span:?} {bound:?}");
            }
        }
    }

    #[test]
    fn samples_are_bounded() {
        let mut profile = Profile::new(1, Span::ZERO);
        for _ in 0..10_000 {
            profile.observe(ClassId(0), Span(u64::MAX));
        }
        assert_eq!(profile.estimate(ClassId(0)), EXECUTION_MAX);
        for _ in 0..10_000 {
            profile.observe(ClassId(0), Span::ZERO);
        }
        assert_eq!(profile.estimate(ClassId(0)), Span::ZERO);
    }
}
