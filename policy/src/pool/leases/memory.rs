//! Claims on the memory of slots.

use super::{Action, Claim, InstanceId, Leases, Location, Seal, SlotId};
use crate::Time;
use crate::pool::FunctionId;

impl Leases {
    /// Tries to make room for a claim.
    pub(super) fn try_claim(&mut self, id: InstanceId, bytes: u64) -> Claim {
        let Some(entry) = self.instances.get(&id) else {
            return Claim::Refused;
        };
        let (function, slot) = (entry.about.function, entry.about.slot);
        let (location, before) = (entry.location, entry.bytes);
        let is_smaller = bytes <= before && entry.granted == before;
        if self.is_lost(slot) {
            // The driver refuses it.
            self.hold(id, bytes);
            return Claim::Granted;
        }
        // While its model returns ahead of a lease, what it gets in addition would be lost from sight if that failed.
        if location == Location::Host && !self.returns_under_lease(id) {
            let is_leased = self.is_leased(slot);
            if bytes > self.at(slot).capacity && is_leased {
                return Claim::Refused;
            }
            if bytes > before && is_leased {
                // There will be room for what it had. What claims more may be a process which has begun since, and is not away.
                return Claim::Waits;
            }
            self.set_bytes(id, bytes);
            return Claim::Granted;
        }
        if is_smaller || !self.is_leased(slot) {
            self.hold(id, bytes);
            return Claim::Granted;
        }
        if bytes > self.at(slot).capacity {
            return Claim::Refused;
        }
        let holder = self.at(slot).holder;
        let holds = holder.is_some_and(|holder| holder.instance == id);
        let has_turn = self.at(slot).turn.is_some_and(|turn| turn.instance == id);
        if has_turn && !holds {
            // Its turn makes the room.
            return Claim::Waits;
        }
        let claim = self.grow(id, bytes);
        let is_running = holds && holder.is_some_and(|holder| !holder.is_idle);
        let (has_plans, only_leaves) = (self.at(slot).has_plans(), self.at(slot).only_leaves(id));
        if claim == Claim::Waits && is_running && has_plans && only_leaves {
            // What it runs does not end before, even if it is recalled: a turn, its own as well, and the models for it come after that.
            self.give_up_plans(slot);
            let held = self.instances.get(&id).map_or(before, |entry| entry.bytes);
            self.use_again(slot, function, held);
            return self.grow(id, bytes);
        }
        claim
    }

    /// Counts a slot as used by its holder itself, with these bytes if the copy that it had there was counted as gone.
    pub(super) fn use_again(&mut self, slot: SlotId, function: FunctionId, bytes: u64) {
        if self.pool.held(function) >> slot.0 & 1 == 0 {
            let _there = self.pool.set_resident(function, slot, bytes);
        }
        let now = self.now;
        let _resumed = self.pool.resume(now, function, slot);
    }

    /// Tries to make room for what an instance claims in addition to what it has on its slot.
    fn grow(&mut self, id: InstanceId, bytes: u64) -> Claim {
        let Some(entry) = self.instances.get(&id) else {
            return Claim::Refused;
        };
        let (function, slot) = (entry.about.function, entry.about.slot);
        let holds = |holder: super::Holder| holder.instance == id && holder.is_leased();
        let is_holder = self.at(slot).holder.is_some_and(holds);
        if is_holder
            && self.pool.held(function) >> slot.0 & 1 == 0
            && self.at(slot).turn.is_none()
            && self.leaves_nothing(slot)
        {
            self.use_again(slot, function, entry.bytes);
        }
        let is_there = self.pool.held(function) >> slot.0 & 1 == 1;
        if !is_there {
            let view = self.pool.slot(slot);
            if view.is_some_and(|view| view.unused >= bytes) && self.leaves_nothing(slot) {
                self.hold(id, bytes);
                return Claim::Granted;
            }
            return Claim::Waits;
        }
        let mut evicted = std::mem::take(&mut self.evicted);
        let grown = self.pool.grow(function, slot, bytes, &mut evicted);
        self.evicted = evicted;
        self.queue_evicted();
        if grown.is_err() {
            return Claim::Waits;
        }
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.bytes = bytes;
        }
        self.describe(function);
        if self.leaves_nothing(slot) {
            self.set_bytes(id, bytes);
            return Claim::Granted;
        }
        Claim::Waits
    }

    /// Records the memory that an instance's processes hold by granted claims, in bytes, as known otherwise: after a restart of the caller, or when some
    /// of them have ended. A claim of it that waits is withdrawn.
    pub fn holds(&mut self, now: Time, id: InstanceId, bytes: u64) {
        self.now = self.now.max(now);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        if entry.bytes == bytes && entry.granted == bytes && entry.claim.is_none() {
            return;
        }
        if entry.claim.take().is_some() {
            entry.parked = None;
        }
        self.hold(id, bytes);
        self.settle_waiting(id);
    }

    fn leaves_nothing(&self, slot: SlotId) -> bool {
        self.at(slot).leaves_nothing()
    }

    fn set_bytes(&mut self, id: InstanceId, bytes: u64) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.is_sealed &= bytes <= entry.granted;
            (entry.bytes, entry.granted) = (bytes, bytes);
            if bytes > 0 && entry.location == Location::Absent {
                entry.location = Location::Device;
            }
            let (function, slot) = (entry.about.function, entry.about.slot);
            self.describe(function);
            if let Some(holder) = &mut self.at_mut(slot).holder
                && holder.seal == Seal::Over
            {
                holder.seal = Seal::Open;
            }
        }
    }

    /// Counts memory of an instance that is on its slot.
    fn hold(&mut self, id: InstanceId, bytes: u64) {
        self.set_bytes(id, bytes);
        let Some(entry) = self.instances.get(&id) else {
            return;
        };
        let about = entry.about;
        // What leaves is counted as gone.
        if entry.location == Location::Device && !self.at(about.slot).leaves(id) {
            let _there = self.pool.set_resident(about.function, about.slot, bytes);
            let stays = !about.may_leave || self.at(about.slot).is_promised(id);
            self.pool.set_pinned(about.function, about.slot, stays);
        }
    }

    /// Returns whether some instance of a slot waits for memory for which others may have to leave.
    pub(super) fn has_claim(&self, slot: SlotId) -> bool {
        let mut waiting = self.waiting.iter().filter_map(|id| self.instances.get(id));
        waiting.any(|entry| entry.about.slot == slot && entry.claim.is_some())
    }

    /// Gives up what was reserved on a slot for claims, since a model refused to leave: they are tried again.
    pub(super) fn give_up_claims(&mut self, slot: SlotId) {
        for at in 0..self.waiting.len() {
            let id = self.waiting[at];
            let Some(entry) = self.instances.get_mut(&id) else {
                continue;
            };
            if entry.about.slot != slot || entry.bytes <= entry.granted {
                continue;
            }
            entry.bytes = entry.granted;
            let (function, bytes) = (entry.about.function, entry.granted);
            // One that has left meanwhile takes nothing of the slot.
            if self.pool.held(function) >> slot.0 & 1 == 1 {
                let _there = self.pool.set_resident(function, slot, bytes);
            }
        }
    }

    /// Answers claims for which there is room by now.
    pub(super) fn answer_claims(&mut self, actions: &mut Vec<Action>) {
        let now = self.now;
        let waiting: Vec<(InstanceId, u64)> = self
            .waiting
            .iter()
            .filter_map(|id| Some((*id, self.instances.get(id)?.claim?)))
            .collect();
        for (id, bytes) in waiting {
            let Some(entry) = self.instances.get(&id) else {
                continue;
            };
            let (function, slot) = (entry.about.function, entry.about.slot);
            let is_held = self.pool.held(function) >> slot.0 & 1 == 1;
            if entry.bytes > entry.granted
                && !is_held
                && entry.location != Location::Host
                && let Some(entry) = self.instances.get_mut(&id)
            {
                // What was reserved has been given to another meanwhile.
                entry.bytes = entry.granted;
            }
            let Some(entry) = self.instances.get(&id) else {
                continue;
            };
            let claim = if entry.bytes > entry.granted && entry.bytes >= bytes {
                // Reserved. Another process may have claimed more since.
                if self.leaves_nothing(slot) {
                    self.set_bytes(id, bytes);
                    Claim::Granted
                } else {
                    Claim::Waits
                }
            } else {
                self.try_claim(id, bytes)
            };
            if claim == Claim::Waits {
                // A turn makes the room, if nothing else does.
                if let Some(entry) = self.instances.get_mut(&id)
                    && entry.bytes == entry.granted
                {
                    entry.parked.get_or_insert(now);
                }
                continue;
            }
            if let Some(entry) = self.instances.get_mut(&id) {
                (entry.claim, entry.parked) = (None, None);
            }
            self.settle_waiting(id);
            actions.push(Action::Claim {
                instance: id,
                granted: claim == Claim::Granted,
            });
        }
    }
}
