//! Request rates as integers.

use std::fmt;

/// Request rate in millionths of a request per second: up to 1.8 × 10¹³ requests per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(pub u64);

/// One request per second, in the unit of [`Rate`].
const ONE: u64 = 1_000_000;

impl Rate {
    /// Rate of no requests.
    pub const ZERO: Self = Self(0);

    /// Returns a rate of `requests` per second, saturating at the largest.
    #[must_use]
    pub const fn per_second(requests: u64) -> Self {
        Self(requests.saturating_mul(ONE))
    }

    /// Returns the nearest rate to `requests` per second; zero for negative and undefined values.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from a float saturates at the bounds of the integer"
    )]
    pub fn from_f64(requests: f64) -> Self {
        Self(libm::round(requests * 1e6) as u64)
    }

    /// Returns the rate in requests per second, for metrics.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "metrics need no more than 53 bits"
    )]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns the sum, saturating at the largest rate.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, saturating at zero.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns `numerator ÷ denominator` of the rate, rounded down and saturating at the largest rate. A denominator of
    /// zero counts as one.
    #[must_use]
    pub fn times(self, numerator: u64, denominator: u64) -> Self {
        let wide = u128::from(self.0) * u128::from(numerator) / u128::from(denominator.max(1));
        Self(u64::try_from(wide).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}/s", self.0 / ONE, self.0 % ONE)
    }
}
