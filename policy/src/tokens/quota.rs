//! Shares and quotas: the time that a pod is guaranteed, and the most that it may take.

use std::fmt;

use crate::Span;

pub use units::SHARE_WHOLE;

/// Part of wall time in parts per million: 0 to [`SHARE_WHOLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share(u32);

/// Reason why a share or quota is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// The share is more than one whole.
    AboveOne {
        /// Requested share, in parts per million.
        parts_per_million: u32,
    },
    /// The request is more than the limit.
    RequestAboveLimit {
        /// Share that is to be guaranteed.
        request: Share,
        /// Largest share that is to be allowed.
        limit: Share,
    },
}

/// Elastic quota of wall time of a pod (M4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    request: Share,
    limit: Share,
}

impl Share {
    /// Share of no time.
    pub const NONE: Self = Self(0);
    /// Share of all the time.
    pub const WHOLE: Self = Self(SHARE_WHOLE);

    /// Returns a share of `parts_per_million`.
    ///
    /// # Errors
    /// Returns [`QuotaError::AboveOne`] if that is more than [`SHARE_WHOLE`].
    pub const fn from_parts_per_million(parts_per_million: u32) -> Result<Self, QuotaError> {
        if parts_per_million > SHARE_WHOLE {
            return Err(QuotaError::AboveOne { parts_per_million });
        }
        Ok(Self(parts_per_million))
    }

    /// Returns a share of `percent` percent; more than 100 counts as 100.
    #[must_use]
    pub const fn from_percent(percent: u32) -> Self {
        Self(if percent > 100 { 100 } else { percent } * 10_000)
    }

    /// Returns the share in parts per million.
    #[must_use]
    pub const fn parts_per_million(self) -> u32 {
        self.0
    }

    /// Returns whether the share is zero.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the share is one whole.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.0 == SHARE_WHOLE
    }

    /// Returns this part of `span`, rounded down.
    #[must_use]
    pub fn of(self, span: Span) -> Span {
        Span(narrow(
            u128::from(span.0) * u128::from(self.0) / u128::from(SHARE_WHOLE),
        ))
    }

    /// Returns the time that it takes to accrue `span` at this share, rounded up; [`u64::MAX`] if it never does.
    #[must_use]
    pub fn time_to_accrue(self, span: Span) -> Span {
        if self.0 == 0 {
            return Span(u64::MAX);
        }
        Span(narrow(
            (u128::from(span.0) * u128::from(SHARE_WHOLE)).div_ceil(u128::from(self.0)),
        ))
    }

    /// Returns how long a holder may run without a break until `credit` is used up, if credit accrues at this share in
    /// the meantime; [`u64::MAX`] for one whole.
    #[must_use]
    pub fn time_to_exhaust(self, credit: Span) -> Span {
        Self(SHARE_WHOLE - self.0).time_to_accrue(credit)
    }
}

impl Quota {
    /// Returns a quota that guarantees `request` and allows `limit`.
    ///
    /// # Errors
    /// Returns [`QuotaError::RequestAboveLimit`].
    pub fn new(request: Share, limit: Share) -> Result<Self, QuotaError> {
        if request > limit {
            return Err(QuotaError::RequestAboveLimit { request, limit });
        }
        Ok(Self { request, limit })
    }

    /// Returns the guaranteed share of wall time.
    #[must_use]
    pub const fn request(&self) -> Share {
        self.request
    }

    /// Returns the largest allowed share of wall time.
    #[must_use]
    pub const fn limit(&self) -> Share {
        self.limit
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, parts) = (self.0 / SHARE_WHOLE, self.0 % SHARE_WHOLE);
        write!(f, "{whole}.{parts:06}")
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AboveOne { parts_per_million } => write!(
                f,
                "a share must be at most {SHARE_WHOLE} parts per million, not {parts_per_million}"
            ),
            Self::RequestAboveLimit { request, limit } => {
                write!(f, "request {request} must not be more than limit {limit}")
            }
        }
    }
}

impl std::error::Error for QuotaError {}

/// Converts to `u64`, saturating at its maximum.
pub(super) fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
