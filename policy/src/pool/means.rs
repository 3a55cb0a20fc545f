//! Means of measured times.

use crate::Span;

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
    pub(super) fn record(&mut self, drain: Span) {
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

    #[test]
    fn equal_drains_are_expected_to_take_as_long_and_unequal_ones_longer_than_their_mean() {
        let mut equal = Drains::default();
        assert_eq!(equal.expected(), Span::ZERO);
        for _ in 0..100 {
            equal.record(Span::from_millis(70));
        }
        let expected = equal.expected();
        assert!(
            expected >= Span::from_millis(70) && expected < Span::from_millis(71),
            "{expected:?}"
        );
        // As of single requests, which a recall meets at any time.
        let mut unequal = Drains::default();
        for turn in 0..400 {
            unequal.record(Span::from_millis(turn * 7 % 20 + 1));
        }
        let expected = unequal.expected();
        assert!(
            expected > Span::from_millis(18) && expected < Span::from_millis(25),
            "{expected:?}"
        );
    }
}
