//! The share of requests that must be in time, and how far a function is behind it.

/// One whole in the unit of [`Percentile`], which is parts per million.
pub const WHOLE: u32 = 1_000_000;

/// Share of a function's requests that must be in time: p of M2.13. It is at most 0.999 (mechanisms §2.2), since with one a
/// function that ever missed could never be compliant again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percentile(u32);

impl Default for Percentile {
    /// Returns 98 % (M2.19).
    fn default() -> Self {
        Self(980_000)
    }
}

impl Percentile {
    /// Largest percentile: 999 in a thousand.
    pub const MAX: Self = Self(999_000);

    /// Returns a percentile of `ppm` parts per million, or [`Percentile::MAX`] if that is less.
    #[must_use]
    pub const fn from_parts_per_million(ppm: u32) -> Self {
        if ppm > Self::MAX.0 {
            Self::MAX
        } else {
            Self(ppm)
        }
    }

    /// Returns the percentile in parts per million.
    #[must_use]
    pub const fn parts_per_million(self) -> u32 {
        self.0
    }

    /// Returns the share of requests that may miss, 1 − p, in parts per million; never zero.
    #[must_use]
    pub const fn allowance(self) -> u32 {
        WHOLE - self.0
    }

    /// Returns p·n − m: by how many requests in time a function falls short of its percentile, in millionths of a
    /// request. A negative value means that it has some to spare.
    #[must_use]
    pub fn behind(self, requests: u64, in_time: u64) -> i64 {
        let wanted = i128::from(self.0) * i128::from(requests);
        narrow(wanted - i128::from(WHOLE) * i128::from(in_time))
    }

    /// Returns RRC, the required request count of M2.13, in millionths, rounded down: the number of consecutive
    /// requests in time that makes a function compliant that is `behind` by this many
    /// millionths of a request.
    #[must_use]
    pub fn required(self, behind: i64) -> i64 {
        let allowance = self.allowance();
        // This does not overflow below nine million requests, and costs a tenth.
        match behind.checked_mul(i64::from(WHOLE)) {
            Some(exact) => exact.div_euclid(i64::from(allowance)),
            None => {
                let exact = i128::from(behind) * i128::from(WHOLE);
                narrow(exact.div_euclid(i128::from(allowance)))
            }
        }
    }
}

/// Converts to `i64`, saturating at its bounds.
pub(super) fn narrow(wide: i128) -> i64 {
    let bounded = wide.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(bounded).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn required(requests: u64, in_time: u64) -> i64 {
        let p = Percentile::default();
        p.required(p.behind(requests, in_time))
    }

    #[test]
    fn a_request_in_time_lowers_rrc_by_one_and_a_miss_raises_it_by_49_at_98_percent() {
        let before = required(100, 90);
        assert_eq!(required(101, 91) - before, -1_000_000);
        assert_eq!(required(101, 90) - before, 49_000_000);
    }

    #[test]
    fn rrc_is_not_positive_exactly_when_the_share_in_time_is_reached() {
        for requests in 0..200_u64 {
            for in_time in 0..=requests {
                let compliant = 100 * in_time >= 98 * requests;
                assert_eq!(required(requests, in_time) <= 0, compliant);
            }
        }
    }

    #[test]
    fn that_many_requests_in_time_make_a_function_compliant_and_one_fewer_do_not() {
        let p = Percentile::default();
        let behind = p.behind(100, 90);
        let more = u64::try_from(p.required(behind) / 1_000_000).unwrap();
        assert!(p.behind(100 + more, 90 + more) <= 0);
        assert!(p.behind(99 + more, 89 + more) > 0);
    }

    #[test]
    fn large_numbers_saturate_and_take_the_slow_path_without_a_jump() {
        let p = Percentile::default();
        let edge = i64::MAX / 1_000_000;
        assert_eq!(p.required(edge + 1) - p.required(edge), 50);
        assert_eq!(p.required(i64::MIN), i64::MIN);
        assert_eq!(p.behind(u64::MAX, 0), i64::MAX);
    }

    #[test]
    fn a_percentile_of_one_counts_as_999_in_a_thousand() {
        assert_eq!(
            Percentile::from_parts_per_million(WHOLE),
            Percentile::from_parts_per_million(999_000)
        );
        assert_eq!(Percentile::MAX.allowance(), 1_000);
    }
}
