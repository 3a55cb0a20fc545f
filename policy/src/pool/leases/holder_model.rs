//! Makes room for the model of a holder which has left its slot under the lease.

use super::{Action, InstanceId, Leases, Location, SlotId, Stage};
use crate::pool::FunctionId;

impl Leases {
    /// Orders the model of a holder to return which could not while it computed already, or has left by an operator's order.
    pub(super) fn restore_again(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        let now = self.now;
        let Some(holder) = self.at(slot).holder else {
            return;
        };
        let id = holder.instance;
        let is_due = self.instances.get(&id).is_some_and(|entry| {
            let is_wanted = match holder.stage {
                Stage::Leased => !holder.is_idle || entry.parked.is_some(),
                // What its queue runs cannot end without it.
                Stage::Recalled { .. } => !holder.is_idle,
                Stage::Closing { .. } => false,
            };
            entry.location == Location::Host && now >= entry.retry_at && is_wanted
        });
        if !is_due || holder.restores_since.is_some() {
            return;
        }
        let moves_since = self.moves_ahead(id);
        if moves_since.is_none() && !self.has_room_again(slot, id, actions) {
            return;
        }
        if let Some(holder) = self.holder_mut(slot, id) {
            holder.restores_since = moves_since.or(Some(now));
            if moves_since.is_none() {
                self.order_return(id, actions);
            }
        }
    }

    /// Counts the model of a holder on its slot again, from which it has left under the lease, and has others leave for it. Returns whether there is room.
    fn has_room_again(&mut self, slot: SlotId, id: InstanceId, actions: &mut Vec<Action>) -> bool {
        let Some(entry) = self.instances.get(&id) else {
            return false;
        };
        let (function, bytes) = (entry.about.function, entry.bytes);
        if self.pool.bytes(function, slot) < bytes && !self.grow_again(slot, function, bytes) {
            if !self.at(slot).has_plans() || !self.at(slot).only_leaves(id) {
                return false;
            }
            // What it runs comes before the next turn, which is decided on anew.
            self.give_up_plans(slot);
            if !self.grow_again(slot, function, bytes) {
                self.retry_later(id);
                return false;
            }
        }
        self.at(slot).leaves_nothing() || !self.evict_next(slot, Some(id), actions)
    }

    /// Tries to have the pool keep room for the model of a holder which has left, and counts others as leaving for it.
    fn grow_again(&mut self, slot: SlotId, function: FunctionId, bytes: u64) -> bool {
        if self.pool.held(function) >> slot.0 & 1 == 0 {
            self.use_again(slot, function, 0);
        }
        let mut evicted = std::mem::take(&mut self.evicted);
        let grown = self.pool.grow(function, slot, bytes, &mut evicted);
        self.evicted = evicted;
        self.queue_evicted();
        grown.is_ok()
    }

    /// Counts the model of a holder as away again for which others were to leave, and have not: its room is made anew.
    pub(super) fn give_up_room(&mut self, slot: SlotId) {
        let Some(holder) = self.at(slot).holder else {
            return;
        };
        let id = holder.instance;
        if let Some(function) = self.counted_though_away(slot, id) {
            let _there = self.pool.set_resident(function, slot, 0);
        }
    }

    /// Counts the model of one which was a holder as away, if it has left under the lease and has not returned.
    pub(super) fn forget_room(&mut self, slot: SlotId, id: InstanceId) {
        if self.moves_ahead(id).is_none()
            && let Some(function) = self.counted_though_away(slot, id)
        {
            let _gone = self.pool.unload(function, slot, &mut Vec::new());
        }
    }

    /// Returns the function of an instance which the pool counts as there though its model is away, and neither returns nor is to for a turn.
    fn counted_though_away(&self, slot: SlotId, id: InstanceId) -> Option<FunctionId> {
        let has_turn = self.at(slot).turn.is_some_and(|turn| turn.instance == id);
        let function = self.instances.get(&id)?.about.function;
        let is_counted = self.pool.held(function) >> slot.0 & 1 == 1;
        (is_counted && self.is_away(id) && !self.returns(id) && !has_turn).then_some(function)
    }

    /// Returns whether there is room for the model of a turn which begins. It was decided on as one whose model is there if its instance was the holder
    /// and the model had left: others leave for it then, or it is given up.
    pub(super) fn has_room_for_turn(
        &mut self,
        slot: SlotId,
        id: InstanceId,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(entry) = self.instances.get(&id) else {
            return false;
        };
        let (function, bytes) = (entry.about.function, entry.bytes);
        if self.moves_ahead(id).is_some() || self.pool.bytes(function, slot) >= bytes {
            return true;
        }
        if !self.grow_again(slot, function, bytes) {
            self.retry_later(id);
            self.fail_turn(slot);
            return false;
        }
        !self.evict_next(slot, Some(id), actions)
    }
}
