//! Decisions on leases after an event, and their execution.

use policy::Time;
use policy::pool::leases::{Action as Decided, InstanceId};
use policy::pool::slots::EvictReason;

use crate::action::Action;
use crate::agent::Agent;
use crate::leases::Closing;
use crate::pods::PodKey;
use crate::slot::{Context, SlotState};
use crate::slots::SlotKey;

/// Largest number of rounds of decisions after one event: each round follows from what was carried out in the one before.
const ROUNDS_MAX: u32 = 64;

impl Agent {
    /// Adds a pod to the leases if its slot is known.
    pub(crate) fn lease_pod(&mut self, key: PodKey, actions: &mut Vec<Action>) {
        let Some(slot) = self.slot_of_pod.get(&key).copied() else {
            return;
        };
        if self.leases.slot_of(key).is_some() {
            return;
        }
        let pod = self.slots.get(&slot);
        let Some((pod, is_shared)) = pod.and_then(|slot| slot.leased_pod(key)) else {
            return;
        };
        self.on_slot(slot, actions, |slot, cx| slot.describe_to_leases(cx));
        self.leases.add_pod(self.now, &pod, is_shared, actions);
        self.on_slot(slot, actions, |slot, cx| slot.claim_for_lease(cx, key));
    }

    /// Reports to the leases what an event has changed, and carries out what is decided. `concerned`, `slot`: the pod that the event is about, and
    /// its slot; without, it may be about any.
    pub(crate) fn decide_leases(
        &mut self,
        concerned: Option<PodKey>,
        slot: Option<SlotKey>,
        actions: &mut Vec<Action>,
    ) {
        match concerned {
            Some(pod) => self.leases.touch(pod),
            None => self.leases.touch_active(),
        }
        if !self.leases.is_used() && !self.is_any_leased() {
            let _nothing_leased = self.leases.take_touched();
            return;
        }
        let describe = |slot: &mut SlotState, cx: &mut Context<'_>| {
            slot.describe_to_leases(cx);
            slot.apply_leases(cx);
        };
        match slot {
            Some(slot) => self.on_slot(slot, actions, describe),
            None => self.each_slot(actions, describe),
        }
        self.leases.touch_watched();
        let mut decided = Vec::new();
        let mut notified = std::collections::BTreeSet::new();
        for _round in 0..ROUNDS_MAX {
            let mut touched = self.leases.take_touched();
            for pod in &touched {
                self.on_leased(*pod, actions, |slot, cx| slot.report_to_leases(cx, *pod));
            }
            notified.append(&mut touched);
            self.leases.policy.decide(Time(self.now), &mut decided);
            if decided.is_empty() {
                break;
            }
            for action in decided.drain(..) {
                self.carry_out(action, actions);
            }
        }
        for pod in notified {
            self.leases.notify(pod, actions);
        }
    }

    fn carry_out(&mut self, decided: Decided, actions: &mut Vec<Action>) {
        let key = |InstanceId(number)| PodKey(number);
        match decided {
            Decided::Open(id) => self.on_leased(key(id), actions, |slot, cx| {
                slot.open_pod(cx, key(id));
            }),
            Decided::Close(id) => self.on_leased(key(id), actions, |slot, cx| {
                slot.close_pod(cx, key(id), Closing::Lease);
            }),
            Decided::Lease(id) => self.leases.lease(self.now, key(id), actions),
            Decided::Recall(id) => self.leases.recall(key(id), actions),
            Decided::Sibling { from, to } => self.leases.name_sibling(key(from), key(to), actions),
            Decided::Seal(id) => self.on_leased(key(id), actions, |slot, cx| {
                slot.seal_for_lease(cx, key(id));
            }),
            Decided::Evict {
                instance,
                reason,
                is_sealed,
            } => {
                self.on_leased(key(instance), actions, |slot, cx| {
                    slot.evict_for_lease(cx, key(instance), name_of(reason), is_sealed);
                });
            }
            Decided::Restore(id) => self.on_leased(key(id), actions, |slot, cx| {
                slot.restore_for_lease(cx, key(id));
            }),
            Decided::Claim { instance, granted } => {
                self.on_leased(key(instance), actions, |slot, cx| {
                    slot.answer_delayed_claims(cx, key(instance), granted);
                });
            }
        }
    }
}

/// Returns the value of the label `reason` of an eviction.
const fn name_of(reason: EvictReason) -> &'static str {
    match reason {
        EvictReason::Duplicate => "duplicate",
        EvictReason::Light => "light",
        EvictReason::Heavy => "heavy",
        EvictReason::LeastRecentlyUsed => "lru",
        EvictReason::Moved => "moved",
        EvictReason::Unloaded | EvictReason::SlotFailed => "class",
    }
}
