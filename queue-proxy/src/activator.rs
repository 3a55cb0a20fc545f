//! Detection of requests that come through Knative's activator, which queues them first in, first out before they reach
//! the pod: as long as it does, the deadline queue has nothing to order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of requests over which the share is measured: small enough for revisions with little traffic, and large enough
/// that a true share of a third is not measured as more than half by chance.
const BATCH: u32 = 100;

/// Counter of the requests that came through the activator, which warns once if they are the majority.
#[derive(Debug, Default)]
pub(crate) struct ActivatorShare {
    /// Requests through the activator since the start.
    through: AtomicU64,
    /// Whether the warning has been logged.
    is_reported: AtomicBool,
    batch: Mutex<Batch>,
}

#[derive(Debug, Default)]
struct Batch {
    /// Whether this is not the first batch, which is ignored, since a start from zero always goes through the activator.
    is_judged: bool,
    requests: u32,
    through: u32,
}

impl ActivatorShare {
    /// Counts a request, and logs the warning after the first batch with a majority through the activator.
    pub(crate) fn note(&self, is_through: bool) {
        if is_through {
            self.through.fetch_add(1, Ordering::Relaxed);
        }
        if !self.is_reported.load(Ordering::Relaxed) && self.ends_mostly_through(is_through) {
            self.is_reported.store(true, Ordering::Relaxed);
            tracing::warn!(
                "more than half of the last {BATCH} requests came through Knative's activator, which holds them \
                 first in, first out: deadlines order only what waits in this pod, and weir_requests_in_time_total \
                 does not see the wait before it; set the annotation \
                 autoscaling.knative.dev/target-burst-capacity: \"0\" on the revision template"
            );
        }
    }

    /// Returns the number of requests through the activator since the start.
    pub(crate) fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }

    /// Adds a request to the batch. Returns whether it completes a batch with more than half through the activator.
    fn ends_mostly_through(&self, is_through: bool) -> bool {
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        batch.requests += 1;
        batch.through += u32::from(is_through);
        if batch.requests < BATCH {
            return false;
        }
        let is_most = batch.is_judged && batch.through > BATCH / 2;
        *batch = Batch {
            is_judged: true,
            ..Batch::default()
        };
        is_most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of requests after which the warning is logged.
    fn reported_after(is_through: impl Fn(u32) -> bool) -> Option<u32> {
        let share = ActivatorShare::default();
        (1..=10 * BATCH).find(|&n| {
            share.note(is_through(n));
            share.is_reported.load(Ordering::Relaxed)
        })
    }

    #[test]
    fn a_majority_in_any_batch_but_the_first_is_reported() {
        assert_eq!(reported_after(|_| true), Some(2 * BATCH));
        assert_eq!(reported_after(|n| n <= BATCH), None);
        assert_eq!(reported_after(|n| n % 2 == 0), None);
        assert_eq!(reported_after(|n| n % 2 == 0 || n == 399), Some(4 * BATCH));
        assert_eq!(reported_after(|n| n > 5 * BATCH), Some(6 * BATCH));
    }

    #[test]
    fn all_requests_through_the_activator_are_counted() {
        let share = ActivatorShare::default();
        for n in 0..1_000 {
            share.note(n % 4 == 0);
        }
        assert_eq!(share.through(), 250);
    }
}
