//! A reactive token bucket per pod, for comparison: the algorithm of HAMi-core, in time instead of launches.
//!
//! At every control step the bucket is filled by `fill`, and `fill` moves towards the value at which utilisation over
//! the last second would meet the limit. Pods do not affect each other, and SMs are not counted. Since the measurement
//! lags by up to a second behind the fill, small limits are overshot after every pause.

use super::limit::Recent;
use super::{Action, CloseReason, GrantReason, Settings, Tokens};
use crate::{Span, Time};

/// Time between two control steps, in which buckets are filled and corrected.
const STEP: Span = Span::from_millis(120);
/// Divisor of the measured error that corrects the fill in one step.
const FACTOR: u64 = 32;
/// Error in parts per million below which the correction does not shrink further, so that it never stops.
const ERROR_MIN: u64 = 50_000;

/// Bucket of one pod.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Time left in the bucket, in nanoseconds. Negative after work was in flight when it ran empty.
    level: i64,
    fill: u64,
    recent: Recent,
}

/// State of the control loop.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    next_step: Option<Time>,
}

impl Bucket {
    pub(super) fn new(recent: Recent) -> Self {
        Self {
            level: 0,
            fill: STEP.0,
            recent,
        }
    }

    /// Returns what is left after `unsettled` time of usage that has not been reported yet.
    fn left(&self, unsettled: Span) -> Span {
        Span(u64::try_from(self.level).unwrap_or(0)).less(unsettled)
    }

    pub(super) fn charge(&mut self, now: Time, delta: Span) {
        self.recent.add(now, delta);
        self.level = self
            .level
            .saturating_sub(i64::try_from(delta.0).unwrap_or(i64::MAX));
    }

    fn step(&mut self, now: Time, limit: u64, settings: &Settings) {
        let window = u128::from(settings.window.0.max(1));
        let measured = u128::from(self.recent.used(now).0) * 1_000_000 / window;
        let measured = super::quota::narrow(measured);
        let error = measured.abs_diff(limit).max(ERROR_MIN);
        let change = STEP.0 / 1_000 * error / 1_000 / FACTOR;
        self.fill = if measured < limit {
            (self.fill + change).min(STEP.0)
        } else {
            self.fill.saturating_sub(change)
        };
        let full = i64::try_from(STEP.0).unwrap_or(i64::MAX);
        let fill = i64::try_from(self.fill).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add(fill).min(full);
    }
}

impl Tokens {
    pub(super) fn decide_bucket(&mut self, actions: &mut Vec<Action>) -> Time {
        let now = self.now;
        let due = *self.bucket.next_step.get_or_insert(now);
        if due <= now {
            for pod in self.table.pods_mut() {
                let limit = u64::from(pod.quota.limit().parts_per_million());
                pod.bucket.step(now, limit, &self.settings);
            }
            // Missed steps are not caught up on.
            self.bucket.next_step = Some(now.after(STEP));
        }
        let next_step = self.bucket.next_step.unwrap_or(now);
        let mut wake = Time::NEVER;
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            let (_, pod) = self.table.listed(id);
            let left = pod.bucket.left(pod.unsettled(now));
            if pod.quota.limit().is_whole() {
                self.extend(id, Time::NEVER, actions);
            } else if left == Span::ZERO {
                self.close(id, CloseReason::Limit, actions);
            } else {
                wake = wake.min(now.after(left));
                wake = wake.min(next_step);
            }
        }
        loop {
            let next = self
                .table
                .waiting
                .iter()
                .map(|&id| (id, self.table.listed(id)))
                .filter(|(_, (_, pod))| {
                    !pod.stopped
                        && (pod.bucket.left(pod.unsettled(now)) > Span::ZERO
                            || pod.quota.limit().is_whole())
                        && !pod.quota.limit().is_none()
                })
                .map(|(id, (process, _))| (process.since, id))
                .min();
            let Some((_, id)) = next else {
                break;
            };
            let (_, pod) = self.table.listed(id);
            let until = if pod.quota.limit().is_whole() {
                Time::NEVER
            } else {
                let left = pod.bucket.left(pod.unsettled(now));
                wake = wake.min(now.after(left)).min(next_step);
                now.after(left.max(STEP))
            };
            self.grant(id, until, GrantReason::Unconditional, actions);
        }
        if !self.table.waiting.is_empty() {
            wake = wake.min(next_step);
        }
        wake
    }
}
