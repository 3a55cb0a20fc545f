//! Tokens that are held and not used: what they cost, and when they are revoked ([`super::Rule::Weir`]).
//!
//! A process that is stopped, that the kernel throttles, or that requests tokens and never launches holds its SMs while
//! others wait. Three measures bound the loss of its neighbours:
//!
//! - **The pod pays.** Time in which it holds a token while nothing of it is in flight and others wait is charged like
//!   kernel time, beyond [`super::Settings::hand_over`] per token, and is also counted separately
//!   ([`super::Account::held_idle`]).
//! - **The token is passed on.** It is revoked after [`super::Settings::idle_max`] without anything in flight. A
//!   process that has just got its token may be slow to wake up, so it gets up to [`super::Settings::start_max`]. All
//!   such time comes out of a credit of the pod, which grows with [`super::Settings::idle_share_max`] of the time. A
//!   pod without credit waits for its next token until it has some; a pod that repeatedly lets tokens pass unused waits
//!   until it has twice as much each time, so it then gets a longer start. It waits for the sake of others only: if no
//!   process holds a token and no other may have one, it gets one at once.
//! - **A doubted process answers first.** After a revocation or a slow start, for one [`super::Settings::horizon`], the
//!   pod's processes are probed when it is their turn, and no holder is closed for a process that does not answer: that
//!   process is skipped until it does. So a token waits at most once for a process that stands still, and a process
//!   that continues gets its turn as soon as it answers.
//!
//! Work in flight is known only from the process itself. When it should have ended, the process is probed. A process
//! that answers computes for longer than expected and continues. If it does not answer within
//! [`super::Settings::answer_max`], or is known to be stopped, its work in flight is assumed to be over.

use super::table::{Phase, Pod, Process};
use super::{Action, PodId, ProcessId, RevokeReason, Rule, Settings, Tokens, WAKE_STEP, sum};
use crate::{Span, Time};

/// Margin for the end of work in flight: it may take a quarter longer than expected, and begin this much later than
/// reported.
const END_MARGIN: Span = Span::from_millis(1);
/// Assumed duration of work of which nothing was ever measured, also if its process is stopped.
const UNMEASURED_MAX: Span = Span::from_secs(2);
/// Time after which a process is probed again which a probe did not reach.
const RETRY_GAP: Span = Span::from_millis(10);
/// Number of probes of one token that are sent again, since they could not be sent.
const UNREACHED_MAX: u32 = 8;
/// Longest time between two probes of a process that answers.
const PROBE_GAP_MAX: Span = Span::from_millis(50);

/// Known use of one process's token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenUse {
    /// Time since which others have been waiting for its SMs.
    contended_since: Option<Time>,
    /// Time since which the gate of the process is to be shut.
    closing_since: Option<Time>,
    /// Time since which nothing of it has been in flight; `None` if something is, or it is not known.
    idle_since: Option<Time>,
    /// Expected and latest end of what is in flight.
    ends: Option<(Time, Time)>,
    /// Time of the last report about its use.
    seen_at: Time,
    /// Whether the process has launched since it got its token.
    is_used: bool,
    /// Whether the process was found to be stopped since it last launched.
    is_stopped: bool,
    /// Time at which the process was probed, unless it has answered.
    probed_at: Option<Time>,
    /// Time before which the process is not probed again.
    probe_after: Time,
    probe_gap: Span,
    /// Number of probes that could not be sent.
    unreached: u32,
    /// Idle time that this token may still cost without being charged.
    free: Span,
}

/// Known use that a pod makes of its tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenHistory {
    /// Time up to which idle tokens are charged.
    charged_to: Time,
    /// Idle time that the pod's tokens may still cost, in nanoseconds at `credit_at`.
    credit: i64,
    credit_at: Time,
    /// Number of consecutive tokens that passed unused.
    unused: u32,
    /// Time before which the pod gets no token, unless the device would be idle.
    not_before: Time,
    /// Time until which the pod's processes have to answer before they get a token.
    doubted_until: Time,
    /// Kernel time that was charged before it was reported.
    prepaid: Span,
    /// Time until which a report is assumed to concern that time.
    prepaid_until: Time,
}

/// Whether a process is known to be able to use a token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Presence {
    /// Time until which the process's last answer counts. It counts for one grant only.
    answer_counts_to: Time,
    /// Whether the process was probed before a grant and has not answered.
    is_probed: bool,
    /// Time from which it may be probed again, because the probe did not reach it.
    retry_at: Option<Time>,
}

impl Presence {
    /// Begins to wait for a token: a probe which did not reach the process before is forgotten.
    pub(super) const fn begin_wait(&mut self) {
        if self.retry_at.take().is_some() {
            self.is_probed = false;
        }
    }

    /// Begins a token: the next one requires another answer, and another probe if the last one was lost.
    pub(super) fn granted(&mut self) {
        *self = Self::default();
    }
}

impl TokenUse {
    /// Resets the use at the beginning of a token.
    pub(super) fn granted(&mut self, now: Time, settings: &Settings) {
        *self = Self {
            idle_since: Some(now),
            free: settings.hand_over,
            ..Self::default()
        };
    }

    /// Records that the gate of the process is to be shut.
    pub(super) const fn closes(&mut self, now: Time) {
        self.closing_since = Some(now);
    }

    /// Records whether others wait for its SMs.
    pub(super) const fn contend(&mut self, now: Time, contended: bool) {
        self.contended_since = match (contended, self.contended_since) {
            (true, None) => Some(now),
            (true, since) => since,
            (false, _) => None,
        };
    }

    /// Returns since when the process has held its SMs idle while others wait.
    fn wasted_since(&self) -> Option<Time> {
        Some(self.idle_since?.max(self.contended_since?))
    }
}

impl TokenHistory {
    pub(super) fn new(now: Time, settings: &Settings) -> Self {
        Self {
            charged_to: now,
            credit: signed(settings.start_max),
            credit_at: now,
            unused: 0,
            not_before: Time::ZERO,
            doubted_until: Time::ZERO,
            prepaid: Span::ZERO,
            prepaid_until: Time::ZERO,
        }
    }

    /// Returns until when the pod's processes have to answer before they get a token.
    pub(super) const fn doubted_until(&self) -> Time {
        self.doubted_until
    }

    /// Returns the part of a reported `delta` that is still to be charged.
    pub(super) fn unpaid(&mut self, now: Time, delta: Span) -> Span {
        let paid = if now <= self.prepaid_until {
            delta.min(self.prepaid)
        } else {
            Span::ZERO
        };
        self.prepaid = self.prepaid.less(paid);
        delta.less(paid)
    }

    /// Records that `in_flight` is charged before it is reported, as it may be if the process ever continues, within `window`. Returns the
    /// part that an earlier revocation has not charged.
    fn prepay(&mut self, now: Time, in_flight: Span, window: Span) -> Span {
        let unpaid = self.unpaid(now, in_flight);
        if now > self.prepaid_until {
            self.prepaid = Span::ZERO;
        }
        self.prepaid = sum(self.prepaid, in_flight);
        self.prepaid_until = now.after(window);
        unpaid
    }

    fn credit(&self, now: Time, settings: &Settings) -> i64 {
        let grown = settings.idle_share_max.of(now.since(self.credit_at));
        (self.credit.saturating_add(signed(grown))).min(signed(settings.start_max))
    }

    /// Spends credit for a token that was not used, and doubts the pod's processes from now on.
    fn spend(&mut self, now: Time, spent: Span, settings: &Settings) {
        self.doubted_until = now.after(settings.horizon);
        let left = self.credit(now, settings).saturating_sub(signed(spent));
        // Bounded so that no pod waits for longer than it takes to earn one long start.
        self.credit = left.max(-signed(Span(settings.start_max.0 / 2)));
        self.credit_at = now;
    }

    /// Returns how long a token may be held before its first launch.
    fn start(&self, now: Time, settings: &Settings) -> Span {
        let credit = u64::try_from(self.credit(now, settings)).unwrap_or(0);
        settings.idle_max.max(Span(credit))
    }

    /// Records that a token was revoked after `wasted`.
    fn revoked(&mut self, now: Time, wasted: Span, is_used: bool, settings: &Settings) {
        self.spend(now, wasted, settings);
        self.unused = if is_used {
            0
        } else {
            self.unused.saturating_add(1)
        };
        let needed = match self.unused {
            0 => 0,
            times => {
                let longer = settings.idle_max.0.saturating_mul(1 << times.min(32));
                signed(Span(longer.min(settings.start_max.0 / 2)))
            }
        };
        let lacks = u64::try_from(needed.saturating_sub(self.credit)).unwrap_or(0);
        self.not_before = now.after(settings.idle_share_max.time_to_accrue(Span(lacks)));
    }
}

fn signed(span: Span) -> i64 {
    i64::try_from(span.0).unwrap_or(i64::MAX)
}

impl Pod {
    /// Computes when the pod may run again.
    pub(super) fn settle_resume(&mut self, now: Time) {
        self.limit_resumes_at = self.limit.resumes_at(now);
        self.resumes_at = self.limit_resumes_at.max(self.history.not_before);
    }
}

impl Tokens {
    /// Records that nothing of a holder is in flight or being submitted, at least since `since`, which counts from its
    /// grant at the earliest. Ignored for processes without a token.
    pub(super) fn idle(&mut self, now: Time, id: ProcessId, since: Time) {
        self.advance(now);
        self.reports_use = true;
        let now = self.now;
        let Some(process) = self.table.process_mut(id).filter(|p| p.phase.occupies()) else {
            return;
        };
        process.held.seen_at = now;
        let since = since.max(process.since).min(now);
        process.held.idle_since = Some(process.held.idle_since.map_or(since, |at| at.max(since)));
        process.held.ends = None;
        process.unfinished = None;
    }

    /// Records that something of a holder has been in flight or being submitted since `since`, and is expected to take
    /// `expected` in total, or `None` if nothing of the kind was ever measured. Must be called after
    /// [`Tokens::unfinished`]; without this call the work is assumed to last as long as the process reports. Ignored
    /// for processes without a token.
    pub(super) fn busy(&mut self, now: Time, id: ProcessId, since: Time, expected: Option<Span>) {
        self.advance(now);
        self.reports_use = true;
        let now = self.now;
        let (likely, at_most) = match expected {
            Some(expected) => {
                let longer = sum(expected, Span(expected.0 / 4));
                (expected, sum(longer, END_MARGIN))
            }
            None => (UNMEASURED_MAX, UNMEASURED_MAX),
        };
        if let Some(process) = self.table.process_mut(id).filter(|p| p.phase.occupies()) {
            process.held.seen_at = now;
            process.held.idle_since = None;
            process.held.ends = Some((since.after(likely), since.after(at_most)));
        }
    }

    /// Records that a process has answered an [`Action::Probe`].
    pub fn responds(&mut self, now: Time, id: ProcessId) {
        self.advance(now);
        let (now, first) = (self.now, self.settings.answer_max);
        let counts_to = now.after(self.settings.window);
        let Some(process) = self.table.process_mut(id) else {
            return;
        };
        if std::mem::take(&mut process.presence.is_probed) {
            process.presence.retry_at = None;
            process.presence.answer_counts_to = counts_to;
            self.next_wake = self.next_wake.min(now.after(WAKE_STEP));
        }
        if process.held.probed_at.take().is_some() {
            let gap = process.held.probe_gap.max(first);
            process.held.probe_after = now.after(gap);
            process.held.probe_gap = Span(gap.0.saturating_mul(2)).min(PROBE_GAP_MAX);
            process.held.is_stopped = false;
        }
    }

    /// Records that an [`Action::Probe`] could not be sent: the process is probed again instead of counting as silent. A holder which
    /// eight probes of one token do not reach counts as silent all the same: it may have filled its socket by intent.
    pub fn unreached(&mut self, now: Time, id: ProcessId) {
        self.advance(now);
        let retry_at = self.now.after(RETRY_GAP);
        let Some(process) = self.table.process_mut(id) else {
            return;
        };
        if process.presence.is_probed {
            process.presence.retry_at = Some(retry_at);
            self.retries_at = self.retries_at.min(retry_at);
            self.next_wake = self.next_wake.min(retry_at);
        }
        if process.held.probed_at.is_some() && process.held.unreached < UNREACHED_MAX {
            process.held.unreached += 1;
            process.held.probed_at = None;
            process.held.probe_after = retry_at;
            self.next_wake = self.next_wake.min(retry_at);
        }
    }

    /// Lets processes be probed again which a probe did not reach.
    pub(super) fn retry_probes(&mut self) {
        if self.retries_at > self.now {
            return;
        }
        self.retries_at = Time::NEVER;
        for at in 0..self.table.waiting.len() {
            let id = self.table.waiting[at];
            let presence = &mut self.table.listed_mut(id).0.presence;
            match presence.retry_at {
                Some(at) if at <= self.now => {
                    presence.retry_at = None;
                    presence.is_probed = false;
                }
                Some(at) => self.retries_at = self.retries_at.min(at),
                None => {}
            }
        }
    }

    /// Records that a process is stopped, so it does nothing until it is continued, and its probe needs no answer.
    pub fn stopped(&mut self, now: Time, id: ProcessId) {
        self.advance(now);
        if let Some(process) = self.table.process_mut(id).filter(|p| p.phase.occupies()) {
            process.held.is_stopped = true;
            self.next_wake = self.next_wake.min(self.now.after(WAKE_STEP));
        }
    }

    /// Records that a holder has launched.
    pub(super) fn launched(&mut self, id: ProcessId) {
        let (now, settings) = (self.now, self.settings);
        let Some(process) = self.table.process(id).filter(|p| p.phase.occupies()) else {
            return;
        };
        let (was_used, since) = (process.held.is_used, process.held.wasted_since());
        let (process, pod) = self.table.listed_mut(id);
        let held = &mut process.held;
        held.is_used = true;
        held.idle_since = None;
        held.is_stopped = false;
        held.probed_at = None;
        held.probe_gap = Span::ZERO;
        pod.history.unused = 0;
        let waited = since.map_or(Span::ZERO, |since| now.since(since));
        // The exact time of the launch is not known: what may be the time between two reports costs no credit.
        if !was_used && waited > settings.idle_max {
            pod.history.spend(now, waited, &settings);
        }
    }

    /// Returns whether a waiting process is skipped, because it was probed and has not answered.
    pub(super) fn is_absent(&self, id: ProcessId) -> bool {
        self.listed_is_doubted(id) && self.table.listed(id).0.presence.is_probed
    }

    /// Returns whether none of a pod's processes holds a token and all that wait are skipped.
    pub(super) fn is_pod_absent(&self, id: PodId) -> bool {
        let table = &self.table;
        let is_absent =
            |&other: &ProcessId| table.listed(other).0.pod != id || self.is_absent(other);
        table.pod(id).is_some_and(|pod| pod.holders == 0) && table.waiting.iter().all(is_absent)
    }

    /// Probes a waiting process whose turn it is, if it has to answer before it gets a token, and returns whether it
    /// has to.
    pub(super) fn probe_first(&mut self, id: ProcessId, actions: &mut Vec<Action>) -> bool {
        let presence = self.table.listed(id).0.presence;
        if !self.listed_is_doubted(id) || presence.answer_counts_to > self.now {
            return false;
        }
        if !presence.is_probed {
            self.table.listed_mut(id).0.presence.is_probed = true;
            actions.push(Action::Probe { process: id });
        }
        true
    }

    fn listed_is_doubted(&self, id: ProcessId) -> bool {
        self.takes_back() && self.table.listed(id).1.history.doubted_until > self.now
    }

    fn takes_back(&self) -> bool {
        self.reports_use && self.settings.rule == Rule::Weir
    }

    /// Charges pods for tokens that they hold and do not use while others wait.
    pub(super) fn charge_idle(&mut self) {
        if !self.takes_back() {
            return;
        }
        for at in 0..self.table.holding.len() {
            let id = self.table.holding[at];
            self.charge_idle_of(id);
        }
    }

    fn charge_idle_of(&mut self, id: ProcessId) {
        let now = self.now;
        let (process, pod) = self.table.listed(id);
        let Some(since) = process.held.wasted_since() else {
            return;
        };
        // Another process of the pod computes, so the pod is already charged.
        let pod_id = process.pod;
        let others = pod.holders > 1
            && self.table.holding.iter().any(|&other| {
                let other = self.table.listed(other).0;
                other.pod == pod_id && other.held.idle_since.is_none()
            });
        let (process, pod) = self.table.listed_mut(id);
        let from = since.max(pod.history.charged_to);
        pod.history.charged_to = now;
        if others {
            return;
        }
        let idle = now.since(from);
        let free = idle.min(process.held.free);
        process.held.free = process.held.free.less(free);
        let charged = idle.less(free);
        if charged > Span::ZERO {
            pod.account.held_idle = sum(pod.account.held_idle, charged);
            self.charge(pod_id, charged);
        }
    }

    /// Charges a pod for time that it has not reported as kernel time.
    fn charge(&mut self, id: PodId, delta: Span) {
        let now = self.now;
        self.weir.advance(now, &self.settings);
        if let Some(pod) = self.table.pod_mut(id) {
            pod.account.charged = sum(pod.account.charged, delta);
            pod.limit.charge(now, delta);
            self.weir.charge(pod, delta);
            // The time is charged, so it must not be expected as well.
            pod.unsettled_since = now;
        }
    }

    /// Charges the pod of a dead process for what was in flight at its end.
    pub(super) fn charge_unreported(&mut self, id: ProcessId) {
        if !self.takes_back() {
            return;
        }
        self.charge_idle_of(id);
        let now = self.now;
        let in_flight = self.unreported(id, now);
        let (process, pod) = self.table.listed_mut(id);
        let pod_id = process.pod;
        // A revocation may have charged some of it.
        let charged = pod.history.unpaid(now, in_flight);
        if charged > Span::ZERO {
            self.charge(pod_id, charged);
        }
    }

    /// Returns the time until `end` in which work of a process was in flight without being reported, and neither was other work of the pod beside
    /// it. Zero if other processes of the pod hold tokens, since their reports contain it.
    fn unreported(&self, id: ProcessId, end: Time) -> Span {
        let (process, pod) = self.table.listed(id);
        match (process.unfinished, pod.holders) {
            (Some(since), 1) => {
                let likely = process.held.ends.map_or(end, |(likely, _)| likely.min(end));
                pod.unreported(since, likely, end)
            }
            _ => Span::ZERO,
        }
    }

    /// Revokes unused tokens for which others wait, and probes processes with work that should have ended.
    pub(super) fn take_back(&mut self, actions: &mut Vec<Action>) {
        if !self.takes_back() {
            return;
        }
        let now = self.now;
        let mut at = 0;
        while let Some(&id) = self.table.holding.get(at) {
            let process = self.table.listed(id).0;
            match self.taken_back_at(id) {
                // Not by an older report: the process may have launched since.
                Some((due, reason)) if due <= process.held.seen_at => {
                    // Another process takes its index in the list.
                    self.revoke(id, reason, actions);
                    continue;
                }
                _ => {}
            }
            if process
                .probe_at(&self.settings)
                .is_some_and(|due| due <= now)
            {
                self.table.listed_mut(id).0.held.probed_at = Some(now);
                actions.push(Action::Probe { process: id });
            }
            at += 1;
        }
    }

    /// Returns when [`Tokens::take_back`] next has something to do.
    pub(super) fn next_take_back(&self) -> Time {
        let mut next = Time::NEVER;
        if !self.takes_back() {
            return next;
        }
        let soon = self.now.after(self.settings.idle_max);
        for &id in &self.table.holding {
            let (process, _) = self.table.listed(id);
            if let Some((due, _)) = self.taken_back_at(id) {
                // A slow start is followed closely, so that its cost is known. If nothing new was reported by the due
                // time, the token is checked again later.
                next = next.min(if due <= process.held.seen_at {
                    self.now
                } else if due <= self.now {
                    soon
                } else {
                    due.min(soon)
                });
            }
            if let Some(due) = process.probe_at(&self.settings) {
                next = next.min(due);
            }
        }
        next
    }

    /// Returns when a token is to be revoked unless its holder reports something before, and why.
    fn taken_back_at(&self, id: ProcessId) -> Option<(Time, RevokeReason)> {
        let settings = &self.settings;
        let (process, pod) = self.table.listed(id);
        let held = &process.held;
        let contended_since = held.contended_since?;
        if let Some(since) = held.wasted_since() {
            let since = since.max(held.closing_since.unwrap_or(since));
            let patience = if held.is_stopped {
                Span::ZERO
            } else if held.is_used || process.phase == Phase::Closing {
                settings.idle_max
            } else {
                pod.history.start(since, settings)
            };
            return Some((since.after(patience), RevokeReason::Idle));
        }
        let ends = held.ends?.1.max(contended_since);
        let answer_by = if held.is_stopped {
            ends
        } else {
            // Once the process has answered, its work is known to take longer than expected, and there is no hurry.
            held.probed_at?
                .after(settings.answer_max.max(held.probe_gap))
        };
        Some((ends.max(answer_by), RevokeReason::Unresponsive))
    }

    fn revoke(&mut self, id: ProcessId, reason: RevokeReason, actions: &mut Vec<Action>) {
        let (now, settings) = (self.now, self.settings);
        let in_flight = self.unreported(id, now);
        let (process, pod) = self.table.listed_mut(id);
        let (phase, pod_id, sm) = (process.phase, process.pod, process.sm);
        let (asks_again, held) = (process.asks_again, process.held);
        // Time since which nothing ran, as far as is known.
        let ended = held.ends.map(|(likely, _)| likely);
        let idle_since = held.idle_since.or(ended).unwrap_or(now);
        let waste_begins = idle_since
            .max(held.contended_since.unwrap_or(now))
            .max(held.closing_since.unwrap_or(Time::ZERO));
        let wasted = now.since(waste_begins);
        let is_used = held.is_used || phase == Phase::Closing;
        pod.history.revoked(now, wasted, is_used, &settings);
        pod.account.revoked += 1;
        let is_leaving = pod.leaving;
        if in_flight > Span::ZERO {
            let charged = pod.history.prepay(now, in_flight, settings.window);
            self.charge(pod_id, charged);
        }
        // Time after what was in flight; for a process known to be idle it is already charged.
        let (_, pod) = self.table.listed_mut(id);
        if held.idle_since.is_none() && pod.holders == 1 {
            let from = waste_begins.max(pod.history.charged_to);
            pod.history.charged_to = now;
            let charged = now.since(from).less(held.free);
            pod.account.held_idle = sum(pod.account.held_idle, charged);
            self.charge(pod_id, charged);
        }
        if phase == Phase::Holding {
            self.weir.pay_hand_over(sm, &settings);
        }
        self.table.enter(now, id, Phase::Idle);
        actions.push(Action::Revoke {
            process: id,
            reason,
        });
        if is_leaving {
            self.table.remove_process(now, id);
        } else if asks_again {
            self.wait(id);
        }
    }
}

impl Process {
    /// Returns when the process is to be probed.
    fn probe_at(&self, settings: &Settings) -> Option<Time> {
        let held = &self.held;
        let contended_since = held.contended_since?;
        if held.idle_since.is_some() || held.probed_at.is_some() || held.is_stopped {
            return None;
        }
        // Early enough that the answer is there when the work should have ended.
        let early = held.ends?.1.before(settings.answer_max);
        Some(early.max(contended_since).max(held.probe_after))
    }
}
