//! How large a group is: where larger copies are hardly faster (M2.6, papers 2.6).

use std::fmt;

use crate::Span;

/// The smallest group, in bytes.
pub const GROUP_MIN: u64 = 256 << 10;
/// The largest group, in bytes.
pub const GROUP_MAX: u64 = 32 << 20;

/// How long copies of one size take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of a copy.
    pub bytes: u64,
    /// The median time of one.
    pub time: Span,
}

/// The size of a group on a link in one direction; to be measured again when driver or topology change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elbow {
    /// Two more doublings bring less than 5 % each.
    Found {
        /// The size in bytes.
        bytes: u64,
    },
    /// The elbow is outside of what groups may be: the nearest that is allowed.
    Clamped {
        /// The size in bytes.
        bytes: u64,
    },
    /// Larger copies are faster up to the end of the sweep: the largest group.
    NotReached,
}

/// Why a sweep tells nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepError {
    /// Two doublings need three sizes.
    TooShort,
    /// Every size has to be twice the one before.
    NotDoubling {
        /// The size that is not, in bytes.
        bytes: u64,
    },
    /// A copy of no bytes, or one that took no time.
    Nothing,
}

impl Elbow {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Found { bytes } | Self::Clamped { bytes } => bytes,
            Self::NotReached => GROUP_MAX,
        }
    }
}

/// The elbow of a sweep: the smallest size from which two doublings in a row raise the throughput by less than 5 %
/// each, at least [`GROUP_MIN`] and at most [`GROUP_MAX`]. Samples in rising order.
///
/// # Errors
/// [`SweepError`] if the samples are not such a sweep.
pub fn elbow(samples: &[Sample]) -> Result<Elbow, SweepError> {
    if samples.len() < 3 {
        return Err(SweepError::TooShort);
    }
    for sample in samples {
        if sample.bytes == 0 || sample.time == Span::ZERO {
            return Err(SweepError::Nothing);
        }
    }
    for pair in samples.windows(2) {
        if pair[0].bytes.checked_mul(2) != Some(pair[1].bytes) {
            return Err(SweepError::NotDoubling {
                bytes: pair[1].bytes,
            });
        }
    }
    // B(2s) ÷ B(s) = 2 time(s) ÷ time(2s) < 1.05.
    let flat =
        |one: Sample, double: Sample| 40 * u128::from(one.time.0) < 21 * u128::from(double.time.0);
    let found = samples
        .windows(3)
        .find(|three| flat(three[0], three[1]) && flat(three[1], three[2]));
    Ok(found.map_or(Elbow::NotReached, |three| {
        let bytes = three[0].bytes.clamp(GROUP_MIN, GROUP_MAX);
        if bytes == three[0].bytes {
            Elbow::Found { bytes }
        } else {
            Elbow::Clamped { bytes }
        }
    }))
}

/// The median of the times of copies of one size, the lower one of two; `None` of none. Changes their order.
#[must_use]
pub fn median(times: &mut [Span]) -> Option<Span> {
    let middle = times.len().checked_sub(1)? / 2;
    Some(*times.select_nth_unstable(middle).1)
}

impl fmt::Display for SweepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("a sweep needs at least three sizes"),
            Self::NotDoubling { bytes } => {
                write!(
                    f,
                    "every size of a sweep is twice the one before; {bytes} is not"
                )
            }
            Self::Nothing => f.write_str("a copy in a sweep has bytes and takes time"),
        }
    }
}

impl std::error::Error for SweepError {}
