//! Instances whose processes have failed ([`crate::faults`]): they get no lease until they have a new process.

use super::{Entry, InstanceId, Leases, SlotId};
use crate::Time;

impl Leases {
    /// Sets whether the processes of an instance have failed, so that they compute no more until they have ended ([`crate::faults`]). Its lease is recalled,
    /// since what its queue starts fails, and it gets none; its heads go to siblings, or wait. That ends with the next process, or [`super::RESTART_MAX`] after the end
    /// of the failed ones ([`Leases::lost`]).
    pub fn set_failed(&mut self, now: Time, id: InstanceId, has_failed: bool) {
        self.now = self.now.max(now);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        if !has_failed {
            entry.failed_until = Time::ZERO;
            return;
        }
        entry.failed_until = Time::NEVER;
        let slot = entry.about.slot;
        if let Some(holder) = self.holder_mut(slot, id) {
            holder.drains_since = None;
        }
    }

    /// Returns whether the processes of an instance have failed, and it waits for the next one.
    pub(super) fn has_failed(&self, entry: &Entry) -> bool {
        self.now < entry.failed_until
    }

    /// Returns whether an instance may get a lease as far as its processes are concerned: they have not failed, and its model is not to stay where it is.
    pub(super) fn may_have_turn(&self, entry: &Entry) -> bool {
        self.now >= entry.retry_at && !self.has_failed(entry)
    }

    /// Gives up the turn of an instance whose processes have failed, unless its model is on its way, which takes its memory until that has ended.
    pub(super) fn give_up_failed(&mut self, slot: SlotId) {
        let Some(turn) = self.at(slot).turn else {
            return;
        };
        let entry = self.instances.get(&turn.instance);
        let has_failed = entry.is_some_and(|entry| self.has_failed(entry));
        if has_failed && !(turn.is_restoring && self.is_away(turn.instance)) {
            self.fail_turn(slot);
        }
    }

    /// Returns whether the processes of a slot's holder have failed.
    pub(super) fn has_failed_holder(&self, slot: SlotId) -> bool {
        let holder = self.at(slot).holder.map(|holder| holder.instance);
        let entry = holder.and_then(|id| self.instances.get(&id));
        entry.is_some_and(|entry| self.has_failed(entry))
    }
}
