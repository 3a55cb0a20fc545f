//! Wake-ups: deadlines, heartbeats, and state that changes without events.

use policy::Time;
use policy::tokens::ProcessId;

use super::{Context, SlotState};
use crate::action::{Action, Order};
use crate::event_kind::EventKind;
use crate::gate::GateState;
use crate::pod::ServedPod;
use crate::pods::PodKey;

/// Interval of the heartbeats while a process waits, in nanoseconds.
const HEARTBEAT_NS: u64 = 50_000_000;
/// Interval of polling state that changes without events, in nanoseconds.
const POLL_NS: u64 = 100_000_000;
/// Time after which a process that was ordered to close, and has nothing in flight or is stopped, counts as closed, in
/// nanoseconds.
const UNRESPONSIVE_NS: u64 = 2_000_000_000;
/// Time after which a process with work that outlasts its token is killed, in nanoseconds: nothing else on the slot can
/// proceed.
const OVERRUN_MAX_NS: u64 = 300_000_000_000;
/// Time after which a live process without a connection is killed, in nanoseconds: no limit binds it.
const LOST_MAX_NS: u64 = 10_000_000_000;

impl SlotState {
    /// Returns when [`SlotState::wake`] is due unless an event comes before, in nanoseconds; `None`: never. It looks at the pods and processes again only
    /// after [`SlotState::forget_wake`].
    pub(crate) fn next_wake(&self) -> Option<u64> {
        let wake = self.wake.get().unwrap_or_else(|| self.find_wake());
        self.wake.set(Some(wake));
        wake
    }

    /// Notes that the state may have changed since [`SlotState::next_wake`].
    pub(crate) fn forget_wake(&mut self) {
        self.wake.set(None);
    }

    fn find_wake(&self) -> Option<u64> {
        let pods = self.pods.values().filter_map(ServedPod::next_wake);
        let early = self.early.iter().map(|(_, until)| *until);
        let heartbeat = self
            .needs_heartbeat()
            .then_some(self.heartbeat_at.saturating_add(HEARTBEAT_NS));
        let poll = self
            .must_poll()
            .then_some(self.polled_at.saturating_add(POLL_NS));
        pods.chain(early)
            .chain(heartbeat)
            .chain(poll)
            .chain(self.scheduler_wake())
            .min()
    }

    /// Returns whether a wake-up at `now` needs the facts of holders.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.scheduler_wake().is_some_and(|at| at <= now)
            || (self.must_poll() && now >= self.polled_at.saturating_add(POLL_NS))
    }

    /// Handles everything that is due by now.
    pub(crate) fn wake(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let pods: Vec<PodKey> = self.pods.keys().copied().collect();
        for key in pods {
            let Some(pod) = self.pods.get_mut(&key) else {
                continue;
            };
            if pod.accept_limiter_mut().resume(now) {
                cx.actions.push(Action::Accept {
                    pod: key,
                    accepts: true,
                });
            }
            if pod.is_claim_due(now) {
                self.answer_claims(cx, key);
                self.relinquish(cx, key);
            }
        }
        self.time_out_moves(cx);
        if !self.early.is_empty() {
            self.answer_early(cx);
        }
        if self.needs_heartbeat() && now >= self.heartbeat_at.saturating_add(HEARTBEAT_NS) {
            self.heartbeat_at = now;
            self.beat(cx);
        }
        if now >= self.polled_at.saturating_add(POLL_NS) {
            self.polled_at = now;
            self.poll(cx);
        }
        if self.scheduler_wake().is_some_and(|at| at <= now) {
            self.thaw(cx);
            // Requests during the freeze do not reach the scheduler, so that it can only close and extend.
            self.settle(now);
            self.update(cx, |tokens, now, actions| tokens.wake(now, actions));
        }
    }

    /// Handles the observation that a process is stopped.
    pub(crate) fn stopped(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        if let Some(device) = &mut self.device {
            device.tokens.stopped(Time(cx.now), id);
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.was_stopped(Time(cx.now));
        }
        let is_overdue = self.processes.get(&id).is_some_and(|process| {
            let gate = process.device().map(|device| device.gate.state());
            let Some(GateState::Closing { since }) = gate else {
                return false;
            };
            !process.is_lost() && cx.now.saturating_sub(since) >= UNRESPONSIVE_NS
        });
        if is_overdue {
            self.take_token_back(cx, id);
        }
    }

    /// Returns the time of the next wake-up of the scheduler, or of the end of the freeze, in nanoseconds.
    fn scheduler_wake(&self) -> Option<u64> {
        let device = self.device.as_ref()?;
        let scheduler = device.tokens.next_wake().map(|at| at.0);
        scheduler.into_iter().chain(device.frozen_until).min()
    }

    /// Returns whether any process waits for a token, for its memory or for more of it.
    fn needs_heartbeat(&self) -> bool {
        if self.pods.values().any(ServedPod::has_delayed_claims) {
            return true;
        }
        let device = self.device.as_ref();
        device.is_some_and(|own| own.tokens.waiting() > 0 || !own.early_requests.is_empty())
            || self.heartbeat_at < self.memory_waits_until
    }

    /// Returns whether any state changes without an event: silent or lost processes, or holders, which are settled also while no
    /// decision is due.
    fn must_poll(&self) -> bool {
        let mut pods = self.pods.values();
        pods.any(|pod| pod.holders() > 0 || !pod.survivors().is_empty())
            || self.processes.values().any(|process| process.is_lost())
            || self.has_failed_process()
    }

    fn beat(&self, cx: &mut Context<'_>) {
        for process in self.processes.values() {
            if process.device().is_some() {
                cx.actions.push(Action::Order {
                    process: process.id(),
                    order: Order::Heartbeat,
                });
            }
        }
    }

    /// Takes tokens from processes that do not respond, and kills those that exceed a deadline.
    fn poll(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let (mut unresponsive, mut endless) = (Vec::new(), Vec::new());
        for process in self.processes.values() {
            let id = process.id();
            if let Some(lost_at) = process.lost_at()
                && now.saturating_sub(lost_at) >= LOST_MAX_NS
                && !process.is_killed()
            {
                endless.push((id, "it is alive without a connection"));
            }
            let Some(device) = process.device() else {
                continue;
            };
            let GateState::Closing { since } = device.gate.state() else {
                continue;
            };
            let passed = now.saturating_sub(since);
            if passed >= OVERRUN_MAX_NS && !device.is_idle() && !process.is_killed() {
                endless.push((id, "its work did not end within 300 s after its token"));
            } else if passed >= UNRESPONSIVE_NS && !process.is_lost() {
                if device.is_idle() {
                    unresponsive.push(id);
                } else {
                    cx.actions.push(Action::Examine(id));
                }
            }
        }
        for id in unresponsive {
            self.take_token_back(cx, id);
        }
        for (id, why) in endless {
            let Some(process) = self.processes.get_mut(&id) else {
                continue;
            };
            process.set_killed();
            let (pod, pid) = (process.pod(), process.pid());
            cx.actions.push(Action::Kill(id));
            let text = format!("process {pid} killed: {why}");
            self.record(cx, EventKind::ProcessKilled, pod, text);
        }
        self.end_faulted(cx);
        self.examine_survivors(cx);
    }

    /// Takes the token from a process which was ordered to close and does not answer.
    fn take_token_back(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let (pod, pid) = (process.pod(), process.pid());
        let text = format!(
            "process {pid} does not answer the order to close its gate and is idle or stopped: its token is taken back"
        );
        self.record(cx, EventKind::ProcessReport, pod, text);
        self.release_token(cx, id);
    }
}
