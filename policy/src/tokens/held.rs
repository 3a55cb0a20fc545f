//! Tokens that are held and not used: what they cost, and when they are taken back ([`super::Rule::Weir`]).
//!
//! A process that is stopped, that the kernel throttles, or that asks and never launches holds its SMs against those that wait.
//! Two things bound what its neighbours lose:
//!
//! - **The pod pays.** Time in which it holds a token while nothing of it is in flight and others wait is charged like kernel time,
//!   beyond [`super::Settings::hand_over`] a token, and is counted apart ([`super::Account::held_idle`]).
//! - **The token goes on.** After [`super::Settings::idle_max`] without anything in flight it is revoked. A process that has just
//!   got its token may be slow to wake: it gets up to [`super::Settings::start_max`]. All such time comes out of a credit of the pod,
//!   which grows with [`super::Settings::idle_share_max`] of the time; a pod without credit waits for its next token until it has
//!   some, and one that lets tokens pass unused until it has twice as much each time, so that it gets a longer start then. It waits
//!   for the sake of others: where no process holds a token and no other may have one, it gets it at once.
//! - **A doubted process answers first.** After a revocation or a slow start, for one [`super::Settings::horizon`], the pod's
//!   processes are probed when their turn has come, and nobody is closed for one that does not answer: it is passed over until it
//!   does. So a token waits for a process that stands still at most once, and one that goes on gets its turn as soon as it answers.
//!
//! Work in flight is known only from the process itself. When it should have ended, the process is probed. One that answers
//! computes longer than expected and goes on; of one that does not answer within [`super::Settings::answer_max`], or that is known to be
//! stopped, what was in flight is taken to be over.

use super::table::{Phase, Pod, Process};
use super::{Action, PodId, ProcessId, RevokeReason, Rule, Settings, Tokens, WAKE_STEP, sum};
use crate::{Span, Time};

/// Work in flight may take a quarter longer than expected, and begin this much later than it was reported, before it should be over.
const END_MARGIN: Span = Span::from_millis(1);
/// How long work is taken to last of which nothing was ever measured, also where its process is stopped.
const UNMEASURED_MAX: Span = Span::from_secs(2);
/// The longest time between two probes of a process that answers.
const PROBE_GAP_MAX: Span = Span::from_millis(50);

/// What is known of the use of one process's token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    /// Since when others wait for its SMs.
    contended_since: Option<Time>,
    /// Since when its gate is to be shut.
    closing_since: Option<Time>,
    /// Since when nothing of it is in flight; `None`: something is, or nothing is known.
    idle_since: Option<Time>,
    /// When what is in flight is expected to end, and when it should have ended at the latest.
    ends: Option<(Time, Time)>,
    /// When its use was last reported.
    seen_at: Time,
    /// It has launched since it got its token.
    is_used: bool,
    /// It has been seen to be stopped since it last launched.
    is_stopped: bool,
    /// When it was asked for a sign of life, unless it has answered.
    probed_at: Option<Time>,
    /// No probe before then.
    probe_after: Time,
    probe_gap: Span,
    /// Idle time that this token may still cost without being charged.
    free: Span,
}

/// What is known of a pod's use of its tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habit {
    /// Time up to which idle tokens are charged.
    charged_to: Time,
    /// Idle time that the pod's tokens may still cost, in nanoseconds at `credit_at`.
    credit: i64,
    credit_at: Time,
    /// Tokens in a row that passed unused.
    unused: u32,
    /// No token before then, unless the device would be idle.
    not_before: Time,
    /// Until then its processes have to answer before they get a token.
    doubted_until: Time,
    /// Kernel time that was charged before it was reported.
    prepaid: Span,
    /// Until when a report is taken for one of that time.
    prepaid_until: Time,
}

/// Whether a process is known to be there to use a token.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Presence {
    /// Its last answer counts for one grant, and no longer than this.
    answer_counts_to: Time,
    /// It has been probed before a grant and has not answered.
    is_probed: bool,
}

impl Presence {
    /// A token begins: the next takes another answer, and another probe where the last was lost.
    pub(super) fn granted(&mut self) {
        *self = Self::default();
    }
}

impl Use {
    /// A token begins.
    pub(super) fn granted(&mut self, now: Time, settings: &Settings) {
        *self = Self {
            idle_since: Some(now),
            free: settings.hand_over,
            ..Self::default()
        };
    }

    /// Its gate is to be shut.
    pub(super) const fn closes(&mut self, now: Time) {
        self.closing_since = Some(now);
    }

    /// Whether others wait for its SMs.
    pub(super) const fn contend(&mut self, now: Time, contended: bool) {
        self.contended_since = match (contended, self.contended_since) {
            (true, None) => Some(now),
            (true, since) => since,
            (false, _) => None,
        };
    }

    /// Since when it holds its SMs idle while others wait.
    fn wasted_since(&self) -> Option<Time> {
        Some(self.idle_since?.max(self.contended_since?))
    }
}

impl Habit {
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

    /// Until when the pod's processes have to answer before they get a token.
    pub(super) const fn doubted_until(&self) -> Time {
        self.doubted_until
    }

    /// Returns what of a reported `delta` is still to be charged.
    pub(super) fn unpaid(&mut self, now: Time, delta: Span) -> Span {
        let paid = if now <= self.prepaid_until {
            delta.min(self.prepaid)
        } else {
            Span::ZERO
        };
        self.prepaid = self.prepaid.less(paid);
        delta.less(paid)
    }

    fn credit(&self, now: Time, settings: &Settings) -> i64 {
        let grown = settings.idle_share_max.of(now.since(self.credit_at));
        (self.credit.saturating_add(signed(grown))).min(signed(settings.start_max))
    }

    /// Spends credit for a token that stood unused, and doubts the pod's processes from now on.
    fn spend(&mut self, now: Time, spent: Span, settings: &Settings) {
        self.doubted_until = now.after(settings.horizon);
        let left = self.credit(now, settings).saturating_sub(signed(spent));
        // So that no pod waits for longer than it takes to earn one long start.
        self.credit = left.max(-signed(Span(settings.start_max.0 / 2)));
        self.credit_at = now;
    }

    /// How long a token may be held before its first launch.
    fn start(&self, now: Time, settings: &Settings) -> Span {
        let credit = u64::try_from(self.credit(now, settings)).unwrap_or(0);
        settings.idle_max.max(Span(credit))
    }

    /// A token was revoked after `wasted`.
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
    /// Finds out from when on it may run again.
    pub(super) fn settle_resume(&mut self, now: Time) {
        self.limit_resumes_at = self.limit.resumes_at(now);
        self.resumes_at = self.limit_resumes_at.max(self.habit.not_before);
    }
}

impl Tokens {
    /// Nothing of a holder is in flight or under way, at least since `since`, which counts from its grant on.
    /// Ignored for processes without a token.
    pub fn idle(&mut self, now: Time, id: ProcessId, since: Time) {
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

    /// Something of a holder has been in flight or under way since `since`, and is expected to take `expected` in all; `None`: nothing
    /// of the kind was ever measured. Called after [`Tokens::unfinished`]; without it the work is taken to last as long as the process
    /// says. Ignored for processes without a token.
    pub fn busy(&mut self, now: Time, id: ProcessId, since: Time, expected: Option<Span>) {
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

    /// A process has answered an [`Action::Probe`].
    pub fn responds(&mut self, now: Time, id: ProcessId) {
        self.advance(now);
        let (now, first) = (self.now, self.settings.answer_max);
        let counts_to = now.after(self.settings.window);
        let Some(process) = self.table.process_mut(id) else {
            return;
        };
        if std::mem::take(&mut process.presence.is_probed) {
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

    /// A process does nothing until it is continued, and its probe needs no answer.
    pub fn stopped(&mut self, now: Time, id: ProcessId) {
        self.advance(now);
        if let Some(process) = self.table.process_mut(id).filter(|p| p.phase.occupies()) {
            process.held.is_stopped = true;
            self.next_wake = self.next_wake.min(self.now.after(WAKE_STEP));
        }
    }

    /// A holder has launched.
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
        pod.habit.unused = 0;
        let waited = since.map_or(Span::ZERO, |since| now.since(since));
        // When exactly it launched is not known: what may be the time between two looks costs no credit.
        if !was_used && waited > settings.idle_max {
            pod.habit.spend(now, waited, &settings);
        }
    }

    /// Whether a waiting process is passed over, since it was probed and has not answered.
    pub(super) fn is_absent(&self, id: ProcessId) -> bool {
        self.listed_is_doubted(id) && self.table.listed(id).0.presence.is_probed
    }

    /// Returns whether none of a pod's processes holds a token and all that wait are passed over.
    pub(super) fn is_pod_absent(&self, id: PodId) -> bool {
        let table = &self.table;
        let is_absent =
            |&other: &ProcessId| table.listed(other).0.pod != id || self.is_absent(other);
        table.pod(id).is_some_and(|pod| pod.holders == 0) && table.waiting.iter().all(is_absent)
    }

    /// Probes a waiting process whose turn has come, if it has to answer before it gets a token; returns whether it has to.
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
        self.takes_back() && self.table.listed(id).1.habit.doubted_until > self.now
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
        // Another process of the pod computes, so the pod is charged already.
        let pod_id = process.pod;
        let others = pod.holders > 1
            && self.table.holding.iter().any(|&other| {
                let other = self.table.listed(other).0;
                other.pod == pod_id && other.held.idle_since.is_none()
            });
        let (process, pod) = self.table.listed_mut(id);
        let from = since.max(pod.habit.charged_to);
        pod.habit.charged_to = now;
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
        self.weir.go_on(now, &self.settings);
        if let Some(pod) = self.table.pod_mut(id) {
            pod.limit.charge(now, delta);
            self.weir.charge(pod, delta);
            // It is charged, so it is not expected as well.
            pod.unsettled_since = now;
        }
    }

    /// Charges the pod of a dead process for what was in flight to its end.
    pub(super) fn charge_unreported(&mut self, id: ProcessId) {
        if !self.takes_back() {
            return;
        }
        self.charge_idle_of(id);
        let in_flight = self.unreported(id, self.now);
        if in_flight > Span::ZERO {
            self.charge(self.table.listed(id).0.pod, in_flight);
        }
    }

    /// Returns the time until `end` in which work of a process was in flight and which was not reported. Zero where other processes
    /// of the pod hold tokens: their reports contain it.
    fn unreported(&self, id: ProcessId, end: Time) -> Span {
        let (process, pod) = self.table.listed(id);
        match (process.unfinished, pod.holders) {
            (Some(since), 1) => {
                let end = process.held.ends.map_or(end, |(likely, _)| likely.min(end));
                end.since(since.max(pod.unsettled_since))
            }
            _ => Span::ZERO,
        }
    }

    /// Takes tokens back that others wait for and that are not used, and probes processes whose work should have ended.
    pub(super) fn take_back(&mut self, actions: &mut Vec<Action>) {
        if !self.takes_back() {
            return;
        }
        let now = self.now;
        let mut at = 0;
        while let Some(&id) = self.table.holding.get(at) {
            let process = self.table.listed(id).0;
            match self.taken_back_at(id) {
                // Not on the word of an older look: it may have launched since.
                Some((due, reason)) if due <= process.held.seen_at => {
                    // Another takes its place in the list.
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

    /// When [`Tokens::take_back`] next has something to do.
    pub(super) fn next_take_back(&self) -> Time {
        let mut next = Time::NEVER;
        if !self.takes_back() {
            return next;
        }
        let soon = self.now.after(self.settings.idle_max);
        for &id in &self.table.holding {
            let (process, _) = self.table.listed(id);
            if let Some((due, _)) = self.taken_back_at(id) {
                // A slow start is followed closely, so that what it has cost is known; and where nothing new was reported by the time
                // that it was due, it is looked again later.
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

    /// When a token is to be taken back, if nothing is heard of its holder before, and why.
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
                pod.habit.start(since, settings)
            };
            return Some((since.after(patience), RevokeReason::Idle));
        }
        let ends = held.ends?.1.max(contended_since);
        let answer_by = if held.is_stopped {
            ends
        } else {
            // Once it has answered, its work is known to take longer than expected, and there is no hurry.
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
        // From when on nothing ran, as far as is known.
        let ended = held.ends.map(|(likely, _)| likely);
        let idle_since = held.idle_since.or(ended).unwrap_or(now);
        let waste_begins = idle_since
            .max(held.contended_since.unwrap_or(now))
            .max(held.closing_since.unwrap_or(Time::ZERO));
        let wasted = now.since(waste_begins);
        let is_used = held.is_used || phase == Phase::Closing;
        pod.habit.revoked(now, wasted, is_used, &settings);
        pod.account.revoked += 1;
        let is_leaving = pod.leaving;
        if in_flight > Span::ZERO {
            // A report comes when the process goes on, if ever.
            if now > pod.habit.prepaid_until {
                pod.habit.prepaid = Span::ZERO;
            }
            pod.habit.prepaid = sum(pod.habit.prepaid, in_flight);
            pod.habit.prepaid_until = now.after(settings.window);
            self.charge(pod_id, in_flight);
        }
        // Time after what was in flight; of a process that was seen to be idle it is charged already.
        let (_, pod) = self.table.listed_mut(id);
        if held.idle_since.is_none() && pod.holders == 1 {
            let from = waste_begins.max(pod.habit.charged_to);
            pod.habit.charged_to = now;
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
    /// When it is to be asked for a sign of life.
    fn probe_at(&self, settings: &Settings) -> Option<Time> {
        let held = &self.held;
        let contended_since = held.contended_since?;
        if held.idle_since.is_some() || held.probed_at.is_some() || held.is_stopped {
            return None;
        }
        // So early that the answer is there when the work should have ended.
        let early = held.ends?.1.before(settings.answer_max);
        Some(early.max(contended_since).max(held.probe_after))
    }
}
