//! Evictions: which models leave a slot next, and what follows when one has left or has refused to.

use super::{Action, InstanceId, Leases, Location, SlotId, SlotLease};
use crate::Time;

impl Leases {
    /// Records that an instance's model has left its slot, or that it refused to.
    pub fn evicted(&mut self, now: Time, id: InstanceId, has_left: bool) {
        self.now = self.now.max(now);
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        if !self.at_mut(slot).end_eviction(id) {
            return;
        }
        if has_left {
            self.set_location(id, Location::Host);
            return;
        }
        self.set_sealed(id, false);
        self.put_back(id);
        self.retry_later(id);
        if let Some(entry) = self.instances.get(&id) {
            let function = entry.about.function;
            self.pool.set_pinned(function, slot, true);
        }
        for (other, _) in std::mem::take(&mut self.at_mut(slot).leaving) {
            self.put_back(other);
        }
        self.give_up_claims(slot);
        self.give_up_room(slot);
        self.cancel_ahead(slot);
        if self.at(slot).turn.is_some_and(|turn| !turn.is_restoring) {
            self.fail_turn(slot);
        }
    }

    /// Counts a model that was to leave as there again.
    pub(super) fn put_back(&mut self, id: InstanceId) {
        if let Some(entry) = self.instances.get(&id)
            && (entry.location == Location::Device || self.returns(id))
        {
            let (about, bytes) = (entry.about, entry.bytes);
            let _there = self.pool.set_resident(about.function, about.slot, bytes);
        }
    }

    /// Orders the sealed models that are to leave a slot, apart from its holder's. `stays`: a model that is to stay after all.
    pub(super) fn evict_sealed(
        &mut self,
        slot: SlotId,
        stays: Option<InstanceId>,
        actions: &mut Vec<Action>,
    ) {
        let holder = self.at(slot).holder.map(|holder| holder.instance);
        let mut leaving = std::mem::take(&mut self.at_mut(slot).leaving);
        leaving.retain(|&(victim, reason)| {
            if self.at(slot).is_evicting(victim) {
                return false;
            }
            let is_sealed = self
                .instances
                .get(&victim)
                .is_some_and(|entry| entry.is_sealed && entry.location == Location::Device);
            let leaves = is_sealed && Some(victim) != stays && Some(victim) != holder;
            if leaves {
                self.at_mut(slot).evicting_sealed.push(victim);
                actions.push(Action::Evict {
                    instance: victim,
                    reason,
                    is_sealed: true,
                });
            }
            !leaves
        });
        self.at_mut(slot).leaving = leaving;
    }

    /// Orders the next models that are to leave a slot: the sealed ones, and one of the others. `stays`: a model that is to stay after all. Returns whether
    /// one is leaving.
    pub(super) fn evict_next(
        &mut self,
        slot: SlotId,
        stays: Option<InstanceId>,
        actions: &mut Vec<Action>,
    ) -> bool {
        self.evict_sealed(slot, stays, actions);
        while self.at(slot).evicting.is_none() && !self.at(slot).leaving.is_empty() {
            // The holder's model comes last: it leaves once what runs has ended, which may wait for the others to leave.
            let holder = self.at(slot).holder.map(|holder| holder.instance);
            let mut leaving = self.at(slot).leaving.iter();
            let next = leaving.position(|(id, _)| Some(*id) != holder);
            let (victim, reason) = self.at_mut(slot).leaving.remove(next.unwrap_or(0));
            let is_there = self
                .instances
                .get(&victim)
                .is_some_and(|entry| entry.location == Location::Device);
            let holder = self.at(slot).holder;
            let holder = holder.filter(|holder| holder.instance == victim);
            // It takes its memory while it is on its way.
            if !is_there && !self.returns(victim) || Some(victim) == stays {
                if self.has_claim(slot) {
                    // It has waited for what is gone, and was looked at before in this decision.
                    self.wake_at(self.now);
                }
                continue;
            }
            if holder.is_some() {
                self.at_mut(slot).leaving.insert(0, (victim, reason));
                self.begin_recall(slot, actions);
                self.step_recall(slot, actions);
                return true;
            }
            self.at_mut(slot).evicting = Some(victim);
            actions.push(Action::Evict {
                instance: victim,
                reason,
                is_sealed: false,
            });
        }
        let at = self.at(slot);
        at.evicting.is_some() || !at.evicting_sealed.is_empty()
    }
}

impl SlotLease {
    /// Returns whether a model is on its way to the host.
    pub(super) fn is_evicting(&self, id: InstanceId) -> bool {
        self.evicting == Some(id) || self.evicting_sealed.contains(&id)
    }

    /// Returns whether a model leaves, or is to leave.
    pub(super) fn leaves(&self, id: InstanceId) -> bool {
        self.is_evicting(id) || self.leaving.iter().any(|(own, _)| *own == id)
    }

    /// Returns whether a turn, or models that are to leave, have been decided on.
    pub(super) fn has_plans(&self) -> bool {
        self.turn.is_some() || !self.leaving.is_empty()
    }

    /// Returns whether no model leaves or is to leave but that of an instance, which has not begun to.
    pub(super) fn only_leaves(&self, id: InstanceId) -> bool {
        let mut leaving = self.leaving.iter();
        let is_moving = self.evicting.is_some() || !self.evicting_sealed.is_empty();
        !is_moving && leaving.all(|(own, _)| *own == id)
    }

    /// Ends an eviction. Returns `false` if the model was not leaving.
    pub(super) fn end_eviction(&mut self, id: InstanceId) -> bool {
        let is_evicting = self.is_evicting(id);
        self.evicting = self.evicting.filter(|own| *own != id);
        self.evicting_sealed.retain(|own| *own != id);
        is_evicting
    }

    /// Returns whether no model leaves or is to leave.
    pub(super) const fn leaves_nothing(&self) -> bool {
        self.leaving.is_empty() && self.evicting.is_none() && self.evicting_sealed.is_empty()
    }
}
