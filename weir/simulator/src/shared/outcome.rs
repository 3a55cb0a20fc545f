//! What came of a run.

use policy::Span;

use crate::statistics::Histogram;

/// What one pod of closed loops did within the counted span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PodOutcome {
    /// Requests answered.
    pub answered: u64,
    /// Time in which it ran.
    pub busy: Span,
}

/// What a function's requests met.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FunctionOutcome {
    /// Requests counted: those that arrived within the counted span, without those that have no answer at its end and are
    /// not late yet.
    pub requests: u64,
    /// Of them, answered late, or never although their deadline was past.
    pub late: u64,
    /// Of them, those that found no pod that served.
    pub held: u64,
    /// How long they took.
    pub latencies: Histogram,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Outcome {
    /// Each function's requests; of closed loops each pod is one.
    pub functions: Vec<FunctionOutcome>,
    /// Each pod of closed loops.
    pub pods: Vec<PodOutcome>,
    /// The counted span.
    pub counted: Span,
    /// The most pods that there were at once.
    pub pods_max: u32,
    /// Pods that were started, and those that found no GPU.
    pub started: u64,
    /// See there.
    pub unplaced: u64,
    /// Pods × the time they were there, starting or serving, over the whole run, in seconds.
    pub pod_seconds: f64,
    /// The same in whole GPUs: window × SMs of each.
    pub gpu_seconds: f64,
    /// Events of the whole run.
    pub events: u64,
}

impl FunctionOutcome {
    /// Late requests in percent; none if there were no requests.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share needs no more than 53 bits"
    )]
    pub fn late_percent(&self) -> f64 {
        self.late as f64 * 100.0 / self.requests.max(1) as f64
    }
}

impl PodOutcome {
    /// Its part of wall time.
    #[must_use]
    pub fn share(&self, counted: Span) -> f64 {
        self.busy.as_secs_f64() / counted.as_secs_f64()
    }

    /// What it served, in requests per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "requests of one run")]
    pub fn throughput(&self, counted: Span) -> f64 {
        self.answered as f64 / counted.as_secs_f64()
    }
}
