//! Nearest rank: the p-th percentile of n values is the ⌈p·n/100⌉-th smallest (workloads §5).

use policy::Span;
use thiserror::Error;

/// A whole.
const WHOLE: u32 = 100_000;

/// A share of values in thousandths of a percent, above nothing and at most all: an integer, so that a rank is
/// exact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Percentile(u32);

/// Not above 0 % and at most 100 %.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a percentile is above 0 % and at most 100 %, not {0} thousandths of a percent")]
pub struct PercentileError(u32);

impl Percentile {
    /// Half of the values.
    pub const P50: Self = Self(50_000);
    /// Nineteen of twenty.
    pub const P95: Self = Self(95_000);
    /// What Torpor asks of a function (M2.13).
    pub const P98: Self = Self(98_000);
    /// Ninety-nine of a hundred.
    pub const P99: Self = Self(99_000);
    /// All but one of a thousand.
    pub const P999: Self = Self(99_900);

    /// From thousandths of a percent: 98 % is 98 000.
    ///
    /// # Errors
    ///
    /// Zero, or more than 100 %.
    pub const fn from_thousandths(thousandths: u32) -> Result<Self, PercentileError> {
        if thousandths == 0 || thousandths > WHOLE {
            return Err(PercentileError(thousandths));
        }
        Ok(Self(thousandths))
    }

    /// In thousandths of a percent.
    #[must_use]
    pub const fn thousandths(self) -> u32 {
        self.0
    }

    /// As policy's queue takes it, at most 99.9 %.
    #[must_use]
    pub const fn for_policy(self) -> policy::pool::Percentile {
        policy::pool::Percentile::from_parts_per_million(self.0 * 10)
    }

    /// Which of `values` it is, counted from 1; 0 if there are none.
    #[must_use]
    pub const fn rank(self, values: u64) -> u64 {
        let rank = (values as u128 * self.0 as u128).div_ceil(WHOLE as u128);
        #[expect(clippy::cast_possible_truncation, reason = "at most `values`")]
        let rank = rank as u64;
        rank
    }

    /// The value at the rank of an ascending list; `None` if it is empty.
    #[must_use]
    pub fn of(self, ascending: &[Span]) -> Option<Span> {
        debug_assert!(ascending.is_sorted(), "a rank is a place in an order");
        let rank = usize::try_from(self.rank(ascending.len() as u64)).ok()?;
        ascending.get(rank.checked_sub(1)?).copied()
    }

    /// Whether the percentile of `requests` latencies is within an objective that `hits` of them kept: the
    /// compliance of a function, exact, with no latency remembered. Without requests, nothing was missed.
    #[must_use]
    pub const fn kept(self, hits: u64, requests: u64) -> bool {
        hits >= self.rank(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_told_the_same_share() {
        for (own, parts) in [
            (Percentile::P50, 500_000),
            (Percentile::P98, 980_000),
            (Percentile::P999, 999_000),
            (Percentile(WHOLE), 999_000),
        ] {
            assert_eq!(own.for_policy().parts_per_million(), parts, "{own:?}");
        }
    }

    #[test]
    fn the_nearest_rank_is_the_smallest_that_covers_the_share() {
        for (thousandths, values, rank) in [
            (50_000, 1, 1),
            (50_000, 4, 2),
            (50_000, 5, 3),
            (98_000, 49, 49),
            (98_000, 50, 49),
            (98_000, 51, 50),
            (100_000, 7, 7),
            (1, 7, 1),
            (98_000, 0, 0),
            (100_000, u64::MAX, u64::MAX),
        ] {
            let percentile = Percentile::from_thousandths(thousandths).unwrap();
            assert_eq!(percentile.rank(values), rank, "{thousandths} of {values}");
        }
        assert_eq!(Percentile::from_thousandths(0), Err(PercentileError(0)));
        assert!(Percentile::from_thousandths(WHOLE + 1).is_err());
    }

    #[test]
    fn of_a_list_it_is_one_of_its_values() {
        let list = [Span(10), Span(20), Span(30), Span(40)];
        assert_eq!(Percentile::P50.of(&list), Some(Span(20)));
        assert_eq!(Percentile::P98.of(&list), Some(Span(40)));
        assert_eq!(Percentile::P98.of(&[]), None);
    }

    #[test]
    fn hits_alone_tell_whether_the_percentile_is_within_the_objective() {
        for requests in 1..400_u64 {
            for misses in 0..12_u64.min(requests) {
                let mut latencies: Vec<Span> = (0..requests - misses).map(Span).collect();
                latencies.extend((0..misses).map(|n| Span(1_000 + n)));
                let within = Percentile::P98.of(&latencies).unwrap() <= Span(500);
                assert_eq!(Percentile::P98.kept(requests - misses, requests), within);
            }
        }
        assert!(Percentile::P98.kept(0, 0));
    }
}
