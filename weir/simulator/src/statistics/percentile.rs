//! Percentiles by nearest rank: the p-th percentile of n values is the ⌈p·n/100⌉-th smallest (workloads §5).

use policy::Span;
use thiserror::Error;

/// 100 %, in thousandths of a percent.
const WHOLE: u32 = 100_000;

/// Percentile in thousandths of a percent, above 0 % and at most 100 %: an integer, so that ranks are exact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Percentile(u32);

/// Error for a percentile which is not above 0 % and at most 100 %.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("invalid percentile of {0} thousandths of a percent: allowed: above 0 % and at most 100 %")]
pub struct PercentileError(u32);

impl Percentile {
    /// 50th percentile, the median.
    pub const P50: Self = Self(50_000);
    /// 95th percentile, 19 of 20 values.
    pub const P95: Self = Self(95_000);
    /// 98th percentile, which Torpor requires of a function (M2.13).
    pub const P98: Self = Self(98_000);
    /// 99th percentile, 99 of 100 values.
    pub const P99: Self = Self(99_000);
    /// 99.9th percentile, 999 of 1,000 values.
    pub const P999: Self = Self(99_900);

    /// Creates a percentile from thousandths of a percent: 98 % is 98 000.
    ///
    /// # Errors
    ///
    /// Returns an error for zero, and for more than 100 %.
    pub const fn from_thousandths(thousandths: u32) -> Result<Self, PercentileError> {
        if thousandths == 0 || thousandths > WHOLE {
            return Err(PercentileError(thousandths));
        }
        Ok(Self(thousandths))
    }

    /// Returns the percentile in thousandths of a percent.
    #[must_use]
    pub const fn thousandths(self) -> u32 {
        self.0
    }

    /// Converts to the percentile of the policy's queue, at most 99.9 %.
    #[must_use]
    pub const fn for_policy(self) -> policy::pool::Percentile {
        policy::pool::Percentile::from_parts_per_million(self.0 * 10)
    }

    /// Returns the rank among `values` values, counted from 1; 0 if there are none.
    #[must_use]
    pub const fn rank(self, values: u64) -> u64 {
        let rank = (values as u128 * self.0 as u128).div_ceil(WHOLE as u128);
        #[expect(clippy::cast_possible_truncation, reason = "at most `values`")]
        let rank = rank as u64;
        rank
    }

    /// Returns the value at the rank of an ascending list; `None` if it is empty.
    #[must_use]
    pub fn of(self, ascending: &[Span]) -> Option<Span> {
        debug_assert!(ascending.is_sorted(), "values must be ascending");
        let rank = usize::try_from(self.rank(ascending.len() as u64)).ok()?;
        ascending.get(rank.checked_sub(1)?).copied()
    }

    /// Returns whether the percentile of `requests` latencies is within an objective that `hits` of them met: the exact
    /// compliance of a function, without storing latencies. True without requests.
    #[must_use]
    pub const fn kept(self, hits: u64, requests: u64) -> bool {
        hits >= self.rank(requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policys_percentile_is_the_same_share() {
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
    fn the_percentile_of_a_list_is_one_of_its_values() {
        let list = [Span(10), Span(20), Span(30), Span(40)];
        assert_eq!(Percentile::P50.of(&list), Some(Span(20)));
        assert_eq!(Percentile::P98.of(&list), Some(Span(40)));
        assert_eq!(Percentile::P98.of(&[]), None);
    }

    #[test]
    fn counting_hits_decides_compliance() {
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
