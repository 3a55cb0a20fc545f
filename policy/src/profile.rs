//! How long a request will take at the user container, learned from those before it.
//!
//! One estimator per request class of a revision; a class with fewer than [`TRUSTED_SAMPLES`] samples
//! borrows the estimate of the revision as a whole, and a revision without samples the given default.
//!
//! The estimate is an exponentially weighted mean that clips what lies far outside the usual deviation,
//! so that one spike moves it by little; [`STREAK`] such samples in a row on the same side are a
//! drift, and the estimate goes there at once. Integers only: the same samples give the same estimate on
//! every machine.

use crate::Span;

/// Weight of a sample in the mean and the deviation: 1 / 2^SHIFT.
const SHIFT: u32 = 3;
/// A sample further from the mean than this many mean absolute deviations is an outlier …
const OUTLIER_DEVIATIONS: i64 = 4;
/// … unless it is nearer than mean / this: a class with no deviation at all still has noise.
const OUTLIER_FRACTION: i64 = 4;
/// This many outliers in a row on one side are the new normal. With every fifth sample a spike at random, a
/// row of eight is one in 400,000.
pub const STREAK: u8 = 8;
/// From this many samples on a class is judged by its own.
pub const TRUSTED_SAMPLES: u32 = 3;
/// The longest time that is told apart; longer samples count as this. One day.
pub const EXECUTION_MAX: Span = Span::from_secs(86_400);

/// Buckets of the histogram: four an octave from 1 µs on.
const BUCKETS: usize = 152;
/// When the histogram holds this many samples every count is halved, so old ones fade.
const HISTOGRAM_SAMPLES_MAX: u32 = 2_048;

/// A request class: an index that the caller derives from what it can see of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u16);

/// Estimates for one revision. See the [module](self).
#[derive(Clone, Debug)]
pub struct Profile {
    default: Span,
    whole: Estimator,
    /// Made at the first sample of a class, then kept.
    classes: Vec<Option<Box<Estimator>>>,
}

/// The estimate of one class.
#[derive(Clone, Debug)]
pub struct Estimator {
    samples: u32,
    mean: i64,
    deviation: i64,
    streak: u8,
    streak_above: bool,
    /// Of the streak's samples the one nearest to the mean: how far a drift has gone for certain.
    streak_nearest: i64,
    histogram: Histogram,
}

/// A fixed log-bucket histogram: quantiles within 19 % without allocation.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Profile {
    /// A profile for `classes` classes. `default` is the answer until the first sample.
    #[must_use]
    pub fn new(classes: u16, default: Span) -> Self {
        Self {
            default,
            whole: Estimator::new(),
            classes: (0..classes).map(|_| None).collect(),
        }
    }

    /// A request of this class took this long. A class out of range counts for the revision only.
    pub fn observe(&mut self, class: ClassId, execution: Span) {
        self.whole.observe(execution);
        if let Some(slot) = self.classes.get_mut(usize::from(class.0)) {
            slot.get_or_insert_with(|| Box::new(Estimator::new()))
                .observe(execution);
        }
    }

    /// How long a request of this class will take.
    #[must_use]
    pub fn estimate(&self, class: ClassId) -> Span {
        self.best(class).map_or(self.default, Estimator::mean)
    }

    /// How long a request of this class will take, by samples of the class alone; `None` until there are enough.
    #[must_use]
    pub fn estimate_of_class(&self, class: ClassId) -> Option<Span> {
        let own = self.classes.get(usize::from(class.0))?.as_deref()?;
        (own.samples >= TRUSTED_SAMPLES).then(|| own.mean())
    }

    /// What share `per_mille` of the class's requests stays within.
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

    /// The current mean.
    #[must_use]
    pub fn mean(&self) -> Span {
        Span(self.mean.unsigned_abs())
    }

    /// The smallest bucket bound that `per_mille` of the samples stay within.
    #[must_use]
    pub fn quantile(&self, per_mille: u16) -> Span {
        self.histogram.quantile(per_mille)
    }

    /// Takes in one sample.
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
            // The mean moves by the clipped error; the deviation does not, or spikes would widen it.
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

    /// Bucket of a span: octave of its microseconds times four, plus the next two bits.
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

    /// The end of a bucket: every sample in it is below.
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
    fn spikes_that_come_now_and_then_do_not_add_up() {
        let profile = trained((0..500).map(|n| if n % 10 == 9 { 4_000 } else { 40 }));
        assert!(
            (36..48).contains(&estimate_ms(&profile)),
            "{}",
            estimate_ms(&profile)
        );
    }

    #[test]
    fn spikes_at_random_leave_the_estimate_where_it_was() {
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
    fn every_span_lies_in_a_bucket_that_ends_above_it() {
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
    fn absurd_samples_are_bounded() {
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
