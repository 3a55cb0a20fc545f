//! How many requests come through Knative's activator, which holds them first in, first out before they reach the
//! pod: as long as it does, the deadline queue has nothing to order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// So many requests are judged at a time: few enough that a revision with little traffic is judged as well, enough
/// that a share of a third does not pass for more than half by chance.
const BATCH: u32 = 100;

/// Counts requests by whether they came through the activator.
#[derive(Debug, Default)]
pub(crate) struct ActivatorShare {
    /// Requests through the activator, since the start.
    through: AtomicU64,
    /// It has been reported that most requests come through the activator.
    is_reported: AtomicBool,
    batch: Mutex<Batch>,
}

#[derive(Debug, Default)]
struct Batch {
    /// The first batch is over. It is not judged: a start from zero goes through the activator whatever is set.
    is_judged: bool,
    requests: u32,
    through: u32,
}

impl ActivatorShare {
    /// Counts a request.
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

    /// Returns how many requests came through the activator since the start.
    pub(crate) fn through(&self) -> u64 {
        self.through.load(Ordering::Relaxed)
    }

    /// Adds a request to the batch; returns whether it ends one of which more than half came through.
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

    /// After how many of these requests it is reported.
    fn reported_after(is_through: impl Fn(u32) -> bool) -> Option<u32> {
        let share = ActivatorShare::default();
        (1..=10 * BATCH).find(|&n| {
            share.note(is_through(n));
            share.is_reported.load(Ordering::Relaxed)
        })
    }

    #[test]
    fn more_than_half_of_a_batch_is_reported_and_the_first_batch_is_not_judged() {
        assert_eq!(reported_after(|_| true), Some(2 * BATCH));
        assert_eq!(reported_after(|n| n <= BATCH), None);
        assert_eq!(reported_after(|n| n % 2 == 0), None);
        assert_eq!(reported_after(|n| n % 2 == 0 || n == 399), Some(4 * BATCH));
        assert_eq!(reported_after(|n| n > 5 * BATCH), Some(6 * BATCH));
    }

    #[test]
    fn all_are_counted() {
        let share = ActivatorShare::default();
        for n in 0..1_000 {
            share.note(n % 4 == 0);
        }
        assert_eq!(share.through(), 250);
    }
}
