//! Means of measured times.

use crate::Span;

/// Largest drain that is believed: this number of executions, and a time for messages and a seal. What takes longer is no usual drain, as that of a process
/// which has failed.
const EXECUTIONS_MAX: u64 = 4;
const OVERHEAD_MAX: Span = Span::from_millis(50);
/// Weight of a new measurement in a mean: one in this many.
const MEAN_PART: u64 = 8;
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

/// Returns a mean with a new measurement.
pub(super) fn mean(before: Span, new: Span, is_first: bool) -> Span {
    if is_first {
        return new;
    }
    let kept = before.0.saturating_sub(before.0 / MEAN_PART);
    Span(kept.saturating_add(new.0 / MEAN_PART))
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
