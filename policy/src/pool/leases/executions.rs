//! How long requests compute (M2.14): as queues measure it, as far as the time bears it out for which the slot was seen in use.

use super::demand::mean;
use crate::Span;

/// Number of samples from which they are believed.
pub(in crate::pool) const SAMPLES_MIN: u32 = 20;
/// Part by which the longest use fades with each sample: one in this many.
const FADING: u64 = 16;

/// Execution times of requests. A queue may state anything, but a request takes no longer than the use of the slot in which it runs, from when the queue of the holder
/// has work until it has none: the longest of the last ones bounds what is stated.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::pool) struct Executions {
    stated: Span,
    count: u32,
    longest_use: Span,
    uses: u32,
}

impl Executions {
    /// Adds the time of one request, as its queue states it.
    pub(in crate::pool) fn add(&mut self, execution: Span) {
        self.stated = mean(self.stated, execution, self.count == 0);
        self.count = self.count.saturating_add(1);
    }

    /// Adds a time for which a slot was in use, with the load if the model arrived meanwhile.
    pub(in crate::pool) fn add_use(&mut self, took: Span) {
        let faded = self.longest_use.0 - self.longest_use.0 / FADING;
        self.longest_use = Span(faded.max(took.0));
        self.uses = self.uses.saturating_add(1);
    }

    fn bounded(&self, execution: Span) -> Span {
        if self.uses < SAMPLES_MIN {
            return execution;
        }
        execution.min(self.longest_use)
    }

    /// Returns the mean time of a request; zero if none was stated.
    pub(in crate::pool) fn mean(&self) -> Span {
        self.bounded(self.stated)
    }

    /// Returns the expected time of a request for which a queue states an estimate, or zero: it counts until enough others have ended.
    pub(in crate::pool) fn expected(&self, estimate: Span) -> Span {
        if self.count >= SAMPLES_MIN || estimate == Span::ZERO {
            return self.mean();
        }
        self.bounded(estimate)
    }

    /// Returns the usual time of a request; `None` until enough have ended.
    pub(in crate::pool) fn usual(&self) -> Option<Span> {
        (self.count >= SAMPLES_MIN).then_some(self.mean())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn of(stated: u64, uses: u32, took: u64) -> Executions {
        let mut executions = Executions::default();
        for _ in 0..SAMPLES_MIN {
            executions.add(Span(stated * MS));
        }
        for _ in 0..uses {
            executions.add_use(Span(took * MS));
        }
        executions
    }

    #[test]
    fn an_estimate_counts_until_enough_requests_have_ended() {
        let mut executions = Executions::default();
        executions.add(Span(10));
        assert_eq!(executions.expected(Span(30)), Span(30));
        assert_eq!(executions.expected(Span::ZERO), Span(10));
        assert_eq!(executions.usual(), None);
        assert_eq!(of(20, 0, 0).expected(Span(30)), Span(20 * MS));
    }

    #[test]
    fn a_stated_time_is_bounded_by_the_longest_use_of_the_slot() {
        assert_eq!(of(10_000, SAMPLES_MIN - 1, 25).mean(), Span(10_000 * MS));
        let mut executions = of(10_000, SAMPLES_MIN, 25);
        assert_eq!(executions.mean(), Span(25 * MS));
        assert_eq!(executions.usual(), Some(Span(25 * MS)));
        // Uses in which nothing ran lower it slowly, a longer one raises it at once.
        executions.add_use(Span::ZERO);
        assert!(executions.mean() > Span(23 * MS));
        executions.add_use(Span(40 * MS));
        assert_eq!(executions.mean(), Span(40 * MS));
    }

    #[test]
    fn the_time_of_a_request_is_not_that_of_all_which_run_in_one_use() {
        assert_eq!(of(5, SAMPLES_MIN, 500).mean(), Span(5 * MS));
    }
}
