//! Log lines for requests that missed their objective, whether they are sampled for tracing or not (contracts §4).

use std::sync::{Mutex, PoisonError};

use policy::Time;
use policy::rate::Allowance;
use policy::slo::{MissReason, Parts};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::traces::TraceIds;

/// Largest number of lines per second of this process; the next line states how many were left out.
const LINES_MAX: u32 = 10;

/// Fields of the log line for a request that missed its objective.
#[derive(Debug, Clone, Copy)]
pub struct MissedRequest<'a> {
    /// Revision as `namespace/revision`.
    pub revision: &'a str,
    /// Reason of the miss.
    pub reason: MissReason,
    /// Latency objective, in seconds.
    pub objective: f64,
    /// Time from the arrival at the first hop of Weir to the end, in seconds.
    pub took: f64,
    /// Breakdown of that time, as far as it is known.
    pub parts: Parts,
    /// Status that the client received, or would have received.
    pub status: u16,
    /// Trace and span of the request; `None` if it is not traced.
    pub trace: Option<TraceIds>,
}

/// Rate limit of the lines.
#[derive(Debug)]
struct Limit {
    allowance: Allowance,
    left_out: u64,
}

impl Limit {
    const fn new() -> Self {
        Self {
            allowance: Allowance::new(LINES_MAX),
            left_out: 0,
        }
    }

    /// Returns the number of lines left out since the last one if a line is allowed at `now`; otherwise counts it as left
    /// out and returns `None`.
    fn take(&mut self, now: Time) -> Option<u64> {
        if self.allowance.spend(1, now) {
            return Some(std::mem::take(&mut self.left_out));
        }
        self.left_out += 1;
        None
    }
}

/// Rate limit of the whole process, over all revisions.
static LIMIT: Mutex<Option<(Clock, Limit)>> = Mutex::new(None);

impl MissedRequest<'_> {
    /// Writes the line, unless the limit of ten lines per second is reached.
    pub fn log(&self) {
        let left_out = {
            let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
            let (clock, limit) = limit.get_or_insert_with(|| (Clock::start(), Limit::new()));
            limit.take(clock.time(Instant::now()))
        };
        let Some(left_out) = left_out else {
            return;
        };
        let Parts {
            cold_start,
            queue,
            lease,
            load,
            gate,
            execution,
        } = self.parts;
        let ids = self.trace.map(TraceIds::texts);
        let (trace_id, span_id) = ids.unzip();
        tracing::info!(
            "knative.dev/key" = self.revision,
            reason = self.reason.name(),
            objective_seconds = self.objective,
            took_seconds = self.took,
            cold_start_seconds = cold_start.as_secs_f64(),
            queue_seconds = queue.as_secs_f64(),
            lease_seconds = lease.as_secs_f64(),
            load_seconds = load.as_secs_f64(),
            gate_seconds = gate.as_secs_f64(),
            execution_seconds = execution.as_secs_f64(),
            status = self.status,
            trace_id,
            span_id,
            left_out,
            "a request missed its objective"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_to_ten_per_second_and_the_next_one_counts_those_left_out() {
        let mut limit = Limit::new();
        let taken = (0..25).filter(|_| limit.take(Time(5)).is_some()).count();
        assert_eq!(taken, 10);
        assert_eq!(limit.take(Time(1_000_000_010)), Some(15));
        assert_eq!(limit.take(Time(1_000_000_011)), Some(0));
    }
}
