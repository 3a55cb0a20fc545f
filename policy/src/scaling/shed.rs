//! The concurrency that shed requests would have added to a mean (contracts §9).

use crate::Span;

/// Largest contribution of shed requests to a mean, as a multiple of the concurrency (contracts §9).
const SHED_PER_CONCURRENCY: f64 = 10.0;

/// Returns how many more requests would have run on average if those of a window had not been shed, so that shedding
/// does not hide demand. `execution` is the time for which they would have run in total. The result is at most ten
/// times the concurrency, so that a flood that can never be served stays bounded.
#[must_use]
pub fn shed_concurrency(execution: Span, window: Span, concurrency: Option<u32>) -> f64 {
    if window == Span::ZERO {
        return 0.0;
    }
    let mean = execution.as_secs_f64() / window.as_secs_f64();
    mean.min(SHED_PER_CONCURRENCY * f64::from(concurrency.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shed_requests_count_for_their_execution_time_up_to_a_bound() {
        let window = Span::from_secs(2);
        let of =
            |seconds, concurrency| shed_concurrency(Span::from_secs(seconds), window, concurrency);
        assert!((of(3, Some(1)) - 1.5).abs() < 1e-9);
        assert!((of(1_000, Some(2)) - 20.0).abs() < 1e-9);
        assert!(of(3, None).abs() < 1e-9);
        assert!(shed_concurrency(Span::from_secs(1), Span::ZERO, Some(1)).abs() < 1e-9);
    }
}
