//! Which functions are in the high group.

use super::{Admission, Function, Order, Queue, get_mut};
use crate::pool::percentile::WHOLE;
use crate::pool::{FunctionId, IDS_MAX};
use crate::{Span, Time};

/// Time between two steps.
const STEP: Span = Span::from_secs(5);

impl Queue {
    /// Runs one step if at least one is due. Missed steps are not caught up on: without requests nothing was observed.
    pub(super) fn step_if_due(&mut self) {
        let Order::RequiredRequests(admission) = self.settings.order else {
            return;
        };
        let Some(due) = self.next_step else {
            self.next_step = Some(self.now.after(STEP));
            return;
        };
        if self.now < due {
            return;
        }
        let passed = self.now.since(due).0 / STEP.0 + 1;
        self.next_step = Some(Time(due.0.saturating_add(STEP.0.saturating_mul(passed))));
        let least_work = matches!(admission, Admission::LeastWork { .. });
        match admission {
            Admission::AdaptiveThreshold(_) => self.controller.step(),
            Admission::FixedThreshold(_) => {}
            Admission::LeastWork { capacity, horizon } => {
                self.admit_least_work(capacity, horizon, passed);
            }
        }
        for function in (0..IDS_MAX).map(FunctionId).take(self.functions.len()) {
            let waits = self
                .function(function)
                .is_some_and(|entry| entry.waiting > 0);
            // The recount for the least work covered all functions, so what has changed is no longer known.
            if (self.judge(function, false) || least_work) && waits {
                self.file(function);
            }
        }
    }

    /// Judges a function by its outcomes. `new` is whether there is a new one. Returns whether the function's position
    /// among others may have changed.
    pub(super) fn judge(&mut self, function: FunctionId, new: bool) -> bool {
        let Order::RequiredRequests(admission) = self.settings.order else {
            return false;
        };
        let theta = self.controller.theta();
        let now = self.now;
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return false;
        };
        let before = (entry.required, entry.high);
        entry.recount(now, new);
        let allowance = i64::from(entry.percentile.allowance());
        let threshold = match admission {
            Admission::AdaptiveThreshold(_) => theta,
            Admission::FixedThreshold(required) => i64::from(required) * allowance,
            // Decided at the step only.
            Admission::LeastWork { .. } => {
                entry.high = entry.admitted;
                return before != (entry.required, entry.high);
            }
        };
        // A member stays until RRC > θ + 1, so that a single request does not make it oscillate.
        let stays = if entry.high { allowance } else { 0 };
        entry.high = entry.behind <= threshold + stays;
        before != (entry.required, entry.high)
    }

    /// Solves the knapsack problem of mechanisms §2.2: as many functions as possible within the capacity.
    fn admit_least_work(&mut self, capacity: Span, horizon: Span, passed: u64) {
        let mut needed = std::mem::take(&mut self.needed);
        needed.clear();
        for (id, entry) in (0_u32..).zip(&mut self.functions) {
            if let Some(entry) = entry {
                entry.recount(self.now, false);
                needed.push((entry.needed_work(horizon, passed), id));
            }
        }
        needed.sort_unstable();
        let mut sum: u128 = 0;
        for &(work, id) in &needed {
            sum = sum.saturating_add(work);
            if let Some(entry) = get_mut(&mut self.functions, FunctionId(id)) {
                entry.admitted = sum <= u128::from(capacity.0);
            }
        }
        self.needed = needed;
    }
}

impl Function {
    fn recount(&mut self, now: Time, new: bool) {
        if self.window.refresh(now) || new {
            let (requests, in_time) = (self.window.requests(), self.window.in_time());
            self.behind = self.percentile.behind(requests, in_time);
            self.required = self.percentile.required(self.behind);
        }
    }

    /// Returns (p·(n + a) − m)·s in nanoseconds of a slot, or zero for a function that would be compliant anyway.
    fn needed_work(&mut self, horizon: Span, passed: u64) -> u128 {
        // The mean decays by an eighth at each step that counted arrivals; missed steps share the arrivals.
        let recent = self.arrivals.saturating_mul(1_000) / passed.max(1);
        self.arrivals_mean = (self.arrivals_mean.saturating_mul(7)).saturating_add(recent) / 8;
        self.arrivals = 0;
        let expected = u128::from(self.arrivals_mean) * u128::from(horizon.0) / u128::from(STEP.0);
        let expected = i128::try_from(expected).unwrap_or(i128::MAX);
        let p = i128::from(self.percentile.parts_per_million());
        let requests = i128::from(self.window.requests());
        let in_time = i128::from(self.window.in_time());
        // Expected arrivals are in thousandths, so the whole sum is in thousandths of millionths.
        let wanted = (requests * 1_000)
            .saturating_add(expected)
            .saturating_mul(p);
        let short = wanted.saturating_sub(in_time * 1_000 * i128::from(WHOLE));
        let short = u128::try_from(short).unwrap_or(0);
        short.saturating_mul(u128::from(self.estimate.0)) / (1_000 * u128::from(WHOLE))
    }
}
