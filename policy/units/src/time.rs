//! Integer time, which a caller passes instead of a clock.

use std::fmt;
use std::time::Duration;

/// Point in time on the caller's clock, in nanoseconds. Only differences between two points are meaningful.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

/// Length of time, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub u64);

impl Time {
    /// Earliest representable point in time.
    pub const ZERO: Self = Self(0);
    /// Point in time that is never reached: the key of a request that is never late.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns `self + span`, saturating at [`Time::NEVER`].
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns `self − span`, saturating at zero.
    #[must_use]
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later, as after the clock was set back.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at `u64::MAX` nanoseconds, which is about 584 years.
impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Span {
    /// Span of zero nanoseconds.
    pub const ZERO: Self = Self(0);

    /// Returns a span of `secs` seconds, saturating at `u64::MAX` nanoseconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns a span of `millis` milliseconds, saturating at `u64::MAX` nanoseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the span in seconds, for means and metrics.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "means and metrics need no more than 53 bits"
    )]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the span in whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns `self − other`, saturating at zero.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "@{}ns", self.0)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}
