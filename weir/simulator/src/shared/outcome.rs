//! Counters and results of a run.

use policy::Span;

use crate::statistics::Histogram;

/// Counters of one pod of closed loops within the counted span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PodOutcome {
    /// Number of requests answered.
    pub answered: u64,
    /// Time for which the pod ran.
    pub busy: Span,
}

/// Counters of one function's requests.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FunctionOutcome {
    /// Number of counted requests: those that arrived within the counted span, except those without an answer at its end that
    /// are not late yet.
    pub requests: u64,
    /// Number of counted requests answered late, or unanswered although their deadline was past.
    pub late: u64,
    /// Number of counted requests that arrived when no pod was serving.
    pub held: u64,
    /// Latencies of answered requests.
    pub latencies: Histogram,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Outcome {
    /// Counters of each function; each pod of closed loops is a function.
    pub functions: Vec<FunctionOutcome>,
    /// Counters of each pod of closed loops.
    pub pods: Vec<PodOutcome>,
    /// Length of the counted span.
    pub counted: Span,
    /// Largest number of pods at one time.
    pub pods_max: u32,
    /// Number of pods started.
    pub started: u64,
    /// Number of pods for which no GPU had room.
    pub unplaced: u64,
    /// Sum over pods of the time for which they existed, starting or serving, over the whole run, in seconds.
    pub pod_seconds: f64,
    /// Sum over pods of that time × window × SMs, in seconds of whole GPUs.
    pub gpu_seconds: f64,
    /// Number of events of the whole run.
    pub events: u64,
}

impl FunctionOutcome {
    /// Returns the share of late requests in percent; zero if there were no requests.
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
    /// Returns the pod's share of wall time.
    #[must_use]
    pub fn share(&self, counted: Span) -> f64 {
        self.busy.as_secs_f64() / counted.as_secs_f64()
    }

    /// Returns the pod's throughput, in requests per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "requests of one run")]
    pub fn throughput(&self, counted: Span) -> f64 {
        self.answered as f64 / counted.as_secs_f64()
    }
}
