//! Requests and returns of tokens, and claims of memory.

use policy::tokens::ProcessId;
use protocol::message::FromAgent;

use super::figures::publish_memory_of_others;
use super::memory::ClaimAnswer;
use super::turn::Service;
use crate::state::{PodKey, SlotKey};

impl Service {
    /// Handles a request for a token. A request by a holder, or by a process that still closes, is repeated after the return of
    /// its token.
    pub(super) fn request_token(&mut self, id: ProcessId, epoch: u64) {
        let now = super::now_ns();
        let Some(key) = self.slot_of(id) else { return };
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        let pod = process.pod;
        let Some(attached) = &mut process.attached else {
            return;
        };
        if attached.is_open() {
            // Requested before the grant arrived, or by a thread that finds the gate shut from inside.
            if epoch == attached.epoch() {
                attached.requests_again = true;
            }
            return;
        }
        let waits_already = attached.since.is_some() && attached.closing_since.is_none();
        if attached.closing_since.is_some() {
            attached.requests_again = true;
            return;
        }
        if waits_already {
            return;
        }
        self.enqueue(id, pod, key, now);
    }

    /// Enqueues a process without a token with the scheduler, from now on.
    pub(super) fn enqueue(&mut self, id: ProcessId, pod: PodKey, key: SlotKey, now: u64) {
        if let Some(attached) = self
            .processes
            .get_mut(&id.0)
            .and_then(|process| process.attached.as_mut())
        {
            attached.since = Some(now);
            attached.requests_again = false;
        }
        if let Some(served) = self.pods.get_mut(&pod) {
            served.count_time(now);
            served.waiters += 1;
        }
        self.on_slot(key, |slot, context| {
            if slot.frozen_until.is_some() {
                slot.early_requests.push(id);
                return;
            }
            slot.settle(context);
            slot.update(context, |tokens, now, actions| tokens.ask(now, id, actions));
        });
    }

    /// Handles the report that a process has closed its gate of this epoch.
    pub(super) fn gate_closed(&mut self, id: ProcessId, epoch: u64) {
        let Some(process) = self.processes.get(&id.0) else {
            return;
        };
        let Some(attached) = &process.attached else {
            return;
        };
        // The epoch's token is held, or its gate was closed and the return is outstanding.
        let is_current = if attached.is_open() {
            epoch == attached.epoch()
        } else {
            attached.closing_since.is_some() && epoch.checked_add(1) == Some(attached.epoch())
        };
        if is_current {
            self.release_token(id);
        }
    }

    /// Takes back the token of a process with nothing in flight: settles its time and counts its overrun.
    pub(super) fn release_token(&mut self, id: ProcessId) {
        let now = super::now_ns();
        let Some(key) = self.slot_of(id) else { return };
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        let pod = process.pod;
        let Some(attached) = &mut process.attached else {
            return;
        };
        let closing_since = attached.closing_since;
        let contended_since = attached.contended_since.or(closing_since);
        let again = attached.requests_again;
        attached.note_shut();
        self.on_slot(key, |slot, context| {
            let others_wait = slot.tokens.waiting() > 0;
            if let Some(served) = context.pods.get_mut(&pod) {
                slot.settle_pod(served, context.processes, now);
                served.count_time(now);
                served.holders = served.holders.saturating_sub(1);
                let busy_until = context
                    .processes
                    .get(&id.0)
                    .and_then(|process| process.attached.as_ref())
                    .map_or(0, |attached| attached.observed.busy_until);
                if let Some(since) = closing_since
                    && busy_until > since
                {
                    served.counters.overruns += 1;
                    served.counters.overrun_ns += busy_until - since;
                }
                if others_wait && let Some(since) = contended_since {
                    let from = busy_until.max(since);
                    slot.idle_ns = slot.idle_ns.saturating_add(now.saturating_sub(from));
                }
            }
            slot.update(context, |tokens, now, actions| {
                tokens.closed(now, id, actions)
            });
        });
        if again {
            self.enqueue(id, pod, key, now);
        }
    }

    /// Handles an answer to a probe; ignores one without a probe.
    pub(super) fn probe_answered(&mut self, id: ProcessId) {
        let Some(key) = self.slot_of(id) else { return };
        self.on_slot(key, |slot, context| {
            slot.tokens.responds(policy::Time(context.now), id);
        });
    }

    /// Handles a claim of memory: answers it at once, or asks the pod's other processes to relinquish unused claims.
    pub(super) fn claim(&mut self, id: ProcessId, seq: u32, bytes: u64) {
        let now = super::now_ns();
        let Some(pod) = self.processes.get(&id.0).map(|process| process.pod) else {
            return;
        };
        let Some(served) = self.pods.get_mut(&pod) else {
            return;
        };
        let limit = match served.memory_limit() {
            0 => u64::MAX,
            limit => limit,
        };
        match served.claims.claim(id, seq, bytes, limit, now) {
            Some(answer) => {
                self.answers.push(answer);
                self.answer_claims(now);
            }
            None => {
                let others = served.processes.iter().filter(|other| **other != id);
                for other in others {
                    if let Some(process) = self.processes.get(&other.0)
                        && process.attached.is_some()
                    {
                        let _sent = process.send(&FromAgent::Relinquish);
                    }
                }
            }
        }
    }

    /// Answers the claims that fit by now or have timed out.
    pub(super) fn answer_claims(&mut self, now: u64) {
        let mut answers = std::mem::take(&mut self.answers);
        for served in self.pods.values_mut() {
            let limit = match served.memory_limit() {
                0 => u64::MAX,
                limit => limit,
            };
            served.claims.answer(limit, now, &mut answers);
        }
        for ClaimAnswer {
            process,
            seq,
            claim,
        } in answers.drain(..)
        {
            // The process reads the memory of the others together with the answer.
            let pod = self.processes.get(&process.0).map(|process| process.pod);
            if let Some(served) = pod.and_then(|pod| self.pods.get(&pod)) {
                publish_memory_of_others(&served.processes, &self.processes);
            }
            if let Some(process) = self.processes.get_mut(&process.0)
                && let Some(attached) = &mut process.attached
            {
                process.claim = claim;
                attached.answer_claim(seq, claim);
            }
        }
        self.answers = answers;
    }
}
