//! Service-level accounting: each request is counted exactly once, as in time or as missed for one reason (contracts §4).

use policy::Span;
use policy::slo::{MissReason, Verdict, judge};
use prometheus::IntCounter;

use crate::exchange::RequestSummary;
use crate::missed::MissedRequest;

/// Counters of one revision's requests that are held against a latency objective.
#[derive(Debug)]
pub struct Attainment {
    objective: Span,
    /// Revision as `namespace/revision`, for the log.
    revision: String,
    in_time: IntCounter,
    missed: [IntCounter; MissReason::ALL.len()],
}

/// Result of comparing an ended request with its objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// Latency objective of the request.
    pub objective: Span,
    /// Whether the objective was met, and the reason if it was missed.
    pub verdict: Verdict,
}

impl Attainment {
    /// Creates the accounting of `revision`, given as `namespace/revision`, with a counter for requests in time and one
    /// for each reason of a miss.
    #[must_use]
    pub fn new(
        objective: Span,
        revision: String,
        in_time: IntCounter,
        missed: impl FnMut(MissReason) -> IntCounter,
    ) -> Self {
        Self {
            objective,
            revision,
            in_time,
            missed: MissReason::ALL.map(missed),
        }
    }

    /// Counts an ended request, writes a line to the process's log if it missed its objective, and returns the result.
    pub fn record(&self, ended: &RequestSummary) -> Judgement {
        let took = ended.took();
        let verdict = judge(self.objective, took.into(), ended.ending(), &ended.parts);
        match verdict {
            Verdict::InTime => self.in_time.inc(),
            Verdict::Missed(reason) => {
                self.missed[reason as usize].inc();
                MissedRequest {
                    revision: &self.revision,
                    reason,
                    objective: self.objective.as_secs_f64(),
                    took: took.as_secs_f64(),
                    parts: ended.parts,
                    status: ended.status,
                    trace: ended.trace,
                }
                .log();
            }
            Verdict::NotJudged => {}
        }
        Judgement {
            objective: self.objective,
            verdict,
        }
    }

    /// Returns the number of requests in time since the process started.
    #[must_use]
    pub fn in_time(&self) -> u64 {
        self.in_time.get()
    }

    /// Returns the number of requests that missed the objective since the process started, over all reasons.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.iter().map(IntCounter::get).sum()
    }
}
