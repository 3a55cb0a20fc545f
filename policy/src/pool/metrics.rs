//! Metrics: whether a function was compliant, and how evenly the slots were loaded (M2.19, M2.20).
//!
//! # Examples
//!
//! ```
//! use policy::pool::Percentile;
//! use policy::pool::metrics::Outcomes;
//!
//! let mut outcomes = Outcomes::default();
//! for request in 0..100 {
//!     outcomes.count(request >= 2);
//! }
//! // 98 of 100 requests were in time, as the default of 98 % requires.
//! assert!(outcomes.compliance(Percentile::default()).unwrap().compliant);
//! outcomes.count(false);
//! assert!(!outcomes.compliance(Percentile::default()).unwrap().compliant);
//! ```

use super::Percentile;
use super::percentile::WHOLE;
use crate::Span;

/// Outcomes of one function's requests. A request that was refused or lost was not in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Number of requests that were counted.
    pub requests: u64,
    /// Number of requests answered by their deadline.
    pub in_time: u64,
}

/// Compliance of a function with its objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compliance {
    /// Whether the latency at the percentile, by nearest rank, was within the deadline.
    pub compliant: bool,
    /// Whether the function had fewer than 1/(1 − p) requests. Its percentile is then its maximum, so one miss fails
    /// it, and it is reported separately.
    pub few: bool,
}

impl Outcomes {
    /// Counts one request, which was in time or not.
    pub const fn count(&mut self, in_time: bool) {
        self.requests += 1;
        self.in_time += in_time as u64;
    }

    /// Returns whether as many requests were in time as the nearest rank requires, ⌈p·n⌉, or `None` without a request.
    #[must_use]
    pub fn compliance(self, percentile: Percentile) -> Option<Compliance> {
        if self.requests == 0 {
            return None;
        }
        let allowed = u128::from(self.requests) * u128::from(percentile.allowance());
        Some(Compliance {
            compliant: self.in_time >= rank(self.requests, percentile),
            few: allowed < u128::from(WHOLE),
        })
    }
}

/// Returns the latency at a percentile by nearest rank, which is the ⌈p·n⌉-th of `ascending`, or `None` if it is empty.
#[must_use]
pub fn nearest_rank(ascending: &[Span], percentile: Percentile) -> Option<Span> {
    let rank = rank(ascending.len() as u64, percentile);
    let at = usize::try_from(rank.saturating_sub(1)).ok()?;
    ascending.get(at).copied()
}

/// Returns ⌈p·n⌉, but at least one.
fn rank(requests: u64, percentile: Percentile) -> u64 {
    let wanted = u128::from(requests) * u128::from(percentile.parts_per_million());
    let rank = wanted.div_ceil(u128::from(WHOLE));
    u64::try_from(rank).unwrap_or(u64::MAX).max(1)
}

/// Returns how unevenly slots were busy: the variance of their busy times, each as a share of the largest. It is 0 if
/// all are equal, and at most 1/4. Returns `None` if no slot was busy.
#[must_use]
pub fn imbalance(busy: &[Span]) -> Option<f64> {
    let largest = busy.iter().max().filter(|&&largest| largest > Span::ZERO)?;
    let share = |busy: &Span| busy.as_secs_f64() / largest.as_secs_f64();
    let slots = u32::try_from(busy.len()).map(f64::from).ok()?;
    let mean = busy.iter().map(share).sum::<f64>() / slots;
    let squares = busy
        .iter()
        .map(|busy| (share(busy) - mean) * (share(busy) - mean));
    Some(squares.sum::<f64>() / slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compliance(requests: u64, in_time: u64) -> Compliance {
        let outcomes = Outcomes { requests, in_time };
        outcomes.compliance(Percentile::default()).unwrap()
    }

    #[test]
    fn counting_misses_agrees_with_the_nearest_rank_of_latencies() {
        let deadline = Span::from_millis(80);
        for requests in 1..=200_u64 {
            for misses in 0..=requests.min(8) {
                let mut latencies: Vec<Span> = (0..requests)
                    .map(|n| Span::from_millis(if n < misses { 81 + n } else { 1 + n % 80 }))
                    .collect();
                latencies.sort_unstable();
                let tail = nearest_rank(&latencies, Percentile::default()).unwrap();
                assert_eq!(
                    compliance(requests, requests - misses).compliant,
                    tail <= deadline,
                    "{misses} of {requests}"
                );
            }
        }
    }

    #[test]
    fn one_miss_fails_a_function_with_fewer_than_fifty_requests_which_is_marked() {
        assert_eq!(
            compliance(49, 48),
            Compliance {
                compliant: false,
                few: true
            }
        );
        assert_eq!(
            compliance(49, 49),
            Compliance {
                compliant: true,
                few: true
            }
        );
        assert_eq!(
            compliance(50, 49),
            Compliance {
                compliant: true,
                few: false
            }
        );
        assert_eq!(Outcomes::default().compliance(Percentile::default()), None);
        assert_eq!(nearest_rank(&[], Percentile::default()), None);
    }

    #[test]
    fn outcomes_count_requests_and_those_in_time() {
        let mut outcomes = Outcomes::default();
        for in_time in [true, false, true] {
            outcomes.count(in_time);
        }
        assert_eq!(
            outcomes,
            Outcomes {
                requests: 3,
                in_time: 2
            }
        );
    }

    #[test]
    fn imbalance_is_the_variance_of_loads_as_shares_of_the_largest() {
        let seconds = |loads: &[u64]| {
            let busy: Vec<Span> = loads.iter().map(|&s| Span::from_secs(s)).collect();
            imbalance(&busy)
        };
        assert_eq!(seconds(&[7, 7, 7, 7]), Some(0.0));
        assert_eq!(seconds(&[10, 0]), Some(0.25));
        assert!((seconds(&[4, 2, 2, 4]).unwrap() - 0.0625).abs() < 1e-12);
        assert_eq!(seconds(&[0, 0]), None);
        assert_eq!(seconds(&[]), None);
    }
}
