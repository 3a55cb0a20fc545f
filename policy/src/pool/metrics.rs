//! Whether a function was compliant, and how even the load of the slots was (M2.19, M2.20).

use super::Percentile;
use super::percentile::WHOLE;
use crate::Span;

/// The requests of one function and how many were in time. One that was refused or lost was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// All.
    pub requests: u64,
    /// Those with an answer by their deadline.
    pub in_time: u64,
}

/// Whether a function was compliant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compliance {
    /// Its latency at the percentile, by nearest rank, was within the deadline.
    pub compliant: bool,
    /// It had fewer than 1/(1 − p) requests, so its percentile is its maximum and one miss fails it; such functions
    /// are reported separately.
    pub few: bool,
}

impl Outcomes {
    /// Counts a request.
    pub const fn count(&mut self, in_time: bool) {
        self.requests += 1;
        self.in_time += in_time as u64;
    }

    /// Whether as many were in time as the nearest rank asks: ⌈p·n⌉. `None` without a request.
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

/// The latency at a percentile by nearest rank: the ⌈p·n⌉-th of `ascending`. `None` of none.
#[must_use]
pub fn nearest_rank(ascending: &[Span], percentile: Percentile) -> Option<Span> {
    let rank = rank(ascending.len() as u64, percentile);
    let at = usize::try_from(rank.saturating_sub(1)).ok()?;
    ascending.get(at).copied()
}

/// ⌈p·n⌉, and one at least.
fn rank(requests: u64, percentile: Percentile) -> u64 {
    let wanted = u128::from(requests) * u128::from(percentile.parts_per_million());
    let rank = wanted.div_ceil(u128::from(WHOLE));
    u64::try_from(rank).unwrap_or(u64::MAX).max(1)
}

/// How uneven slots were busy: the variance of their busy times, each as a share of the largest. 0: all alike; at
/// most 1/4. `None` if none was busy.
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
    fn counting_misses_says_what_the_nearest_rank_of_latencies_says() {
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
    fn one_miss_fails_a_function_with_fewer_than_fifty_requests_and_it_is_told_apart() {
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
    fn outcomes_count_what_was_in_time() {
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
