//! The size of a group: the point at which larger copies are hardly faster (M2.6, mechanisms §2.6).

use std::fmt;

use crate::Span;

/// Size of the smallest group, in bytes.
pub const GROUP_MIN: u64 = 256 << 10;
/// Size of the largest group, in bytes.
pub const GROUP_MAX: u64 = 32 << 20;

/// Measured time of copies of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Size of a copy, in bytes.
    pub bytes: u64,
    /// Median time of a copy.
    pub time: Span,
}

/// Group size for a link in one direction, to be measured again when the driver or the topology changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elbow {
    /// From this size on, two more doublings gain less than 5 % each.
    Found {
        /// Size of a group, in bytes.
        bytes: u64,
    },
    /// The elbow is outside the allowed group sizes, so the nearest allowed size is used.
    Clamped {
        /// Size of a group, in bytes.
        bytes: u64,
    },
    /// Larger copies are faster up to the end of the sweep, so the largest group is used.
    NotReached,
}

/// Reason why a sweep has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepError {
    /// The sweep has fewer than the three sizes that two doublings need.
    TooShort,
    /// A size is not twice the one before.
    NotDoubling {
        /// Offending size, in bytes.
        bytes: u64,
    },
    /// A copy has no bytes, or took no time.
    EmptyCopy,
}

impl Elbow {
    /// Returns the group size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Found { bytes } | Self::Clamped { bytes } => bytes,
            Self::NotReached => GROUP_MAX,
        }
    }
}

/// Returns the elbow of a sweep: the smallest size from which two doublings in a row raise the throughput by less than
/// 5 % each, at least [`GROUP_MIN`] and at most [`GROUP_MAX`]. Samples must be in ascending order of size.
///
/// # Errors
/// Returns [`SweepError`] if the samples are not such a sweep.
pub fn elbow(samples: &[Sample]) -> Result<Elbow, SweepError> {
    if samples.len() < 3 {
        return Err(SweepError::TooShort);
    }
    for sample in samples {
        if sample.bytes == 0 || sample.time == Span::ZERO {
            return Err(SweepError::EmptyCopy);
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

/// Returns the median of the times of copies of one size, the lower one of two, or `None` if there are none. Reorders
/// the times.
#[must_use]
pub fn median(times: &mut [Span]) -> Option<Span> {
    let middle = times.len().checked_sub(1)? / 2;
    Some(*times.select_nth_unstable(middle).1)
}

impl fmt::Display for SweepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("a sweep must have at least three sizes"),
            Self::NotDoubling { bytes } => {
                write!(
                    f,
                    "every size of a sweep must be twice the one before; {bytes} is not"
                )
            }
            Self::EmptyCopy => f.write_str("a copy in a sweep must have bytes and take time"),
        }
    }
}

impl std::error::Error for SweepError {}
