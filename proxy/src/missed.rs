//! One line in the process's log for a request that missed its objective, whether it is sampled or not (design 4.4).

use std::sync::{Mutex, PoisonError};

use policy::Time;
use policy::rate::Allowance;
use policy::slo::{MissReason, Parts};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::traces::TraceIds;

/// Lines a second of this process, at most; the next line says how many were left out.
const LINES_MAX: u32 = 10;

/// A request that missed its objective.
#[derive(Debug, Clone, Copy)]
pub struct MissedRequest<'a> {
    /// `namespace/revision`.
    pub revision: &'a str,
    /// Why.
    pub reason: MissReason,
    /// The objective, in seconds.
    pub objective: f64,
    /// The time from its first arrival in Weir to its end, in seconds.
    pub took: f64,
    /// What that went to, as far as it is known.
    pub parts: Parts,
    /// The status that its client got, or would have got.
    pub status: u16,
    /// Its trace, if it has one.
    pub trace: Option<TraceIds>,
}

/// Lines of the second that runs.
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

    /// Returns how many lines were left out since the last one, if there may be a line now.
    fn take(&mut self, now: Time) -> Option<u64> {
        if self.allowance.spend(1, now) {
            return Some(std::mem::take(&mut self.left_out));
        }
        self.left_out += 1;
        None
    }
}

/// Of the whole process, whichever of its revisions a request is for.
static LIMIT: Mutex<Option<(Clock, Limit)>> = Mutex::new(None);

impl MissedRequest<'_> {
    /// Writes the line, unless there were ten in this second.
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
    fn in_a_second_there_are_ten_lines_and_the_next_one_says_how_many_were_left_out() {
        let mut limit = Limit::new();
        let taken = (0..25).filter(|_| limit.take(Time(5)).is_some()).count();
        assert_eq!(taken, 10);
        assert_eq!(limit.take(Time(1_000_000_010)), Some(15));
        assert_eq!(limit.take(Time(1_000_000_011)), Some(0));
    }
}
