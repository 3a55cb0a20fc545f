//! How much of what costs something and asks for nothing a peer may send in a second.

use crate::{Span, Time};

const SECOND: Span = Span::from_secs(1);

/// So much a second, and more for a peer that has earned it.
#[derive(Debug, Clone)]
pub struct Allowance {
    per_second: u32,
    spent: u32,
    /// The beginning of the second that runs.
    begin: Time,
}

impl Allowance {
    /// Returns an allowance of `per_second`, of which nothing is spent.
    #[must_use]
    pub const fn new(per_second: u32) -> Self {
        Self {
            per_second,
            spent: 0,
            begin: Time::ZERO,
        }
    }

    /// Spends `count` and returns whether that was still allowed.
    pub fn spend(&mut self, count: u32, now: Time) -> bool {
        if now.since(self.begin) >= SECOND {
            self.begin = now;
            self.spent = 0;
        }
        self.spent = self.spent.saturating_add(count);
        self.spent <= self.per_second
    }

    /// Takes back `count` of what was spent in the second that runs. What exceeds it is not kept.
    pub const fn earn(&mut self, count: u32) {
        self.spent = self.spent.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_allowance_and_no_more() {
        let mut allowance = Allowance::new(3);
        assert!(allowance.spend(2, Time(0)));
        assert!(allowance.spend(1, Time(SECOND.0 - 1)));
        assert!(!allowance.spend(1, Time(SECOND.0 - 1)));
        assert!(allowance.spend(3, Time(SECOND.0)));
        assert!(!allowance.spend(1, Time(SECOND.0 * 2 - 1)));
        assert!(!allowance.spend(u32::MAX, Time(SECOND.0 * 9)));
    }

    #[test]
    fn what_is_earned_is_not_kept() {
        let mut allowance = Allowance::new(3);
        allowance.earn(100);
        assert!(!allowance.spend(4, Time(0)));
        allowance.earn(2);
        assert!(allowance.spend(1, Time(0)));
    }
}
