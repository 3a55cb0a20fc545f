//! Shares and quotas: what a pod is promised and what it may take at most.

use std::fmt;

use crate::Span;

/// One whole, in the unit of [`Share`].
pub const SHARE_WHOLE: u32 = 1_000_000;

/// A part of wall time, in parts per million: 0 to [`SHARE_WHOLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share(u32);

/// Why a quota is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    /// More than one whole.
    AboveOne {
        /// What was asked for, in parts per million.
        parts_per_million: u32,
    },
    /// The request is more than the limit.
    RequestAboveLimit {
        /// The request.
        request: Share,
        /// The limit.
        limit: Share,
    },
}

/// A pod's elastic quota of wall time (M4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    request: Share,
    limit: Share,
}

impl Share {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// All of the time.
    pub const WHOLE: Self = Self(SHARE_WHOLE);

    /// A share of so many parts per million.
    ///
    /// # Errors
    /// [`QuotaError::AboveOne`].
    pub const fn from_parts_per_million(parts_per_million: u32) -> Result<Self, QuotaError> {
        if parts_per_million > SHARE_WHOLE {
            return Err(QuotaError::AboveOne { parts_per_million });
        }
        Ok(Self(parts_per_million))
    }

    /// A share of so many percent; more than 100 counts as 100.
    #[must_use]
    pub const fn from_percent(percent: u32) -> Self {
        Self(if percent > 100 { 100 } else { percent } * 10_000)
    }

    /// In parts per million.
    #[must_use]
    pub const fn parts_per_million(self) -> u32 {
        self.0
    }

    /// Nothing at all.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// All of the time.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.0 == SHARE_WHOLE
    }

    /// This part of `span`, rounded down.
    #[must_use]
    pub fn of(self, span: Span) -> Span {
        Span(narrow(
            u128::from(span.0) * u128::from(self.0) / u128::from(SHARE_WHOLE),
        ))
    }

    /// How long it takes to accrue `span` at this share; [`u64::MAX`] if it never does.
    #[must_use]
    pub fn time_to_accrue(self, span: Span) -> Span {
        if self.0 == 0 {
            return Span(u64::MAX);
        }
        Span(narrow(
            (u128::from(span.0) * u128::from(SHARE_WHOLE)).div_ceil(u128::from(self.0)),
        ))
    }

    /// How long one may run without a break until `credit` is used up, if it accrues at this share
    /// meanwhile; [`u64::MAX`] for one whole.
    #[must_use]
    pub fn time_to_exhaust(self, credit: Span) -> Span {
        Self(SHARE_WHOLE - self.0).time_to_accrue(credit)
    }
}

impl Quota {
    /// A quota that guarantees `request` and allows `limit`.
    ///
    /// # Errors
    /// [`QuotaError::RequestAboveLimit`].
    pub fn new(request: Share, limit: Share) -> Result<Self, QuotaError> {
        if request > limit {
            return Err(QuotaError::RequestAboveLimit { request, limit });
        }
        Ok(Self { request, limit })
    }

    /// The guaranteed share.
    #[must_use]
    pub const fn request(&self) -> Share {
        self.request
    }

    /// The largest share.
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
                "a share is at most {SHARE_WHOLE} parts per million, not {parts_per_million}"
            ),
            Self::RequestAboveLimit { request, limit } => {
                write!(f, "the request {request} is more than the limit {limit}")
            }
        }
    }
}

impl std::error::Error for QuotaError {}

/// The nearest `u64`.
pub(super) fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
