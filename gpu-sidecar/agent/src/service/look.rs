//! What nobody tells: processes that are dead, deaf or silent, and the first two seconds of an agent.

use std::sync::atomic::Ordering;

use policy::tokens::PodId;

use super::roster;
use super::turn::Service;
use crate::events::EventKind;
use crate::state::SlotKey;

/// A process that was told to close and has nothing in flight, or is stopped, counts as closed after this, in nanoseconds.
const DEAF_NS: u64 = 2_000_000_000;
/// One whose work does not end for so long after its token has is ended, in nanoseconds: nothing on the slot can go on.
const OVERRUN_MAX_NS: u64 = 300_000_000_000;
/// One that lives and computes without a connection is ended after this, in nanoseconds: it keeps to no limit.
const LOST_MAX_NS: u64 = 10_000_000_000;

impl Service {
    pub(super) fn look(&mut self, now: u64) {
        let mut gone = Vec::new();
        let mut deaf = Vec::new();
        let mut endless = Vec::new();
        for process in self.processes.values() {
            if !process.lives() {
                gone.push(process.id);
                continue;
            }
            if let Some(lost_at) = process.lost_at {
                let lost_for = now.saturating_sub(lost_at);
                if lost_for >= LOST_MAX_NS && !process.is_ended {
                    endless.push((process.id, "it lives without a connection"));
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
            if passed >= DEAF_NS && (is_idle || roster::is_stopped(process.pid)) {
                deaf.push(process.id);
            } else if passed >= OVERRUN_MAX_NS && !process.is_ended {
                endless.push((process.id, "its work does not end"));
            }
        }
        for id in gone {
            self.forget(id);
        }
        for id in deaf {
            if let Some(process) = self.processes.get(&id.0)
                && process.lost_at.is_none()
            {
                let text = format!(
                    "process {} does not answer and has nothing in flight",
                    process.pid
                );
                self.tell(EventKind::ProcessReport, process.pod, text);
                self.gave_back(id);
            }
        }
        for (id, why) in endless {
            if let Some(process) = self.processes.get_mut(&id.0) {
                let (pod, text) = (
                    process.pod,
                    format!("process {} killed: {why}", process.pid),
                );
                process.kill();
                self.tell(EventKind::ProcessKilled, pod, text);
            }
        }
        self.look_for_silent();
    }

    /// Processes of an agent before this one that have died are waited for no longer.
    pub(super) fn look_for_silent(&mut self) {
        let mut dead = Vec::new();
        for served in self.pods.values_mut() {
            let key = served.pod.slot;
            let holders = &mut served.holders;
            served.silent.retain(|(known, stand_in)| {
                let lives = roster::lives(known);
                if !lives && let Some(stand_in) = stand_in {
                    *holders = holders.saturating_sub(1);
                    dead.push((key, *stand_in));
                }
                lives
            });
        }
        for (key, stand_in) in dead {
            self.on_slot(key, |slot, hands| {
                slot.tell(hands, |tokens, now, actions| {
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
            self.have_all_spoken(key);
        }
    }

    /// A slot whose processes have all said hello or are dead waits no longer.
    pub(super) fn have_all_spoken(&mut self, key: SlotKey) {
        let somebody_is_silent = self
            .pods
            .values()
            .any(|served| served.pod.slot == key && !served.silent.is_empty());
        if !somebody_is_silent
            && let Some(slot) = self.slots.get_mut(&key)
            && let Some(until) = &mut slot.frozen_until
        {
            *until = (*until).min(slot.first_look_until);
        }
    }

    /// Ends the time in which a slot grants nothing, if it is over: all have said hello, or who has not counts as holder.
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
        self.on_slot(key, |slot, hands| {
            slot.frozen_until = None;
            let early = std::mem::take(&mut slot.asked_early);
            slot.tell(hands, |tokens, now, actions| {
                for id in early {
                    tokens.ask(now, id, actions);
                }
            });
        });
    }

    /// Counts processes of an agent before this one that have said nothing as holders.
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
                ids.map(move |(known, _)| (of, *known))
            })
            .collect();
        for (pod, known) in silent {
            let Some(id) = self.free_process() else { break };
            if let Some(served) = self.pods.get_mut(&pod) {
                let own = served.silent.iter_mut().find(|(own, _)| *own == known);
                if let Some((_, number)) = own {
                    *number = Some(id);
                    served.count_time(now);
                    served.holders += 1;
                }
            }
            let text = format!(
                "process {} was there before the agent and says nothing: it counts as computing until it is dead",
                known.pid
            );
            self.tell(EventKind::ProcessReport, pod, text);
            stand_ins.push((id, pod, known.sm_hundredths));
        }
        self.on_slot(key, |slot, hands| {
            let sm_limit = slot.tokens.settings().sm_limit;
            slot.tell(hands, |tokens, now, actions| {
                for (id, pod, sm) in stand_ins {
                    let sm = sm.clamp(1, sm_limit);
                    let pod = PodId(pod.0);
                    if let Err(refusal) = tokens.add_process(now, id, pod, sm, true, actions) {
                        tracing::error!(%refusal, "the scheduler does not take a silent process");
                    }
                }
            });
        });
    }
}
