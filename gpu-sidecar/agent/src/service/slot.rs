//! A slot: its scheduler, and the execution of its actions.

use std::collections::HashMap;
use std::sync::Arc;

use policy::tokens::{Action, PodId, ProcessId, Rule, Settings, Tokens};
use policy::{Span, Time};

use protocol::message::FromAgent;

use super::pod::ServedPod;
use super::process::Process;
use super::roster;
use crate::config::TokenSettings;
use crate::state::{PodKey, Slot, SlotKind};

/// Longest time that a slot waits after the start of the agent for processes of an earlier agent to greet, in nanoseconds.
pub(super) const HELLO_MAX_NS: u64 = 2_000_000_000;
/// Time after the start of the agent for the pods themselves to be found, in nanoseconds.
pub(super) const FIRST_LOOK_NS: u64 = 300_000_000;

/// A slot with its scheduler.
#[derive(Debug)]
pub(super) struct ServedSlot {
    /// Identity and properties of the slot.
    pub(super) slot: Arc<Slot>,
    /// Scheduler of the tokens.
    pub(super) tokens: Tokens,
    /// Whether the slot is lost: nothing is granted.
    pub(super) is_lost: bool,
    /// Whether the slot's MPS daemon answers, and a description of the daemon's state.
    pub(super) mps: (bool, String),
    /// Time until which nothing is granted because processes of an earlier agent may compute, in nanoseconds.
    pub(super) frozen_until: Option<u64>,
    /// Time until which pods of an earlier agent may not have been found yet, in nanoseconds.
    pub(super) first_look_until: u64,
    /// Processes that requested a token while the slot was frozen.
    pub(super) early_requests: Vec<ProcessId>,
    /// Number of tokens granted.
    pub(super) grants: u64,
    /// Time during which the device was idle between two holders, in nanoseconds.
    pub(super) idle_ns: u64,
    /// Upper bound of the union of all pods' kernel times.
    pub(super) busy: protocol::union::Union,
    actions: Vec<Action>,
}

/// State which the execution of a scheduler's actions needs, apart from the slot itself.
pub(super) struct SlotContext<'a> {
    pub(super) processes: &'a mut HashMap<u32, Process>,
    pub(super) pods: &'a mut HashMap<PodKey, ServedPod>,
    /// Current time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) now: u64,
}

impl ServedSlot {
    /// Creates a slot without pods, frozen until [`FIRST_LOOK_NS`] from now.
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
            mps: (false, "not started yet".to_owned()),
            frozen_until: Some(now.saturating_add(FIRST_LOOK_NS)),
            first_look_until: now.saturating_add(FIRST_LOOK_NS),
            early_requests: Vec::new(),
            grants: 0,
            idle_ns: 0,
            busy: protocol::union::Union::new(),
            actions: Vec::new(),
        })
    }

    /// Returns the work that each process of a pod may have in flight, in microseconds as in the pages.
    pub(super) fn inflight_us(&self, pod: PodId, now: u64) -> u32 {
        let micros = self.tokens.in_flight(Time(now), pod).0 / 1_000;
        u32::try_from(micros.clamp(1, u64::from(u32::MAX >> 1))).unwrap_or(1)
    }

    /// Settles the pods of the slot that hold a token or have unfinished work; see [`ServedSlot::settle_pod`].
    pub(super) fn settle(&mut self, context: &mut SlotContext<'_>) {
        let now = context.now;
        for served in context.pods.values_mut() {
            if served.pod.slot == self.slot.key && served.holders > 0 {
                self.settle_pod(served, context.processes, now);
            }
        }
    }

    /// Reports the kernel time of a pod's processes since the last call to the scheduler, which charges the pod for it. Also
    /// reports whether each process is active, busy or idle, and since when it has unfinished work, and updates the counters of
    /// the pod.
    pub(super) fn settle_pod(
        &mut self,
        served: &mut ServedPod,
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
            let before = process
                .attached
                .as_ref()
                .map_or(0, |a| a.observed.busy_until);
            let settlement = served.time.settle(process, attached < 2, now);
            let Some(attached) = &mut process.attached else {
                continue;
            };
            let counters = &mut served.counters;
            if settlement.pod_ns > 0 {
                counters.used_wall_ns = counters.used_wall_ns.saturating_add(settlement.pod_ns);
                counters.asked_ns = counters.asked_ns.saturating_add(settlement.pod_ns);
                used.0 = used.0.saturating_add(settlement.pod_ns);
            }
            if settlement.own_ns > 0 {
                let sms =
                    u128::from(self.slot.sms.unwrap_or(1)) * u128::from(attached.sm_hundredths);
                let sm_ns = u128::from(settlement.own_ns) * sms / 10_000;
                let sm_ns = u64::try_from(sm_ns).unwrap_or(u64::MAX);
                counters.used_sm_ns = counters.used_sm_ns.saturating_add(sm_ns);
                let until = attached.observed.busy_until.max(before);
                if until > 0 {
                    let _fresh = self
                        .busy
                        .add(until.saturating_sub(settlement.own_ns), until);
                }
            }
            self.tokens
                .unfinished(at, *id, settlement.unfinished_since.map(Time));
            if settlement.is_active {
                self.tokens.active(at, *id);
            }
            match attached.in_flight_since(settlement.unfinished_since, settlement.is_active, now) {
                // Without a connection it cannot be probed, and may have opened its gate for want of an agent.
                Some(_) if is_lost => {}
                Some(since) => {
                    self.tokens.unfinished(at, *id, Some(Time(since)));
                    self.tokens.busy(at, *id, Time(since), attached.expected());
                }
                None => self.tokens.idle(at, *id, Time(attached.observed.idle_at)),
            }
            attached.count(counters);
        }
        // After the unfinished work: the scheduler takes all time before it as reported, and time reported twice would count
        // twice until the next call. A holder that reports nothing is charged for the passing time.
        if used > Span::ZERO {
            self.tokens.used(at, pod, used);
        }
    }

    /// Settles the pods of the slot, wakes the scheduler and executes its actions.
    pub(super) fn decide(&mut self, context: &mut SlotContext<'_>) {
        // Requests during the freeze do not reach the scheduler, so that it can only close and extend.
        self.settle(context);
        let mut actions = std::mem::take(&mut self.actions);
        self.tokens.wake(Time(context.now), &mut actions);
        self.execute(&mut actions, context);
        self.actions = actions;
    }

    /// Passes an event to the scheduler and executes the resulting actions.
    pub(super) fn update(
        &mut self,
        context: &mut SlotContext<'_>,
        event: impl FnOnce(&mut Tokens, Time, &mut Vec<Action>),
    ) {
        let mut actions = std::mem::take(&mut self.actions);
        event(&mut self.tokens, Time(context.now), &mut actions);
        self.execute(&mut actions, context);
        self.actions = actions;
    }

    fn execute(&mut self, actions: &mut Vec<Action>, context: &mut SlotContext<'_>) {
        let mut repeated_requests = Vec::new();
        self.execute_each(actions, context, &mut repeated_requests);
        // Terminates: a new token is not revoked before it could have been used.
        while let Some(id) = repeated_requests.pop() {
            let mut more = Vec::new();
            self.tokens.ask(Time(context.now), id, &mut more);
            self.execute_each(&mut more, context, &mut repeated_requests);
        }
    }

    fn execute_each(
        &mut self,
        actions: &mut Vec<Action>,
        context: &mut SlotContext<'_>,
        repeated_requests: &mut Vec<ProcessId>,
    ) {
        let now = context.now;
        for action in actions.drain(..) {
            let id = match action {
                Action::Grant { process, .. }
                | Action::Extend { process, .. }
                | Action::Close { process, .. }
                | Action::Contended { process, .. }
                | Action::Probe { process }
                | Action::Revoke { process, .. } => process,
            };
            let Some(process) = context.processes.get_mut(&id.0) else {
                continue;
            };
            let (pod, pid) = (process.pod, process.pid);
            let is_lost = process.lost_at.is_some();
            if let Action::Probe { .. } = action {
                // A process that cannot be probed does not answer.
                let _sent = process.send(&FromAgent::Probe);
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
                    if let Some(served) = context.pods.get_mut(&pod) {
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
                    let idle_since = match attached.observed.idle_at {
                        0 => attached.observed.busy_until,
                        since => since,
                    };
                    let contended_since = attached.contended_since.or(attached.closing_since);
                    let from = idle_since.max(contended_since.unwrap_or(now));
                    self.idle_ns = self.idle_ns.saturating_add(now.saturating_sub(from));
                    // A process without a connection cannot receive another token.
                    let requests_again = attached.revoke() && !is_lost;
                    if requests_again {
                        attached.since = Some(now);
                        repeated_requests.push(id);
                    }
                    if let Some(served) = context.pods.get_mut(&pod) {
                        served.count_time(now);
                        served.holders = served.holders.saturating_sub(1);
                        served.waiters += u32::from(requests_again);
                        served.counters.revoked(reason);
                    }
                }
            }
            tracing::trace!(slot = self.slot.key.0, pid, ?action, "token");
        }
    }

    /// Returns the time of the next scheduler wake-up or of the end of the freeze, in nanoseconds.
    pub(super) fn next(&self) -> Option<u64> {
        let own = self.tokens.next_wake().map(|time| time.0);
        own.into_iter().chain(self.frozen_until).min()
    }
}

/// Returns the scheduler's settings. An exclusive slot belongs to the pod that came first.
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
