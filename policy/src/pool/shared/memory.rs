//! Claims on the memory of slots.

use super::{Action, Claim, InstanceId, Location, Motion, SharedLeases, WaitingClaim};
use crate::Time;
use crate::pool::SlotId;

impl SharedLeases {
    /// Claims `bytes` of slot memory in all for the processes of an instance: others leave for it, or it waits. A smaller claim gives memory back.
    pub fn claim(&mut self, now: Time, id: InstanceId, bytes: u64) -> Claim {
        self.now = self.now.max(now);
        self.is_changed = true;
        let before = self.instances.get(&id).map_or(0, |entry| entry.bytes);
        let claim = self.try_claim(id, bytes);
        if claim == Claim::Granted && bytes > before {
            self.begin_turn(id, true);
        }
        let Some(entry) = self.instances.get_mut(&id) else {
            return claim;
        };
        // One that replaces another keeps its place.
        let replaced = entry.claim.take();
        if claim == Claim::Waits {
            self.claims += 1;
            let (number, since) = (self.claims, self.now);
            let (number, since) = replaced.map_or((number, since), |own| (own.number, own.since));
            entry.claim = Some(WaitingClaim {
                bytes,
                number,
                since,
            });
        }
        entry.settle_next();
        claim
    }

    fn try_claim(&mut self, id: InstanceId, bytes: u64) -> Claim {
        let Some(entry) = self.instances.get(&id) else {
            return Claim::Refused;
        };
        let (slot, before) = (entry.about.slot, entry.bytes);
        let Some(at) = self.slots.get(&slot) else {
            return Claim::Refused;
        };
        // On a lost device the driver refuses it.
        if bytes <= before || at.queues == 0 || at.is_lost {
            self.set_bytes(id, bytes);
            return Claim::Granted;
        }
        if bytes > at.capacity.saturating_sub(self.kept_by_others(slot, id)) {
            return Claim::Refused;
        }
        // What claims may be a process which has begun since, and is not away.
        let is_away = entry.location == Location::Host || entry.motion != Motion::Rests;
        if is_away || i128::from(bytes - before) > self.free(slot) {
            return Claim::Waits;
        }
        self.set_bytes(id, bytes);
        Claim::Granted
    }

    /// Records the memory that an instance's processes hold by granted claims, in bytes, as known otherwise: after a restart of the caller, or when some of them have
    /// ended. A claim of it that waits is withdrawn.
    pub fn holds(&mut self, now: Time, id: InstanceId, bytes: u64) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id) {
            self.is_changed |= entry.claim.is_some() || entry.bytes != bytes;
            entry.claim = None;
            entry.settle_next();
        }
        self.set_bytes(id, bytes);
    }

    /// Grants the claim of an instance that waits.
    pub(super) fn grant_claim(&mut self, id: InstanceId, actions: &mut Vec<Action>) {
        let claim = self.instances.get_mut(&id).map(|entry| {
            entry.is_next = false;
            entry.claim.take()
        });
        if let Some(claim) = claim.flatten() {
            self.set_bytes(id, claim.bytes);
            self.begin_turn(id, true);
            actions.push(Action::Claim {
                instance: id,
                granted: true,
            });
        }
    }

    /// Refuses the claims which wait and can be granted no more, since a slot's memory has become less or what never leaves has grown.
    pub(super) fn refuse_impossible(&mut self, actions: &mut Vec<Action>) {
        let waiting = self.instances.iter();
        let waiting = waiting.filter_map(|(id, entry)| {
            let bytes = entry.claim?.bytes;
            let slot = entry.about.slot;
            let capacity = self.slots.get(&slot).map_or(0, |at| at.capacity);
            let most = capacity.saturating_sub(self.kept_by_others(slot, *id));
            (bytes > most).then_some(*id)
        });
        let refused: Vec<InstanceId> = waiting.collect();
        for id in refused {
            if let Some(entry) = self.instances.get_mut(&id) {
                entry.claim = None;
                entry.settle_next();
            }
            actions.push(Action::Claim {
                instance: id,
                granted: false,
            });
        }
    }

    /// Grants the claims on slots where no leases are needed any more, or whose device is lost.
    pub(super) fn grant_unleased(&mut self, actions: &mut Vec<Action>) {
        let waiting = self.instances.iter();
        let waiting = waiting.filter(|(_, entry)| {
            let at = self.slots.get(&entry.about.slot);
            let is_bounded = at.is_some_and(|at| at.queues > 0 && !at.is_lost);
            entry.claim.is_some() && !is_bounded
        });
        let waiting: Vec<InstanceId> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            self.grant_claim(id, actions);
        }
    }

    fn set_bytes(&mut self, id: InstanceId, bytes: u64) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.bytes = bytes;
            if bytes > 0 && entry.location == Location::Absent {
                entry.location = Location::Device;
            }
        }
    }

    /// Returns the memory of a slot that no model takes, in bytes; negative where they take more than it has.
    pub(super) fn free(&self, slot: SlotId) -> i128 {
        let there = self.instances.values();
        let there = there.filter(|entry| entry.about.slot == slot && entry.is_there());
        let bytes: i128 = there.map(|entry| i128::from(entry.bytes)).sum();
        let capacity = self.slots.get(&slot).map_or(0, |at| at.capacity);
        i128::from(capacity) - bytes
    }

    /// Returns the memory of a slot's models that never leave, apart from that of one instance, in bytes.
    fn kept_by_others(&self, slot: SlotId, id: InstanceId) -> u64 {
        let others = self.instances.iter();
        let others = others.filter(|(other, entry)| {
            **other != id && entry.about.slot == slot && !entry.about.may_leave
        });
        others.fold(0, |sum: u64, (_, entry)| sum.saturating_add(entry.bytes))
    }
}
