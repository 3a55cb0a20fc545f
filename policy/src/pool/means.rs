//! Means of measured times.

use crate::Span;

/// Largest drain that is believed: this number of executions, and a time for messages and a seal. What takes longer is no usual drain, as that of a process
/// which has failed.
const EXECUTIONS_MAX: u64 = 4;
const OVERHEAD_MAX: Span = Span::from_millis(50);
/// Weight of a new measurement in a mean: one in this many.
const MEAN_PART: u64 = 8;
/// Rate at which models are expected to load before the first has, in bytes per second: that of PCIe 3.
const LOAD_RATE_AT_FIRST: u64 = 10_000_000_000;
/// Least size that says something of the rate, in bytes: of less no time would be expected at all, and no longer one believed afterwards.
const LOAD_BYTES_MIN: u64 = 4_096;
/// A load of less than this part of the mean size says nothing of the rate.
const SMALL_PART: u64 = 8;
/// Factor by which a load may take longer or less long than expected; what is beyond it does not count.
const UNUSUAL: u64 = 4;
/// Part and multiple of the expected time between which the first load counts: links differ, and a software GPU's rates may be scaled.
const FIRST_PART: u64 = 100;
const FIRST_TIMES: u64 = 1_000;
/// Number of mean deviations by which the expected drain exceeds the mean one.
const DEVIATIONS: u64 = 2;

/// Times from recalls of leases whose holders had work until these ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Drains {
    /// Mean time, and mean distance from it.
    mean: Span,
    deviation: Span,
}

impl Drains {
    /// Records a drain of an instance whose requests take `execution`.
    pub(super) fn record(&mut self, drain: Span, execution: Span) {
        let most = execution.0.saturating_mul(EXECUTIONS_MAX);
        let drain = drain.min(Span(most.saturating_add(OVERHEAD_MAX.0)));
        let is_first = self.mean == Span::ZERO;
        let distance = if is_first {
            Span(drain.0 / 2)
        } else {
            Span(drain.0.abs_diff(self.mean.0))
        };
        self.deviation = mean(self.deviation, distance, is_first);
        self.mean = mean(self.mean, drain, is_first);
    }

    /// Returns a time which most drains do not exceed; zero before the first.
    pub(super) const fn expected(self) -> Span {
        let margin = self.deviation.0.saturating_mul(DEVIATIONS);
        Span(self.mean.0.saturating_add(margin))
    }
}

/// Rate at which models load, from the loads of all functions: what is expected of one whose own loads are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoadRate {
    /// Mean size of the models, in bytes; 0 before the first load.
    bytes: u64,
    /// Mean time of their loads.
    time: Span,
}

impl LoadRate {
    /// Rate before the first load.
    pub(super) const UNKNOWN: Self = Self {
        bytes: 0,
        time: Span::ZERO,
    };

    /// Records a load of a whole model of this many bytes. One of few bytes does not count, and of a time that is far from what is expected only a part: a
    /// load of one function, as of a process which was stopped meanwhile, does not decide what is expected of the others.
    pub(super) fn record(&mut self, bytes: u64, load: Span) {
        // What does not depend on the size would count for too much.
        if bytes < LOAD_BYTES_MIN.max(self.bytes / SMALL_PART) || load == Span::ZERO {
            return;
        }
        let is_first = self.bytes == 0;
        let expected = self.expected(bytes).0;
        let (part, times) = if is_first {
            (FIRST_PART, FIRST_TIMES)
        } else {
            (UNUSUAL, UNUSUAL)
        };
        let load = Span(
            load.0
                .clamp(expected / part, expected.saturating_mul(times)),
        );
        self.bytes = mean_of(self.bytes, bytes, is_first);
        self.time = mean(self.time, load, is_first);
    }

    /// Returns the expected time of a load of this many bytes.
    pub(super) fn expected(self, bytes: u64) -> Span {
        match self.bytes {
            0 => in_proportion(Span::from_secs(1), LOAD_RATE_AT_FIRST, bytes),
            mean => in_proportion(self.time, mean, bytes),
        }
    }
}

/// Returns the time of a load of `bytes`, of which one of `loaded` bytes, more than 0, takes `time`.
pub(super) fn in_proportion(time: Span, loaded: u64, bytes: u64) -> Span {
    let ns = u128::from(time.0) * u128::from(bytes) / u128::from(loaded);
    Span(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Returns a mean with a new measurement.
pub(super) fn mean(before: Span, new: Span, is_first: bool) -> Span {
    Span(mean_of(before.0, new.0, is_first))
}

const fn mean_of(before: u64, new: u64, is_first: bool) -> u64 {
    if is_first {
        return new;
    }
    let kept = before.saturating_sub(before / MEAN_PART);
    kept.saturating_add(new / MEAN_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXECUTION: Span = Span::from_millis(20);

    #[test]
    fn a_drain_that_lasts_for_minutes_counts_as_four_executions_and_50_ms() {
        let mut drains = Drains::default();
        for _ in 0..100 {
            drains.record(Span::from_secs(300), EXECUTION);
        }
        let expected = drains.expected();
        assert!(
            expected >= Span::from_millis(130) && expected < Span::from_millis(131),
            "{expected:?}"
        );
    }

    #[test]
    fn loads_are_expected_at_the_rate_of_pcie_3_and_then_at_that_of_the_last_ones() {
        let mut rate = LoadRate::UNKNOWN;
        assert_eq!(rate.expected(1_000_000_000), Span::from_millis(100));
        rate.record(0, Span::from_millis(5));
        rate.record(5, Span::ZERO);
        assert_eq!(rate, LoadRate::UNKNOWN);
        // Of a device whose link has a tenth of it.
        rate.record(300_000_000, Span::from_millis(300));
        assert_eq!(rate.expected(1_000_000_000), Span::from_secs(1));
        for _ in 0..100 {
            rate.record(100_000_000, Span::from_millis(2));
            rate.record(500_000_000, Span::from_millis(10));
        }
        let expected = rate.expected(1_000_000_000);
        let distance = expected.0.abs_diff(Span::from_millis(20).0);
        assert!(distance < Span::from_millis(1).0, "{expected:?}");
        rate.record(u64::MAX, Span(u64::MAX));
        assert!(rate.expected(u64::MAX) > Span::from_secs(1));
    }

    #[test]
    fn a_small_load_and_one_that_took_for_minutes_change_the_rate_little() {
        let mut rate = LoadRate::UNKNOWN;
        // Mapping takes as long for little.
        rate.record(4_096, Span::from_millis(5));
        assert_eq!(rate.expected(4_096), Span(409 * 1_000));
        rate.record(1_000_000_000, Span::from_millis(100));
        for _ in 0..100 {
            rate.record(1_000_000_000, Span::from_millis(100));
        }
        let usual = rate.expected(1_000_000_000);
        let mut of_nothing = LoadRate::UNKNOWN;
        of_nothing.record(1, Span::from_millis(5));
        assert_eq!(of_nothing, LoadRate::UNKNOWN);
        rate.record(1_000_000, Span::from_secs(10));
        assert_eq!(rate.expected(1_000_000_000), usual);
        rate.record(1_000_000_000, Span::from_secs(60));
        assert!(rate.expected(1_000_000_000) < Span::from_millis(140));
        rate.record(1_000_000_000, Span(1));
        assert!(rate.expected(1_000_000_000) > Span::from_millis(100));
    }

    #[test]
    fn equal_drains_are_expected_to_take_as_long_and_unequal_ones_longer_than_their_mean() {
        let mut equal = Drains::default();
        assert_eq!(equal.expected(), Span::ZERO);
        for _ in 0..100 {
            equal.record(Span::from_millis(70), EXECUTION);
        }
        let expected = equal.expected();
        assert!(
            expected >= Span::from_millis(70) && expected < Span::from_millis(71),
            "{expected:?}"
        );
        // As of single requests, which a recall meets at any time.
        let mut unequal = Drains::default();
        for turn in 0..400 {
            unequal.record(Span::from_millis(turn * 7 % 20 + 1), EXECUTION);
        }
        let expected = unequal.expected();
        assert!(
            expected > Span::from_millis(18) && expected < Span::from_millis(25),
            "{expected:?}"
        );
    }
}
