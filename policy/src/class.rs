//! The request class: what a proxy can see of a request that tells how long it will take.
//!
//! Two features: the stated objective (half octaves of milliseconds) and the body's length (powers of four).
//! Both are what the client says, but the number of classes is fixed: a flood of made-up requests takes no
//! memory and pushes no other class's estimate out.

use crate::Span;
use crate::profile::ClassId;

const OBJECTIVES: u16 = 44;
const LENGTHS: u16 = 14;

/// How many classes there are.
pub const COUNT: u16 = OBJECTIVES * LENGTHS;

/// The class of a request. `length` is `Content-Length`; `None` for a body of unknown length.
#[must_use]
pub fn of(objective: Option<Span>, length: Option<u64>) -> ClassId {
    ClassId(objective_bucket(objective) * LENGTHS + length_bucket(length))
}

/// 0: none stated; then two an octave from 1 ms to 24 days.
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

/// 0: unknown, 1: empty, then one per power of four to 16 MiB and more.
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
    fn requests_that_differ_by_half_an_octave_or_a_power_of_four_are_told_apart() {
        let objective = |ms| of(Some(Span::from_millis(ms)), Some(0));
        assert_eq!(objective(100), objective(120));
        assert_ne!(objective(100), objective(150));
        assert_ne!(of(None, Some(100)), of(None, Some(400)));
        assert_ne!(of(None, None), of(None, Some(0)));
    }
}
