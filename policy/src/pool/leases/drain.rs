//! How long leases take to end from their recall.

use super::demand::mean;
use super::{InstanceId, Leases, SlotId};
use crate::Span;

/// Number of mean deviations by which the expected drain exceeds the mean one.
const DEVIATIONS: u64 = 2;

/// Times from the recall of leases whose holders had work until the slot was free, of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Drains {
    /// Mean time, and mean distance from it.
    mean: Span,
    deviation: Span,
}

impl Drains {
    fn record(&mut self, drain: Span) {
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
    const fn expected(self) -> Span {
        let margin = self.deviation.0.saturating_mul(DEVIATIONS);
        Span(self.mean.0.saturating_add(margin))
    }
}

impl Leases {
    /// Records how long the lease that ends took from its recall, if its queue had work then and has answered.
    pub(super) fn was_drained(&mut self, slot: SlotId) {
        let Some(holder) = self.at(slot).holder else {
            return;
        };
        let Some(since) = holder.drains_since.filter(|_| holder.is_idle) else {
            return;
        };
        let drain = self.now.since(since);
        let Some(entry) = self.instances.get(&holder.instance) else {
            return;
        };
        if let Some(function) = self.functions.get_mut(&entry.about.function) {
            function.drains.record(drain);
        }
    }

    /// Returns the time from a recall of an instance's lease until its slot is free, as expected: that of a request, or what was measured if it is more. What is
    /// measured includes messages and the seal of its model, and, where requests run at the same time, the last of them.
    pub(super) fn expected_drain(&self, id: InstanceId) -> Span {
        let Some(entry) = self.instances.get(&id) else {
            return Span::ZERO;
        };
        let function = self.functions.get(&entry.about.function);
        let measured = function.map_or(Span::ZERO, |function| function.drains.expected());
        self.execution(entry).max(measured)
    }
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
