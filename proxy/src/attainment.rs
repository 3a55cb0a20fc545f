//! Requests judged against an objective: counted in time or missed, for one reason, exactly once (design 4.4).

use policy::Span;
use policy::slo::{MissReason, Verdict, judge};
use prometheus::IntCounter;

use crate::exchange::RequestSummary;
use crate::missed::MissedRequest;

/// The counters of one revision's judged requests.
#[derive(Debug)]
pub struct Attainment {
    objective: Span,
    /// `namespace/revision`.
    revision: String,
    in_time: IntCounter,
    missed: [IntCounter; MissReason::ALL.len()],
}

/// What became of a request, held against its objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judgement {
    /// The objective that it was held against.
    pub objective: Span,
    /// Whether it was met, and if not, why.
    pub verdict: Verdict,
}

impl Attainment {
    /// Counts requests of `revision`, which is `namespace/revision`, by `in_time` and the counter of each reason.
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

    /// Counts a request that has ended, and writes a line into the process's log if it missed its objective.
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

    /// Returns how many requests were in time since the process began.
    #[must_use]
    pub fn in_time(&self) -> u64 {
        self.in_time.get()
    }

    /// Returns how many requests missed the objective since the process began, for whatever reason.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.iter().map(IntCounter::get).sum()
    }
}
