//! Asking for a token, giving it back; claims of memory.

use policy::tokens::ProcessId;
use protocol::message::FromAgent;

use super::figures::tell_of_others;
use super::memory::Answer;
use super::turn::Service;
use crate::state::{PodKey, SlotKey};

impl Service {
    pub(super) fn ask(&mut self, id: ProcessId, epoch: u64) {
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
            // Asked before the token came, or by a thread that finds the gate shut from inside.
            if epoch == attached.epoch() {
                attached.asks_again = true;
            }
            return;
        }
        let waits_already = attached.since.is_some() && attached.closing_since.is_none();
        if attached.closing_since.is_some() {
            attached.asks_again = true;
            return;
        }
        if waits_already {
            return;
        }
        self.wait(id, pod, key, now);
    }

    /// A process without a token waits for one from now on.
    pub(super) fn wait(&mut self, id: ProcessId, pod: PodKey, key: SlotKey, now: u64) {
        if let Some(attached) = self
            .processes
            .get_mut(&id.0)
            .and_then(|process| process.attached.as_mut())
        {
            attached.since = Some(now);
            attached.asks_again = false;
        }
        if let Some(served) = self.pods.get_mut(&pod) {
            served.count_time(now);
            served.waiters += 1;
        }
        self.on_slot(key, |slot, hands| {
            if slot.frozen_until.is_some() {
                slot.asked_early.push(id);
                return;
            }
            slot.settle(hands);
            slot.tell(hands, |tokens, now, actions| tokens.ask(now, id, actions));
        });
    }

    pub(super) fn closed(&mut self, id: ProcessId, epoch: u64) {
        let Some(process) = self.processes.get(&id.0) else {
            return;
        };
        let Some(attached) = &process.attached else {
            return;
        };
        // The token of that epoch is held, or was closed and not yet given back.
        let is_current = if attached.is_open() {
            epoch == attached.epoch()
        } else {
            attached.closing_since.is_some() && epoch.checked_add(1) == Some(attached.epoch())
        };
        if is_current {
            self.gave_back(id);
        }
    }

    /// A process has no token any more, and nothing of it is in flight.
    pub(super) fn gave_back(&mut self, id: ProcessId) {
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
        let again = attached.asks_again;
        attached.note_shut();
        self.on_slot(key, |slot, hands| {
            let others_wait = slot.tokens.waiting() > 0;
            if let Some(served) = hands.pods.get_mut(&pod) {
                slot.settle_pod(served, hands.processes, now);
                served.count_time(now);
                served.holders = served.holders.saturating_sub(1);
                let busy_until = hands
                    .processes
                    .get(&id.0)
                    .and_then(|process| process.attached.as_ref())
                    .map_or(0, |attached| attached.seen.busy_until);
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
            slot.tell(hands, |tokens, now, actions| {
                tokens.closed(now, id, actions)
            });
        });
        if again {
            self.wait(id, pod, key, now);
        }
    }

    /// Takes a process's answer to a probe. An answer without a probe is ignored.
    pub(super) fn present(&mut self, id: ProcessId) {
        let Some(key) = self.slot_of(id) else { return };
        self.on_slot(key, |slot, hands| {
            slot.tokens.responds(policy::Time(hands.now), id);
        });
    }

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
                        let _said = process.say(&FromAgent::Relinquish);
                    }
                }
            }
        }
    }

    pub(super) fn answer_claims(&mut self, now: u64) {
        let mut answers = std::mem::take(&mut self.answers);
        for served in self.pods.values_mut() {
            let limit = match served.memory_limit() {
                0 => u64::MAX,
                limit => limit,
            };
            served.claims.answer(limit, now, &mut answers);
        }
        for Answer {
            process,
            seq,
            claim,
        } in answers.drain(..)
        {
            // With the answer the process learns how the pod stands.
            let pod = self.processes.get(&process.0).map(|process| process.pod);
            if let Some(served) = pod.and_then(|pod| self.pods.get(&pod)) {
                tell_of_others(&served.processes, &self.processes);
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
