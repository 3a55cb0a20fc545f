//! A slot: its scheduler, and what is done of what it says.

use std::collections::HashMap;
use std::sync::Arc;

use policy::tokens::{Action, PodId, ProcessId, Rule, Settings, Tokens};
use policy::{Span, Time};

use protocol::message::FromAgent;

use super::pod::Served;
use super::process::Process;
use super::roster;
use crate::config::TokenSettings;
use crate::state::{PodKey, Slot, SlotKind};

/// So long a slot waits, after the agent has come, for processes that were there before it to say hello.
pub(super) const HELLO_MAX_NS: u64 = 2_000_000_000;
/// And so long for the pods themselves to be found.
pub(super) const FIRST_LOOK_NS: u64 = 300_000_000;

/// A slot and who computes on it.
#[derive(Debug)]
pub(super) struct Shared {
    /// What is known of it.
    pub(super) slot: Arc<Slot>,
    /// Who computes when.
    pub(super) tokens: Tokens,
    /// Nothing is granted: it is lost.
    pub(super) is_lost: bool,
    /// Whether its MPS daemon answers, and what is to be said of it.
    pub(super) mps: (bool, String),
    /// Until when nothing is granted, since processes of an agent before may compute.
    pub(super) frozen_until: Option<u64>,
    /// Until when pods that were there may not have been found yet.
    pub(super) first_look_until: u64,
    /// Asked while nothing was granted.
    pub(super) asked_early: Vec<ProcessId>,
    /// Tokens given.
    pub(super) grants: u64,
    /// Time in which the device was idle while a token went from one process to another.
    pub(super) idle_ns: u64,
    /// Wall time in which a kernel ran, over all pods: what the union of their times is at most.
    pub(super) busy: protocol::union::Union,
    actions: Vec<Action>,
}

/// What is needed to carry out what a scheduler says.
pub(super) struct Hands<'a> {
    pub(super) processes: &'a mut HashMap<u32, Process>,
    pub(super) pods: &'a mut HashMap<PodKey, Served>,
    pub(super) now: u64,
}

impl Shared {
    /// A slot without pods.
    pub(super) fn new(
        slot: Arc<Slot>,
        settings: &TokenSettings,
        now: u64,
    ) -> Result<Self, policy::tokens::SettingsError> {
        let tokens = Tokens::new(rules(settings, slot.kind))?;
        Ok(Self {
            slot,
            tokens,
            is_lost: false,
            mps: (false, "was not started yet".to_owned()),
            frozen_until: Some(now.saturating_add(FIRST_LOOK_NS)),
            first_look_until: now.saturating_add(FIRST_LOOK_NS),
            asked_early: Vec::new(),
            grants: 0,
            idle_ns: 0,
            busy: protocol::union::Union::new(),
            actions: Vec::new(),
        })
    }

    /// Work that each process of a pod may have in flight, in microseconds as a page states it.
    pub(super) fn inflight_us(&self, pod: PodId, now: u64) -> u32 {
        let micros = self.tokens.in_flight(Time(now), pod).0 / 1_000;
        u32::try_from(micros.clamp(1, u64::from(u32::MAX >> 1))).unwrap_or(1)
    }

    /// Tells the scheduler what the processes of the slot have used.
    pub(super) fn settle(&mut self, hands: &mut Hands<'_>) {
        let now = hands.now;
        for served in hands.pods.values_mut() {
            if served.pod.slot == self.slot.key && served.holders > 0 {
                self.settle_pod(served, hands.processes, now);
            }
        }
    }

    /// The same of one pod.
    pub(super) fn settle_pod(
        &mut self,
        served: &mut Served,
        processes: &mut HashMap<u32, Process>,
        now: u64,
    ) {
        let attached = served
            .processes
            .iter()
            .filter(|id| {
                let process = processes.get(&id.0);
                process.is_some_and(|process| process.attached.is_some())
            })
            .count();
        let (at, pod) = (Time(now), served.id());
        let mut used = Span::ZERO;
        for id in &served.processes {
            let Some(process) = processes.get_mut(&id.0) else {
                continue;
            };
            let is_lost = process.lost_at.is_some();
            let before = process.attached.as_ref().map_or(0, |a| a.seen.busy_until);
            let found = served.time.settle(process, attached < 2, now);
            let Some(attached) = &mut process.attached else {
                continue;
            };
            let counters = &mut served.counters;
            if found.pod_ns > 0 {
                counters.used_wall_ns = counters.used_wall_ns.saturating_add(found.pod_ns);
                counters.asked_ns = counters.asked_ns.saturating_add(found.pod_ns);
                used.0 = used.0.saturating_add(found.pod_ns);
            }
            if found.own_ns > 0 {
                let sms =
                    u128::from(self.slot.sms.unwrap_or(1)) * u128::from(attached.sm_hundredths);
                let sm_ns = u128::from(found.own_ns) * sms / 10_000;
                let sm_ns = u64::try_from(sm_ns).unwrap_or(u64::MAX);
                counters.used_sm_ns = counters.used_sm_ns.saturating_add(sm_ns);
                let until = attached.seen.busy_until.max(before);
                if until > 0 {
                    let _fresh = self.busy.add(until.saturating_sub(found.own_ns), until);
                }
            }
            self.tokens
                .unfinished(at, *id, found.unfinished_since.map(Time));
            if found.is_active {
                self.tokens.active(at, *id);
            }
            match attached.in_flight_since(found.unfinished_since, found.is_active, now) {
                // Without a connection it cannot be asked, and may have opened its gate for want of an agent.
                Some(_) if is_lost => {}
                Some(since) => {
                    self.tokens.unfinished(at, *id, Some(Time(since)));
                    self.tokens.busy(at, *id, Time(since), attached.expected());
                }
                None => self.tokens.idle(at, *id, Time(attached.seen.idle_at)),
            }
            attached.count(counters);
        }
        // After what is unfinished: the scheduler takes all before that for told, and what is told twice would count twice
        // until the next time. Nothing is told of a holder that says nothing, whose time goes on counting.
        if used > Span::ZERO {
            self.tokens.used(at, pod, used);
        }
    }

    /// Lets the scheduler decide, and carries out what it says.
    pub(super) fn decide(&mut self, hands: &mut Hands<'_>) {
        // Who asks while nothing is granted is not known to the scheduler yet, so that it can only close and extend.
        self.settle(hands);
        let mut actions = std::mem::take(&mut self.actions);
        self.tokens.wake(Time(hands.now), &mut actions);
        self.carry_out(&mut actions, hands);
        self.actions = actions;
    }

    /// Tells the scheduler something and carries out what it says to it.
    pub(super) fn tell(
        &mut self,
        hands: &mut Hands<'_>,
        event: impl FnOnce(&mut Tokens, Time, &mut Vec<Action>),
    ) {
        let mut actions = std::mem::take(&mut self.actions);
        event(&mut self.tokens, Time(hands.now), &mut actions);
        self.carry_out(&mut actions, hands);
        self.actions = actions;
    }

    fn carry_out(&mut self, actions: &mut Vec<Action>, hands: &mut Hands<'_>) {
        let mut ask_again = Vec::new();
        self.carry_out_each(actions, hands, &mut ask_again);
        // A new token is not revoked before it could have been used, so this comes to an end.
        while let Some(id) = ask_again.pop() {
            let mut more = Vec::new();
            self.tokens.ask(Time(hands.now), id, &mut more);
            self.carry_out_each(&mut more, hands, &mut ask_again);
        }
    }

    fn carry_out_each(
        &mut self,
        actions: &mut Vec<Action>,
        hands: &mut Hands<'_>,
        ask_again: &mut Vec<ProcessId>,
    ) {
        let now = hands.now;
        for action in actions.drain(..) {
            let id = match action {
                Action::Grant { process, .. }
                | Action::Extend { process, .. }
                | Action::Close { process, .. }
                | Action::Contended { process, .. }
                | Action::Probe { process }
                | Action::Revoke { process, .. } => process,
            };
            let Some(process) = hands.processes.get_mut(&id.0) else {
                continue;
            };
            let (pod, pid) = (process.pod, process.pid);
            let is_lost = process.lost_at.is_some();
            if let Action::Probe { .. } = action {
                // One that cannot be asked does not answer.
                let _said = process.say(&FromAgent::Probe);
                if roster::is_stopped(pid) {
                    self.tokens.stopped(Time(now), id);
                }
                continue;
            }
            let inflight = self.inflight_us(PodId(pod.0), now);
            let Some(attached) = &mut process.attached else {
                continue;
            };
            match action {
                Action::Grant { until, .. } => {
                    let waited = attached.since.map_or(0, |since| now.saturating_sub(since));
                    attached.open(until.0, inflight, now);
                    self.grants += 1;
                    if let Some(served) = hands.pods.get_mut(&pod) {
                        served.count_time(now);
                        served.holders += 1;
                        served.waiters = served.waiters.saturating_sub(1);
                        served.counters.grants += 1;
                        served.counters.waits.observe(waited);
                    }
                }
                Action::Extend { until, .. } => attached.extend(until.0, inflight),
                Action::Close { .. } => attached.shut(now),
                Action::Contended { contended, .. } => {
                    attached.contended(contended, inflight, now);
                }
                Action::Probe { .. } => {}
                Action::Revoke { reason, .. } => {
                    let idle_since = match attached.seen.idle_at {
                        0 => attached.seen.busy_until,
                        since => since,
                    };
                    let contended_since = attached.contended_since.or(attached.closing_since);
                    let from = idle_since.max(contended_since.unwrap_or(now));
                    self.idle_ns = self.idle_ns.saturating_add(now.saturating_sub(from));
                    // One that is lost could not be given another.
                    let asks_again = attached.revoke() && !is_lost;
                    if asks_again {
                        attached.since = Some(now);
                        ask_again.push(id);
                    }
                    if let Some(served) = hands.pods.get_mut(&pod) {
                        served.count_time(now);
                        served.holders = served.holders.saturating_sub(1);
                        served.waiters += u32::from(asks_again);
                        served.counters.revoked(reason);
                    }
                }
            }
            tracing::trace!(slot = self.slot.key.0, pid, ?action, "token");
        }
    }

    /// When it next has something to do, in nanoseconds.
    pub(super) fn next(&self) -> Option<u64> {
        let own = self.tokens.next_wake().map(|time| time.0);
        own.into_iter().chain(self.frozen_until).min()
    }
}

/// The scheduler's settings: one that is not shared belongs to whoever came first.
fn rules(settings: &TokenSettings, kind: SlotKind) -> Settings {
    let span = |span: std::time::Duration| Span(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    let rule = match kind {
        SlotKind::Exclusive => Rule::Exclusive,
        SlotKind::Mps => match settings.rule {
            crate::config::Rule::Weir => Rule::Weir,
            crate::config::Rule::Paper => Rule::Paper,
            crate::config::Rule::TimeOnly => Rule::TimeOnly,
            crate::config::Rule::Exclusive => Rule::Exclusive,
            crate::config::Rule::Racing => Rule::Racing,
            crate::config::Rule::ReactiveBucket => Rule::ReactiveBucket,
        },
    };
    let scale = u64::from(settings.time_scale.max(1));
    let default = Settings::default();
    Settings {
        sm_limit: settings.sm_limit_hundredths,
        rule,
        window: span(settings.window),
        horizon: span(settings.horizon),
        in_flight: span(settings.inflight),
        in_flight_alone: span(settings.inflight_alone),
        cycle: span(settings.cycle),
        slice_min: span(settings.slice_min),
        slice_max: span(settings.slice_max),
        overtaking_max: span(settings.backfill),
        paper_token: Span(default.paper_token.0.saturating_mul(scale)),
        ..default
    }
}
