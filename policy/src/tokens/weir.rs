//! The default rule: guarantees as virtual clocks, surplus by least had, limits as debt.
//!
//! **Guarantee.** Each pod with a request has a clock that its usage moves ahead by usage ÷ request. All clocks are
//! compared with one virtual time that runs with real time. A pod with a clock that is behind is owed (virtual time −
//! clock) × request: M4.7's `Q_miss`, divided by the request. The pod that is furthest behind is first, so unavoidable
//! losses are shared in proportion to the quotas. A pod without demand lags by no more than one window, which is what
//! it can save up. A waiting pod lags without bound, so that its neighbours' overruns are paid back. Virtual time waits
//! for the best-served pod with demand when it is a window ahead of that pod: time that *no* pod got is no claim
//! against another.
//!
//! **Surplus.** Pods with clocks that are ahead compete for time that is owed to no pod. The pod that has had the least
//! surplus is first, as M4.7 orders negative `Q_miss`, but counted from the start of the competition: a pod that
//! arrives or returns starts at the level of the others, so a pod that borrowed while it was alone is not punished for
//! it.
//!
//! **Turns.** A holder is closed for a waiting process when its clock is half a [`super::Settings::cycle`] ahead of
//! that process's clock; the surplus competes as a whole, with virtual time as its clock. So a pod's slice is request ×
//! cycle and corrects itself for overruns, and a pod that gives its token back early gets it again when it is owed half
//! a cycle. Each close costs one hand-over of idle SMs, and closes may cost no more than
//! [`super::Settings::hand_over_share_max`] of the time. If many small pods compete, or some return their tokens after
//! microseconds, turns get longer instead.
//!
//! **Charging.** A pod is at most half a cycle ahead before what it gets counts as surplus. Until then, time in which
//! it kept another such pod waiting is charged to its request in full, so that a launch of seconds is paid for. Time in
//! which it kept no pod waiting is charged only up to that half cycle, since it is borrowed. Beyond that, only time is
//! charged in which it kept a pod waiting that is half a cycle behind.
//!
//! **Backfill.** A waiting process that does not fit may be overtaken for [`super::Settings::overtaking_max`]; after
//! that, SMs that become free are kept for it. They are also kept for the first process if those that are closing will
//! leave enough for it: a process that took them now would have to be closed next.

mod state;
mod turns;

pub(super) use state::{FairShare, State};

use super::table::{Phase, Pod, Process};
use super::{Action, CloseReason, GrantReason, ProcessId, Tokens, WAKE_STEP, renewal_at};
use crate::{Span, Time};

/// Position of a process: owed ones first, the furthest behind first; then surplus, the least had first.
type TurnOrder = (bool, u64, Time, ProcessId);

/// Result of a scan of the waiting processes that may run.
#[derive(Clone, Copy, Debug, Default)]
struct Survey {
    first: Option<TurnOrder>,
    second: Option<TurnOrder>,
    /// First of those that fit.
    fitting: Option<TurnOrder>,
    /// First of those that do not fit and must not be overtaken any more.
    overdue: Option<TurnOrder>,
    /// Time at which the next process will be owed, which changes the order.
    owed_at: Option<Time>,
    /// Clock that is furthest behind, with its process; the field below has the next one.
    behind: Option<(Time, ProcessId)>,
    next_behind: Option<(Time, ProcessId)>,
}

impl Tokens {
    pub(super) fn decide_weir(&mut self, actions: &mut Vec<Action>) -> Time {
        self.advance_clocks();
        let mut wake = self.enforce_limits(actions);
        let head = loop {
            let head = self.grant_fitting(actions, &mut wake);
            let ordered = actions.len();
            if let Some(head) = head {
                self.make_room(head, actions, &mut wake);
            }
            // A process that has to answer first keeps no other waiting until it does.
            let is_probe = |action: &Action| matches!(action, Action::Probe { .. });
            if !actions.iter().skip(ordered).any(is_probe) {
                break head;
            }
        };
        self.weir.contended = head.is_some();
        self.report_contention(head.is_some(), actions);
        self.renew(actions, &mut wake);
        if wake == Time::NEVER {
            wake
        } else {
            wake.max(self.now.after(WAKE_STEP))
        }
    }

    fn advance_clocks(&mut self) {
        let now = self.now;
        self.weir.advance(now, &self.settings);
        let mut best_served = None;
        for at in 0..self.table.holding.len() {
            let pod = self.table.listed_mut(self.table.holding[at]).1;
            let request = pod.quota.request();
            if request.is_none() {
                continue;
            }
            let unsettled = pod.unsettled(now);
            if unsettled > Span::ZERO {
                let by = request.time_to_accrue(unsettled);
                pod.fair.expected = pod.fair.clock.after(by);
            }
            best_served = best_served.max(Some(pod.fair.expected));
        }
        self.weir.best_served = best_served;
    }

    fn is_owed(&self, pod: &Pod) -> bool {
        !pod.quota.request().is_none() && pod.fair.expected <= self.weir.virtual_now
    }

    /// Closes holders with an exhausted limit, and returns when the next one will be exhausted.
    fn enforce_limits(&mut self, actions: &mut Vec<Action>) -> Time {
        let (now, slack) = (self.now, self.settings.hand_over);
        let mut wake = Time::NEVER;
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            let (process, pod) = self.table.listed_mut(id);
            if process.phase != Phase::Holding || pod.quota.limit().is_whole() {
                continue;
            }
            let end = pod.limit.exhausted_at(now, pod.unsettled_since, slack);
            if end <= now {
                self.close(id, CloseReason::Limit, actions);
            } else {
                wake = wake.min(end);
            }
        }
        wake
    }

    /// Scans the waiting processes. `lends` includes those that have no credit or have not answered.
    fn survey(&mut self, lends: bool, wake: &mut Time) -> Survey {
        let now = self.now;
        let free = u64::from(self.settings.sm_limit).saturating_sub(self.table.occupied);
        let mut survey = Survey::default();
        for at in 0..self.table.waiting.len() {
            let id = self.table.waiting[at];
            let pod = self.table.listed(id).1;
            let has_request = !pod.quota.request().is_none();
            let clock = pod.fair.expected;
            if has_request {
                self.weir.best_served = self.weir.best_served.max(Some(clock));
            }
            let resumes_at = if lends {
                pod.limit_resumes_at
            } else {
                pod.resumes_at
            };
            let later = resumes_at > now;
            // Another process of the pod may be using up what the limit leaves.
            let now_used_up = pod.holders > 0 && {
                let pod = self.table.listed_mut(id).1;
                let since = pod.unsettled_since;
                pod.limit.exhausted_at(now, since, self.settings.hand_over) <= now
            };
            let (process, pod) = self.table.listed(id);
            let is_absent = !lends && self.is_absent(id);
            if later || now_used_up || pod.stopped || is_absent {
                if later && !pod.stopped {
                    *wake = (*wake).min(resumes_at);
                }
                if is_absent {
                    *wake = (*wake).min(pod.history.doubted_until());
                }
                // The pod does not wait because of others.
                if !is_absent || self.is_pod_absent(process.pod) {
                    self.weir.cap(self.table.listed_mut(id).1);
                }
                continue;
            }
            let place = self.place_of(id, process, pod);
            if survey.first.is_none_or(|first| place < first) {
                survey.second = survey.first.replace(place);
            } else if survey.second.is_none_or(|second| place < second) {
                survey.second = Some(place);
            }
            if has_request {
                let behind = (clock, id);
                if survey.behind.is_none_or(|least| behind < least) {
                    survey.next_behind = survey.behind.replace(behind);
                } else if survey.next_behind.is_none_or(|next| behind < next) {
                    survey.next_behind = Some(behind);
                }
            }
            if u64::from(process.sm) <= free {
                if survey.fitting.is_none_or(|fitting| place < fitting) {
                    survey.fitting = Some(place);
                }
            } else if process
                .overtaken_since
                .is_some_and(|since| now.since(since) >= self.settings.overtaking_max)
                && survey.overdue.is_none_or(|overdue| place < overdue)
            {
                survey.overdue = Some(place);
            }
            if has_request && clock > self.weir.virtual_now {
                let owed_at = now.after(clock.since(self.weir.virtual_now));
                survey.owed_at = Some(survey.owed_at.map_or(owed_at, |at| at.min(owed_at)));
            }
        }
        survey
    }

    /// Grants tokens to all processes that may have one and fit, in order. Returns the first process that may have one
    /// and does not fit.
    fn grant_fitting(&mut self, actions: &mut Vec<Action>, wake: &mut Time) -> Option<ProcessId> {
        let sm_limit = u64::from(self.settings.sm_limit);
        loop {
            let mut survey = self.survey(false, wake);
            let lends = survey.first.is_none() && self.table.holding.is_empty();
            if lends {
                survey = self.survey(true, wake);
            }
            self.weir.kept_clock = survey.behind.map(|(clock, _)| clock);
            let (.., head) = survey.first?;
            let Some(place) = survey.fitting else {
                return Some(head);
            };
            let (.., fitting) = place;
            if !lends && self.probe_first(fitting, actions) {
                continue;
            }
            let mut reason = if self.is_owed(self.table.listed(fitting).1) {
                GrantReason::Guarantee
            } else {
                GrantReason::Surplus
            };
            if fitting != head {
                let overdue = survey.overdue.is_some_and(|overdue| overdue < place);
                if overdue || self.fits_soon(head) {
                    // Once the order has changed, a process that fits may precede it.
                    *wake = (*wake).min(survey.owed_at.unwrap_or(Time::NEVER));
                    return Some(head);
                }
                self.mark_overtaken(place);
                reason = GrantReason::Backfill;
            }
            self.start(fitting, reason, actions, wake);
            // Processes scanned for lack of others do not wait because of one that holds now.
            if self.table.occupied >= sm_limit && !lends {
                // No other process fits, so the others need not be scanned again.
                let left = |&(_, id): &(Time, ProcessId)| id != fitting;
                let behind = survey.behind.filter(left).or(survey.next_behind);
                self.weir.kept_clock = behind.map(|(clock, _)| clock);
                let left = |&(.., id): &TurnOrder| id != fitting;
                let head = survey.first.filter(left).or(survey.second)?;
                return Some(head.3);
            }
        }
    }

    /// Returns whether the holders that are closing leave enough SMs for this process.
    fn fits_soon(&self, id: ProcessId) -> bool {
        let closing: u64 = (self.table.holding.iter())
            .map(|&id| self.table.listed(id).0)
            .filter(|process| process.phase == Phase::Closing)
            .map(|process| u64::from(process.sm))
            .sum();
        let staying = self.table.occupied.saturating_sub(closing);
        let sm = u64::from(self.table.listed(id).0.sm);
        staying + sm <= u64::from(self.settings.sm_limit)
    }

    /// Marks the waiting processes before `place`, whose process gets SMs before them, as overtaken.
    fn mark_overtaken(&mut self, place: TurnOrder) {
        let now = self.now;
        for at in 0..self.table.waiting.len() {
            let id = self.table.waiting[at];
            let (_, pod) = self.table.listed(id);
            let may_run = !pod.stopped && pod.resumes_at <= now && !self.is_absent(id);
            if may_run && self.place(id) < place {
                let process = self.table.listed_mut(id).0;
                process.overtaken_since.get_or_insert(now);
            }
        }
    }

    fn place(&self, id: ProcessId) -> TurnOrder {
        let (process, pod) = self.table.listed(id);
        self.place_of(id, process, pod)
    }

    fn place_of(&self, id: ProcessId, process: &Process, pod: &Pod) -> TurnOrder {
        let owed = self.is_owed(pod);
        let key = if owed {
            pod.fair.expected.0
        } else {
            pod.fair.surplus.0
        };
        (!owed, key, process.since, id)
    }

    fn start(
        &mut self,
        id: ProcessId,
        reason: GrantReason,
        actions: &mut Vec<Action>,
        wake: &mut Time,
    ) {
        let (now, slice_max, slack) = (self.now, self.settings.slice_max, self.settings.hand_over);
        let pod = self.table.listed_mut(id).1;
        if pod.holders == 0 {
            pod.unsettled_since = now;
            self.weir.mark_settled(pod);
        }
        let end = pod.limit.exhausted_at(now, pod.unsettled_since, slack);
        let floor = &mut self.weir.surplus_floor;
        if reason == GrantReason::Surplus {
            *floor = (*floor).max(pod.fair.surplus);
        }
        let until = now.after(slice_max).min(end);
        *wake = (*wake).min(end).min(renewal_at(until, slice_max));
        self.grant(id, until, reason, actions);
    }

    /// Renews the tokens of holders that launch, early enough that none of them has to stop.
    fn renew(&mut self, actions: &mut Vec<Action>, wake: &mut Time) {
        let (now, slice_max, slack) = (self.now, self.settings.slice_max, self.settings.hand_over);
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            let (process, pod) = self.table.listed_mut(id);
            if process.phase != Phase::Holding {
                continue;
            }
            let renewal = renewal_at(process.until, slice_max);
            if renewal > now || !process.active {
                // So that the caller can report by then whether it has launched.
                let look_at = if renewal > now {
                    renewal
                } else {
                    process.until
                };
                if look_at > now {
                    *wake = (*wake).min(look_at);
                }
                continue;
            }
            let end = pod.limit.exhausted_at(now, pod.unsettled_since, slack);
            self.extend(id, now.after(slice_max).min(end), actions);
        }
    }
}
