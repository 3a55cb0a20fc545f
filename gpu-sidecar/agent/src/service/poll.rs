//! Polling of state without events: processes that have died, do not respond or have not greeted, and the first two seconds of
//! an agent.

use std::sync::atomic::Ordering;

use policy::tokens::PodId;

use super::roster;
use super::turn::Service;
use crate::events::EventKind;
use crate::state::SlotKey;

/// Time after which a process that was ordered to close, and has nothing in flight or is stopped, counts as closed, in
/// nanoseconds.
const UNRESPONSIVE_NS: u64 = 2_000_000_000;
/// Time after which a process with work that outlasts its token is killed, in nanoseconds: nothing else on the slot can
/// proceed.
const OVERRUN_MAX_NS: u64 = 300_000_000_000;
/// Time after which a live process without a connection is killed, in nanoseconds: no limit binds it.
const LOST_MAX_NS: u64 = 10_000_000_000;

impl Service {
    /// Polls peers whose exit raises no event: removes dead processes, takes tokens from unresponsive ones, and kills those
    /// that exceed a deadline.
    pub(super) fn poll_peers(&mut self, now: u64) {
        let mut gone = Vec::new();
        let mut unresponsive = Vec::new();
        let mut endless = Vec::new();
        for process in self.processes.values() {
            if !process.is_alive() {
                gone.push(process.id);
                continue;
            }
            if let Some(lost_at) = process.lost_at {
                let lost_for = now.saturating_sub(lost_at);
                if lost_for >= LOST_MAX_NS && !process.is_killed {
                    endless.push((process.id, "it is alive without a connection"));
                }
            }
            let Some(attached) = &process.attached else {
                continue;
            };
            let Some(since) = attached.closing_since else {
                continue;
            };
            let passed = now.saturating_sub(since);
            let is_idle = attached.facts().inflight_us.load(Ordering::Acquire) == 0;
            if passed >= UNRESPONSIVE_NS && (is_idle || roster::is_stopped(process.pid)) {
                unresponsive.push(process.id);
            } else if passed >= OVERRUN_MAX_NS && !process.is_killed {
                endless.push((
                    process.id,
                    "its work did not end within 300 s after its token",
                ));
            }
        }
        for id in gone {
            self.forget(id);
        }
        for id in unresponsive {
            if let Some(process) = self.processes.get(&id.0)
                && process.lost_at.is_none()
            {
                let text = format!(
                    "process {} does not respond and has nothing in flight: its token is taken back",
                    process.pid
                );
                self.record_event(EventKind::ProcessReport, process.pod, text);
                self.release_token(id);
            }
        }
        for (id, why) in endless {
            if let Some(process) = self.processes.get_mut(&id.0) {
                let (pod, text) = (
                    process.pod,
                    format!("process {} killed: {why}", process.pid),
                );
                process.kill();
                self.record_event(EventKind::ProcessKilled, pod, text);
            }
        }
        self.poll_silent();
    }

    /// Removes the dead among the processes that an earlier agent served and that have not greeted.
    pub(super) fn poll_silent(&mut self) {
        let mut dead = Vec::new();
        for served in self.pods.values_mut() {
            let key = served.pod.slot;
            let holders = &mut served.holders;
            served.silent.retain(|(record, stand_in)| {
                let is_alive = roster::is_alive(record);
                if !is_alive && let Some(stand_in) = stand_in {
                    *holders = holders.saturating_sub(1);
                    dead.push((key, *stand_in));
                }
                is_alive
            });
        }
        for (key, stand_in) in dead {
            self.on_slot(key, |slot, context| {
                slot.update(context, |tokens, now, actions| {
                    tokens.remove_process(now, stand_in, actions);
                });
            });
        }
        let frozen: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.frozen_until.is_some())
            .map(|(key, _)| *key)
            .collect();
        for key in frozen {
            self.end_freeze_early(key);
        }
    }

    /// Ends the freeze of a slot early, once all processes of an earlier agent have greeted or died.
    pub(super) fn end_freeze_early(&mut self, key: SlotKey) {
        let has_silent = self
            .pods
            .values()
            .any(|served| served.pod.slot == key && !served.silent.is_empty());
        if !has_silent
            && let Some(slot) = self.slots.get_mut(&key)
            && let Some(until) = &mut slot.frozen_until
        {
            *until = (*until).min(slot.first_look_until);
        }
    }

    /// Unfreezes a slot at its deadline: processes which have not greeted by then count as holders.
    pub(super) fn thaw(&mut self, key: SlotKey, now: u64) {
        let Some(slot) = self.slots.get(&key) else {
            return;
        };
        let Some(until) = slot.frozen_until else {
            return;
        };
        if now < until {
            return;
        }
        self.count_silent(key);
        self.on_slot(key, |slot, context| {
            slot.frozen_until = None;
            let early = std::mem::take(&mut slot.early_requests);
            slot.update(context, |tokens, now, actions| {
                for id in early {
                    tokens.ask(now, id, actions);
                }
            });
        });
    }

    /// Counts the silent processes of an earlier agent as holders.
    pub(super) fn count_silent(&mut self, key: SlotKey) {
        let now = super::now_ns();
        let mut stand_ins = Vec::new();
        let silent: Vec<_> = self
            .pods
            .values()
            .filter(|served| served.pod.slot == key)
            .flat_map(|served| {
                let of = served.pod.key;
                let ids = served.silent.iter().filter(|(_, id)| id.is_none());
                ids.map(move |(record, _)| (of, *record))
            })
            .collect();
        for (pod, record) in silent {
            let Some(id) = self.free_process() else { break };
            if let Some(served) = self.pods.get_mut(&pod) {
                let own = served.silent.iter_mut().find(|(own, _)| *own == record);
                if let Some((_, number)) = own {
                    *number = Some(id);
                    served.count_time(now);
                    served.holders += 1;
                }
            }
            let text = format!(
                "process {} was started before the agent and has not greeted it: it counts as a holder until it ends",
                record.pid
            );
            self.record_event(EventKind::ProcessReport, pod, text);
            stand_ins.push((id, pod, record.sm_hundredths));
        }
        self.on_slot(key, |slot, context| {
            let sm_limit = slot.tokens.settings().sm_limit;
            slot.update(context, |tokens, now, actions| {
                for (id, pod, sm) in stand_ins {
                    let sm = sm.clamp(1, sm_limit);
                    let pod = PodId(pod.0);
                    if let Err(refusal) = tokens.add_process(now, id, pod, sm, true, actions) {
                        tracing::error!(%refusal, "the scheduler rejects a silent process");
                    }
                }
            });
        });
    }
}
