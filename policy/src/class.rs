//! Request classes: what a proxy can see of a request that helps to predict how long it will take.
//!
//! A class has two features: the stated objective, in half octaves of milliseconds, and the length of the body, in
//! powers of four. Both come from the client, but the number of classes is fixed, so a flood of made-up requests takes
//! no memory and displaces no other class's estimate.
//!
//! # Examples
//!
//! ```
//! use policy::{Span, class};
//!
//! let objective = Some(Span::from_millis(200));
//! let (short, longer) = (Some(5_000), Some(6_000));
//! assert_eq!(class::of(objective, short), class::of(objective, longer));
//! assert_ne!(class::of(objective, short), class::of(objective, None));
//! assert!(class::of(None, None).0 < class::COUNT);
//! ```

use crate::Span;
use crate::profile::ClassId;

const OBJECTIVES: u16 = 44;
const LENGTHS: u16 = 14;

/// Total number of request classes.
pub const COUNT: u16 = OBJECTIVES * LENGTHS;

/// Returns the class of a request. `length` is its `Content-Length`, or `None` for a body of unknown length.
#[must_use]
pub fn of(objective: Option<Span>, length: Option<u64>) -> ClassId {
    ClassId(objective_bucket(objective) * LENGTHS + length_bucket(length))
}

/// Returns 0 if no objective is stated, and otherwise one of two buckets per octave from 1 ms to 24 days.
fn objective_bucket(objective: Option<Span>) -> u16 {
    let Some(objective) = objective else { return 0 };
    let millis = objective.as_millis().max(1);
    let octave = millis.ilog2();
    let half = if octave == 0 {
        0
    } else {
        (millis >> (octave - 1)) & 1
    };
    u16::try_from(u64::from(octave) * 2 + half + 1)
        .unwrap_or(u16::MAX)
        .min(OBJECTIVES - 1)
}

/// Returns 0 for an unknown length, 1 for an empty body, and otherwise one bucket per power of four up to 16 MiB and
/// more.
fn length_bucket(length: Option<u64>) -> u16 {
    match length {
        None => 0,
        Some(0) => 1,
        Some(n) => u16::try_from(n.ilog2() / 2 + 2)
            .unwrap_or(u16::MAX)
            .min(LENGTHS - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_class_in_range() {
        for objective in [
            None,
            Some(0),
            Some(1),
            Some(200),
            Some(u64::MAX / 1_000_000),
        ] {
            for length in [None, Some(0), Some(1), Some(4_096), Some(u64::MAX)] {
                assert!(of(objective.map(Span::from_millis), length).0 < COUNT);
            }
        }
    }

    #[test]
    fn requests_that_differ_by_half_an_octave_or_a_power_of_four_have_different_classes() {
        let objective = |ms| of(Some(Span::from_millis(ms)), Some(0));
        assert_eq!(objective(100), objective(120));
        assert_ne!(objective(100), objective(150));
        assert_ne!(of(None, Some(100)), of(None, Some(400)));
        assert_ne!(of(None, None), of(None, Some(0)));
    }
}
