//! What requests that were shed would have added to a mean (design 4.9).

use crate::Span;

/// Requests that were shed add at most this many times the concurrency to a mean (design 4.9).
const SHED_PER_CONCURRENCY: f64 = 10.0;

/// How many requests on average would have run besides, had those of a window not been shed: so shedding does not
/// hide demand. `execution`: how long they would have run, all together. At most ten times the concurrency, so
/// that a flood that can never be served makes no number without end.
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
    fn shed_requests_count_for_as_long_as_they_would_have_run_up_to_a_bound() {
        let window = Span::from_secs(2);
        let of =
            |seconds, concurrency| shed_concurrency(Span::from_secs(seconds), window, concurrency);
        assert!((of(3, Some(1)) - 1.5).abs() < 1e-9);
        assert!((of(1_000, Some(2)) - 20.0).abs() < 1e-9);
        assert!(of(3, None).abs() < 1e-9);
        assert!(shed_concurrency(Span::from_secs(1), Span::ZERO, Some(1)).abs() < 1e-9);
    }
}
