//! Limits how much a peer may send per second of what is costly to handle but requests nothing.
//!
//! # Examples
//!
//! ```
//! use policy::rate::Allowance;
//! use policy::{Span, Time};
//!
//! let mut allowance = Allowance::new(3);
//! assert!(allowance.spend(3, Time(0)));
//! assert!(!allowance.spend(1, Time(1)));
//! // The next second has an allowance of its own.
//! assert!(allowance.spend(1, Time::ZERO.after(Span::from_secs(1))));
//! ```

use crate::{Span, Time};

const SECOND: Span = Span::from_secs(1);

/// Allowance per second, which a peer can stretch by earning some of it back.
#[derive(Debug, Clone)]
pub struct Allowance {
    per_second: u32,
    spent: u32,
    /// Start of the current second.
    begin: Time,
}

impl Allowance {
    /// Returns an allowance of `per_second`, none of which is spent.
    #[must_use]
    pub const fn new(per_second: u32) -> Self {
        Self {
            per_second,
            spent: 0,
            begin: Time::ZERO,
        }
    }

    /// Spends `count` and returns whether the allowance of the current second still covers it.
    pub fn spend(&mut self, count: u32, now: Time) -> bool {
        if now.since(self.begin) >= SECOND {
            self.begin = now;
            self.spent = 0;
        }
        self.spent = self.spent.saturating_add(count);
        self.spent <= self.per_second
    }

    /// Takes back `count` of what was spent in the current second. Anything beyond that is not saved up.
    pub const fn earn(&mut self, count: u32) {
        self.spent = self.spent.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_own_allowance_and_no_more() {
        let mut allowance = Allowance::new(3);
        assert!(allowance.spend(2, Time(0)));
        assert!(allowance.spend(1, Time(SECOND.0 - 1)));
        assert!(!allowance.spend(1, Time(SECOND.0 - 1)));
        assert!(allowance.spend(3, Time(SECOND.0)));
        assert!(!allowance.spend(1, Time(SECOND.0 * 2 - 1)));
        assert!(!allowance.spend(u32::MAX, Time(SECOND.0 * 9)));
    }

    #[test]
    fn earned_allowance_is_not_saved_up() {
        let mut allowance = Allowance::new(3);
        allowance.earn(100);
        assert!(!allowance.spend(4, Time(0)));
        allowance.earn(2);
        assert!(allowance.spend(1, Time(0)));
    }
}
