//! Requests and returns of tokens, the execution of the scheduler's actions, and kernel time.

use std::collections::BTreeMap;

use policy::tokens::{Action as Scheduled, PodId, ProcessId, ProcessUsage, Tokens, Usage};
use policy::{Span, Time};
use protocol::message::FromAgent;

use super::greeting::Former;
use super::{Context, Device, SlotState};
use crate::action::Action;
use crate::facts::Facts;
use crate::pod::ServedPod;
use crate::pods::PodKey;
use crate::process::Process;

impl Device {
    /// Returns the work that each process of a pod may have in flight, in microseconds as in the pages.
    pub(super) fn inflight_us(&self, pod: PodId, now: u64) -> u32 {
        let micros = self.tokens.in_flight(Time(now), pod).0 / 1_000;
        u32::try_from(micros.clamp(1, u64::from(u32::MAX >> 1))).unwrap_or(1)
    }
}

impl SlotState {
    /// Handles a request for a token. A request by a holder, or by a process that still closes, is repeated after the return of
    /// its token.
    pub(super) fn request_token(&mut self, cx: &mut Context<'_>, id: ProcessId, epoch: u64) {
        let Some(member) = self.member(id) else {
            return;
        };
        let Some(device) = member.process.device_mut() else {
            return;
        };
        if device.gate.request(epoch, cx.now) {
            member.pod.add_waiter(cx.now);
            self.enqueue(cx, id);
        }
    }

    /// Enqueues a waiting process with the scheduler.
    fn enqueue(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let Some(device) = &mut self.device else {
            return;
        };
        if device.frozen_until.is_some() {
            device.early_requests.push(id);
            return;
        }
        self.settle(cx.now);
        self.update(cx, |tokens, now, actions| tokens.ask(now, id, actions));
    }

    /// Handles the report that a process has closed its gate of this epoch.
    pub(super) fn gate_closed(&mut self, cx: &mut Context<'_>, id: ProcessId, epoch: u64) {
        let device = self.processes.get(&id).and_then(|process| process.device());
        if device.is_some_and(|device| device.gate.is_current(epoch)) {
            self.release_token(cx, id);
        }
    }

    /// Takes back the token of a process with nothing in flight: settles its time and counts its overrun.
    pub(super) fn release_token(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let now = cx.now;
        let (Some(process), Some(slot)) = (self.processes.get(&id), &mut self.device) else {
            return;
        };
        let Some(pod) = self.pods.get_mut(&process.pod()) else {
            return;
        };
        let others_wait = slot.tokens.waiting() > 0;
        report(slot, pod, &mut self.processes, now);
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let is_lost = process.is_lost();
        let Some(device) = process.device_mut() else {
            return;
        };
        let returned = device.gate.returned();
        let busy_until = device.busy_until();
        if let Some(order) = returned.order {
            cx.actions.push(Action::Order { process: id, order });
        }
        pod.remove_holder(now);
        if let Some(since) = returned.closing_since
            && busy_until > since
        {
            pod.count_overrun(busy_until - since);
        }
        if others_wait && let Some(since) = returned.contended_since {
            let idle = now.saturating_sub(busy_until.max(since));
            slot.idle_ns = slot.idle_ns.saturating_add(idle);
        }
        // A process without a connection cannot receive another token.
        let requests_again = returned.requests_again && !is_lost;
        if requests_again {
            device.gate.wait(now);
            pod.add_waiter(now);
        }
        self.update(cx, |tokens, now, actions| tokens.closed(now, id, actions));
        if requests_again {
            self.enqueue(cx, id);
        }
    }

    /// Handles an answer to a probe; the scheduler ignores one without a probe.
    pub(super) fn probe_answered(&mut self, cx: &Context<'_>, id: ProcessId) {
        if let Some(device) = &mut self.device {
            device.tokens.responds(Time(cx.now), id);
        }
    }

    /// Takes the facts of a process: adds its kernel time to its pod's, and updates the pod's counters.
    pub(crate) fn take_facts(&mut self, now: u64, id: ProcessId, facts: &Facts) {
        // The process goes on in the page of one connection until it has the pages of the next, and states its total in both.
        let process = self.processes.get(&id);
        let has_other = process.is_some_and(Process::has_other_connection);
        let former = if has_other {
            self.former(id, now)
        } else {
            Former::default()
        };
        let Some(member) = self.member(id) else {
            return;
        };
        member.process.set_other_connection(former.is_there);
        let Some(device) = member.process.device_mut() else {
            return;
        };
        device.moves_mut().take_location(facts.residency);
        device.skip_charged(former.busy_ns);
        let settlement = member.pod.take_facts(device, facts, now);
        if settlement.own_ns > 0 {
            let sms = u128::from(member.device.slot.sms.unwrap_or(1));
            let sm_ns =
                u128::from(settlement.own_ns) * sms * u128::from(device.sm_hundredths) / 10_000;
            let sm_ns = u64::try_from(sm_ns).unwrap_or(u64::MAX);
            member.pod.add_sm_time(sm_ns);
            let until = settlement.busy_until;
            if until > 0 {
                let begin = until.saturating_sub(settlement.own_ns);
                let _fresh = member.device.busy.add(begin, until);
            }
        }
    }

    /// Reports the use of the slot to the scheduler, for the pods that hold a token or have unfinished work.
    pub(super) fn settle(&mut self, now: u64) {
        let Some(device) = &mut self.device else {
            return;
        };
        for pod in self.pods.values_mut().filter(|pod| pod.holders() > 0) {
            report(device, pod, &mut self.processes, now);
        }
    }

    /// Reports the use of the slot by one pod.
    pub(super) fn settle_pod(&mut self, now: u64, key: PodKey) {
        if let Some(device) = &mut self.device
            && let Some(pod) = self.pods.get_mut(&key)
        {
            report(device, pod, &mut self.processes, now);
        }
    }

    /// Passes an event to the scheduler and executes the resulting actions.
    pub(super) fn update(
        &mut self,
        cx: &mut Context<'_>,
        event: impl FnOnce(&mut Tokens, Time, &mut Vec<Scheduled>),
    ) {
        let Some(device) = &mut self.device else {
            return;
        };
        let mut scheduled = std::mem::take(&mut device.scheduled);
        event(&mut device.tokens, Time(cx.now), &mut scheduled);
        // Terminates: a new token is not revoked before it could have been used.
        while !scheduled.is_empty() {
            let mut repeated = Vec::new();
            for action in scheduled.drain(..) {
                self.execute(cx, action, &mut repeated);
            }
            let Some(device) = &mut self.device else {
                return;
            };
            for id in repeated {
                device.tokens.ask(Time(cx.now), id, &mut scheduled);
            }
        }
        if let Some(device) = &mut self.device {
            device.scheduled = scheduled;
        }
    }

    /// Executes one action of the scheduler. Appends to `repeated` a process whose request for another token follows.
    fn execute(&mut self, cx: &mut Context<'_>, action: Scheduled, repeated: &mut Vec<ProcessId>) {
        let now = cx.now;
        let (Scheduled::Grant { process: id, .. }
        | Scheduled::Extend { process: id, .. }
        | Scheduled::Close { process: id, .. }
        | Scheduled::Contended { process: id, .. }
        | Scheduled::Probe { process: id }
        | Scheduled::Revoke { process: id, .. }) = action;
        let Some(member) = self.member(id) else {
            return;
        };
        let is_lost = member.process.is_lost();
        let inflight_us_max = member.device.inflight_us(member.pod.id(), now);
        let Some(device) = member.process.device_mut() else {
            return;
        };
        let order = match action {
            Scheduled::Grant { until, .. } => {
                let (order, waited) = device.gate.open(until.0, inflight_us_max, now);
                device.set_idle(now);
                member.device.grants += 1;
                member.pod.count_grant(waited, now);
                Some(order)
            }
            Scheduled::Extend { until, .. } => Some(crate::action::Order::Extend {
                until: until.0,
                inflight_us_max,
            }),
            Scheduled::Close { .. } => device.gate.shut(now),
            Scheduled::Contended { contended, .. } => {
                Some(device.gate.contend(contended, inflight_us_max, now))
            }
            Scheduled::Probe { .. } => {
                // A process that cannot be probed does not answer.
                if !is_lost {
                    cx.actions.push(Action::Send {
                        process: id,
                        message: FromAgent::Probe,
                    });
                }
                cx.actions.push(Action::Examine(id));
                None
            }
            Scheduled::Revoke { reason, .. } => {
                let idle_since = device.idle_since();
                let returned = device.gate.revoke();
                let from = idle_since.max(returned.contended_since.unwrap_or(now));
                let idle = now.saturating_sub(from);
                member.device.idle_ns = member.device.idle_ns.saturating_add(idle);
                member.pod.count_revoked(reason, now);
                // A process without a connection cannot receive another token.
                if returned.requests_again && !is_lost {
                    device.gate.wait(now);
                    member.pod.add_waiter(now);
                    repeated.push(id);
                }
                returned.order
            }
        };
        if let Some(order) = order {
            cx.actions.push(Action::Order { process: id, order });
        }
    }
}

fn report(
    device: &mut Device,
    pod: &mut ServedPod,
    processes: &mut BTreeMap<ProcessId, Process>,
    now: u64,
) {
    let mut usages: Vec<ProcessUsage> = std::mem::take(&mut device.usages);
    let own = pod.processes().iter();
    usages.extend(own.filter_map(|id| processes.get_mut(id)?.usage(now)));
    let usage = Usage {
        pod: pod.id(),
        used: Span(pod.take_uncharged()),
        processes: &usages,
    };
    device.tokens.report(Time(now), &usage);
    usages.clear();
    device.usages = usages;
}
