//! The accounts: virtual time, the clocks of pods, surplus, and the cost of hand-overs.

use super::super::limit::ahead_by;
use super::super::table::Pod;
use super::super::{Quota, SHARE_WHOLE, Settings, quota, sum};
use crate::{Span, Time};

/// Number of hand-overs that can be saved up.
const HAND_OVERS_SAVED: u64 = 8;
/// Part of a cycle, as a divisor, after which the turn of a pod that uses surplus is over.
const SURPLUS_TURNS: u64 = 5;

/// Accounts of one pod.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tokens) struct FairShare {
    /// Virtual time at which the pod's usage so far would equal its request.
    pub(in crate::tokens) clock: Time,
    /// Remainder of a division.
    pub(in crate::tokens) remainder: u64,
    /// Surplus that the pod has had, counted from the start of the competition.
    pub(in crate::tokens) surplus: Span,
    /// Settled values of the two accumulators of [`State`].
    pub(in crate::tokens) seen_kept: Span,
    pub(in crate::tokens) seen_kept_owed: Span,
    /// Clock that results if the usage that is not known yet is as expected.
    pub(in crate::tokens) expected: Time,
}

/// State that the pods of a slot share.
#[derive(Clone, Debug)]
pub(in crate::tokens) struct State {
    /// Virtual time, as of `moved`.
    pub(in crate::tokens) virtual_now: Time,
    /// Time at which virtual time was last advanced.
    pub(in crate::tokens) moved: Time,
    /// Clock that is furthest ahead among the pods with demand.
    pub(in crate::tokens) best_served: Option<Time>,
    pub(in crate::tokens) half_cycle: Span,
    pub(in crate::tokens) surplus_turn: Span,
    pub(in crate::tokens) window: Span,
    /// Surplus of the pod that was last granted some.
    pub(in crate::tokens) surplus_floor: Span,
    /// Accumulated time in which a process waited that did not have to compete for surplus.
    pub(in crate::tokens) kept: Span,
    /// Accumulated time in which a process waited that was behind by half a cycle.
    pub(in crate::tokens) kept_owed: Span,
    /// Whether a process waits that could run.
    pub(in crate::tokens) contended: bool,
    /// Clock of those processes that is furthest behind.
    pub(in crate::tokens) kept_clock: Option<Time>,
    /// Credit for hand-overs, in nanoseconds of the whole GPU.
    pub(in crate::tokens) hand_over_credit: i64,
    /// Remainder of a division.
    pub(in crate::tokens) credit_remainder: u64,
    pub(in crate::tokens) pass: u64,
}

impl State {
    pub(in crate::tokens) fn new(settings: &Settings) -> Self {
        Self {
            // Not zero, so that a new pod can lag by a window.
            virtual_now: Time::ZERO.after(settings.window),
            moved: Time::ZERO,
            best_served: None,
            half_cycle: Span(settings.cycle.0 / 2),
            surplus_turn: Span(settings.cycle.0 / SURPLUS_TURNS),
            window: settings.window,
            surplus_floor: Span::ZERO,
            kept: Span::ZERO,
            kept_owed: Span::ZERO,
            contended: false,
            kept_clock: None,
            hand_over_credit: 0,
            credit_remainder: 0,
            pass: 0,
        }
    }

    pub(in crate::tokens) fn add_pod(&self, pod: &mut Pod) {
        pod.fair.clock = self.virtual_now;
        pod.fair.expected = self.virtual_now;
        self.mark_settled(pod);
    }

    /// Adapts the clock to another quota: what is owed stays the same in GPU time.
    pub(in crate::tokens) fn change_quota(&self, pod: &mut Pod, quota: Quota) {
        let (before, after) = (pod.quota.request(), quota.request());
        let owed = before.of(self.virtual_now.since(pod.fair.clock));
        let ahead = before.of(pod.fair.clock.since(self.virtual_now));
        pod.fair.remainder = 0;
        pod.fair.clock = if after.is_none() || before.is_none() {
            self.virtual_now
        } else {
            self.virtual_now
                .after(after.time_to_accrue(ahead))
                .before(after.time_to_accrue(owed))
        };
        pod.fair.expected = pod.fair.clock;
    }

    /// Adapts the accounts when a process of the pod begins to wait.
    pub(in crate::tokens) fn demand_begins(&self, now: Time, pod: &mut Pod) {
        // Between a close and the next request the pod has not been away.
        let mut lag = Span(2 * self.surplus_turn.0);
        if pod.demand == 0 {
            if now.since(pod.idle_since) > Span(2 * self.half_cycle.0) {
                self.cap(pod);
                lag = Span::ZERO;
            }
            self.mark_settled(pod);
        }
        let least = self.surplus_floor.less(lag);
        pod.fair.surplus = pod.fair.surplus.max(least);
    }

    pub(in crate::tokens) fn cap(&self, pod: &mut Pod) {
        // A lag that other pods share is no saving.
        let least = self
            .best_served
            .map_or(self.virtual_now, |clock| clock.min(self.virtual_now))
            .before(self.window);
        if pod.fair.clock < least {
            pod.fair.clock = least;
            pod.fair.expected = least;
        }
    }

    pub(in crate::tokens) fn mark_settled(&self, pod: &mut Pod) {
        pod.fair.seen_kept = self.kept;
        pod.fair.seen_kept_owed = self.kept_owed;
    }

    /// Returns how far a clock may be ahead before its pod competes for surplus.
    pub(in crate::tokens) fn ahead_max(&self) -> Time {
        self.virtual_now.after(self.half_cycle)
    }

    /// Returns whether a pod with this clock competes for surplus. That begins a little before the bound, since the
    /// clock is rounded down on its way there.
    pub(in crate::tokens) fn is_ahead(&self, clock: Time) -> bool {
        clock.after(Span(self.half_cycle.0 / 16)) >= self.ahead_max()
    }

    /// Charges usage to the pod's accounts.
    pub(in crate::tokens) fn charge(&mut self, pod: &mut Pod, delta: Span) {
        let request = pod.quota.request();
        let fair = &mut pod.fair;
        let kept = if self.is_ahead(fair.clock) {
            Span(self.kept_owed.0 - fair.seen_kept_owed.0)
        } else {
            Span(self.kept.0 - fair.seen_kept.0)
        };
        fair.seen_kept = self.kept;
        fair.seen_kept_owed = self.kept_owed;
        let mut guaranteed = Span::ZERO;
        if !request.is_none() {
            let kept = delta.min(kept);
            let (by, remainder) = ahead_by(request, kept, fair.remainder);
            fair.clock = fair.clock.after(by);
            let room = request.of(self.ahead_max().since(fair.clock));
            let rest = delta.less(kept).min(room);
            let (by, remainder) = ahead_by(request, rest, remainder);
            fair.clock = fair.clock.after(by);
            fair.remainder = remainder;
            guaranteed = sum(kept, rest);
        }
        fair.expected = fair.clock;
        let surplus = delta.less(guaranteed);
        fair.surplus = sum(fair.surplus, surplus);
        if !self.contended {
            self.surplus_floor = self.surplus_floor.max(fair.surplus);
        }
        pod.account.guaranteed = sum(pod.account.guaranteed, guaranteed);
        pod.account.surplus = sum(pod.account.surplus, surplus);
    }

    pub(in crate::tokens) fn hand_over_cost(sm: u32, settings: &Settings) -> i64 {
        let cost = u128::from(settings.hand_over.0) * u128::from(sm)
            / u128::from(settings.sm_limit.max(1));
        i64::try_from(cost).unwrap_or(i64::MAX)
    }

    pub(in crate::tokens) fn hand_over_bound(settings: &Settings) -> i64 {
        i64::try_from(settings.hand_over.0.saturating_mul(HAND_OVERS_SAVED)).unwrap_or(i64::MAX)
    }

    /// Resets the expectation to what was reported, when nothing of the pod runs any more.
    pub(in crate::tokens) fn settle_expected(pod: &mut Pod) {
        pod.fair.expected = pod.fair.clock;
    }

    /// Pays for the passing of SMs to another process.
    pub(in crate::tokens) fn pay_hand_over(&mut self, sm: u32, settings: &Settings) {
        self.hand_over_credit = self
            .hand_over_credit
            .saturating_sub(Self::hand_over_cost(sm, settings))
            .max(-Self::hand_over_bound(settings));
    }

    /// Returns the time until a close of a holder with `sm` can be paid for.
    pub(in crate::tokens) fn hand_over_affordable_in(&self, sm: u32, settings: &Settings) -> Span {
        let missing = Self::hand_over_cost(sm, settings).saturating_sub(self.hand_over_credit);
        u64::try_from(missing).map_or(Span::ZERO, |missing| {
            settings.hand_over_share_max.time_to_accrue(Span(missing))
        })
    }

    /// Advances virtual time and the accumulators to `now`.
    pub(in crate::tokens) fn advance(&mut self, now: Time, settings: &Settings) {
        let passed = now.since(self.moved);
        self.moved = self.moved.max(now);
        let ahead = self.virtual_now.after(passed);
        let bound = self
            .best_served
            .map_or(Time::NEVER, |clock| clock.after(self.window));
        self.virtual_now = self.virtual_now.max(ahead.min(bound));
        if let Some(clock) = self.kept_clock {
            // The clock may have been behind for only part of that time.
            let claims = self.ahead_max().since(clock);
            let owed = self.virtual_now.since(clock.after(self.half_cycle));
            self.kept = sum(self.kept, passed.min(claims));
            self.kept_owed = sum(self.kept_owed, passed.min(owed));
        }
        let whole = u128::from(SHARE_WHOLE);
        let share = u128::from(settings.hand_over_share_max.parts_per_million());
        let credit = u128::from(passed.0) * share + u128::from(self.credit_remainder);
        self.credit_remainder = quota::narrow(credit % whole);
        let credit = i64::try_from(credit / whole).unwrap_or(i64::MAX);
        self.hand_over_credit = self
            .hand_over_credit
            .saturating_add(credit)
            .min(Self::hand_over_bound(settings));
    }
}
