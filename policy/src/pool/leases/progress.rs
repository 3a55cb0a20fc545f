//! What queues and processes report, and what follows for leases and turns.

use super::{
    Action, Cause, Holder, InstanceId, LEFT_OUT, Leases, Location, RESTART_MAX, RETRY, RETRY_SOON,
    Seal, SlotId, Stage,
};
use crate::Time;

impl Leases {
    /// Records that nothing of an instance's queue runs: the lease passes when another needs it. `ends`: the queue answers a recall, and starts nothing
    /// more; without, what it states of a recalled lease may be from before the recall. Ignored from an instance that holds nothing.
    pub fn idle(&mut self, now: Time, id: InstanceId, ends: bool) {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        let Some(holder) = self.holder_mut(slot, id) else {
            return;
        };
        match holder.stage {
            Stage::Recalled { .. } => holder.is_idle |= ends,
            Stage::Leased if now < holder.reserved_until => holder.is_idle_later = true,
            // It is not for its queue.
            Stage::Leased if holder.is_parked => {}
            Stage::Leased if !holder.is_idle => {
                holder.is_idle = true;
                self.end_use(slot);
            }
            Stage::Leased | Stage::Closing { .. } => {}
        }
    }

    /// Records since when the processes of an instance have computed nothing and waited for nothing; `None`: they do. Once they have for a while, it ends the
    /// use of a lease for parked ones, and bounds the wait for the queue of a recalled holder.
    pub fn quiet(&mut self, now: Time, id: InstanceId, since: Option<Time>) {
        self.now = self.now.max(now);
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        if let Some(holder) = self.holder_mut(slot, id) {
            holder.quiet_since = since;
        }
        if let Some(holder) = self.holder_mut(slot, id)
            && since.is_some()
            && holder.is_parked
            && holder.is_leased()
            && !std::mem::replace(&mut holder.is_idle, true)
        {
            self.end_use(slot);
        }
    }

    /// Records that a head which the queue of `from` was to forward to `to` is not served there, so that the lease waits for it no more. `is_refused`: it
    /// could not be forwarded or was not accepted, and nothing more is forwarded from the one to the other for [`LEFT_OUT`].
    pub fn returned(&mut self, now: Time, from: InstanceId, to: InstanceId, is_refused: bool) {
        self.now = self.now.max(now);
        let now = self.now;
        if let Some(entry) = self.instances.get_mut(&from) {
            entry
                .left_out
                .retain(|(id, until)| *id != to && now < *until);
            if is_refused {
                entry.left_out.push((to, now.after(LEFT_OUT)));
            }
        }
        if let Some(slot) = self.slot_of(to)
            && let Some(holder) = self.holder_mut(slot, to)
            && holder.reserved_for == Some(from)
        {
            holder.reserved_until = now;
        }
    }

    /// Records that the queue of a holder has work again after it had none.
    pub fn busy(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        let has_turn = self.at(slot).turn.is_some();
        let Some(holder) = self.holder_mut(slot, id) else {
            return;
        };
        (holder.is_parked, holder.is_idle_later) = (false, false);
        holder.reserved_until = Time::ZERO;
        holder.seal = Seal::Open;
        let was_idle = std::mem::replace(&mut holder.is_idle, false) && holder.is_leased();
        self.set_sealed(id, false);
        if was_idle && !has_turn {
            let function = self.instances[&id].about.function;
            let _there = self.pool.resume(now, function, slot);
        }
    }

    /// Records that an instance's processes have copied what changed of their model, or could not: `is_sealed`. It counts as long as nothing is reported
    /// by which they may have computed since. Also stated of a model that has returned ahead of its lease, which counts as not sealed otherwise.
    pub fn sealed(&mut self, now: Time, id: InstanceId, is_sealed: bool) {
        self.now = self.now.max(now);
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        let Some(holder) = self.holder_mut(slot, id) else {
            if self.is_there_ahead(slot, id) {
                self.set_sealed(id, is_sealed);
            }
            return;
        };
        if matches!(holder.seal, Seal::Asked { .. }) {
            holder.seal = Seal::Over;
            self.set_sealed(id, is_sealed);
        }
    }

    /// Records that nothing of an instance is in flight since its gate was closed: its lease ends.
    pub fn closed(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        if self
            .holder_mut(slot, id)
            .is_some_and(|holder| matches!(holder.stage, Stage::Closing { .. }))
        {
            self.end_drain(slot);
            self.take_lease(slot);
        }
    }

    /// Records that an instance's model has returned to its slot, or could not.
    pub fn restored(&mut self, now: Time, id: InstanceId, is_there: bool) {
        self.now = self.now.max(now);
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        let is_expected = self
            .at(slot)
            .turn
            .is_some_and(|turn| turn.instance == id && turn.is_restoring);
        if is_there {
            self.set_location(id, Location::Device);
            // Until its processes state it: its turn may end before it computes.
            self.set_sealed(id, false);
        }
        let now = self.now;
        self.end_ahead(slot, id, is_there);
        let streamed = self.holder_mut(slot, id).and_then(|holder| {
            let since = holder.restores_since?;
            holder.restores_since = None;
            holder.restart_drain(now);
            Some(since)
        });
        if let Some(since) = streamed {
            if is_there {
                self.was_loaded(id, now.since(since));
            } else {
                // Its requests wait for the memory: it is tried again.
                self.retry_later(id);
            }
            return;
        }
        if !is_there && is_expected {
            self.retry_later(id);
            self.fail_turn(slot);
        }
    }

    /// Does not try to move the model of an instance again for [`RETRY`].
    pub(super) fn retry_later(&mut self, id: InstanceId) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.retry_at = self.now.after(RETRY);
            self.look_again(id);
        }
    }

    /// Records that what the model of an instance may have lacked when it refused to move has come: it is tried again after [`RETRY_SOON`].
    pub fn hasten(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.retry_at = entry.retry_at.min(self.now.after(RETRY_SOON));
        }
    }

    /// Has it decided anew once an instance may have turns again.
    fn look_again(&mut self, id: InstanceId) {
        if !self.retried.contains(&id) {
            self.retried.push(id);
        }
    }

    /// Records where the model of an instance is, as its process states it; it may have moved by an operator's order. The answers to
    /// [`Action::Evict`] and [`Action::Restore`] are reported by [`Leases::evicted`] and [`Leases::restored`] instead.
    pub fn located(&mut self, now: Time, id: InstanceId, location: Location) {
        self.now = self.now.max(now);
        let Some(entry) = self.instances.get(&id) else {
            return;
        };
        let (about, bytes) = (entry.about, entry.bytes);
        let slot = about.slot;
        if entry.location == location || self.at(slot).is_evicting(id) {
            return;
        }
        self.set_location(id, location);
        if location == Location::Device {
            // What leaves is counted as gone.
            if !self.at(slot).leaves(id) {
                let _there = self.pool.set_resident(about.function, slot, bytes);
                self.pool.set_pinned(about.function, slot, !about.may_leave);
            }
        } else {
            // It is gone even if nothing may evict it; while its holder uses the slot it takes nothing there.
            let _counted = self.pool.held(about.function) >> slot.0 & 1 == 1
                && self.pool.set_resident(about.function, slot, 0);
            self.pool.set_pinned(about.function, slot, false);
            let mut evicted = std::mem::take(&mut self.evicted);
            let _gone = self.pool.unload(about.function, slot, &mut evicted);
            evicted.clear();
            self.evicted = evicted;
        }
    }

    /// Records that the processes of an instance have ended, and their memory with them. Its queue may still hold the lease.
    pub fn lost(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        (entry.parked, entry.claim, entry.is_sealed) = (None, None, false);
        let slot = entry.about.slot;
        if entry.failed_until == Time::NEVER {
            entry.failed_until = self.now.after(RESTART_MAX);
            self.look_again(id);
        }
        let at = self.at_mut(slot);
        let _ended = at.end_eviction(id);
        at.leaving.retain(|(own, _)| *own != id);
        at.ahead = at.ahead.filter(|ahead| ahead.instance != id);
        self.end_in_pool(slot, id, false);
        self.located(now, id, Location::Absent);
        if let Some(entry) = self.instances.get_mut(&id) {
            (entry.bytes, entry.granted) = (0, 0);
            let function = entry.about.function;
            self.describe(function);
        }
        self.settle_waiting(id);
        let at = self.at_mut(slot);
        if let Some(turn) = &mut at.turn
            && turn.instance == id
        {
            turn.is_restoring = false;
        }
        if let Some(holder) = &mut at.holder
            && holder.instance == id
        {
            (holder.restores_since, holder.drains_since) = (None, None);
        }
    }

    /// Makes an instance the holder of its slot if there is none, as after a restart of the caller: its processes compute since `since`.
    pub fn adopt_holder(&mut self, id: InstanceId, since: Time, is_parked: bool) {
        let Some(entry) = self.instances.get(&id) else {
            return;
        };
        // Room is made for a model that has left since, or is leaving.
        let about = entry.about;
        let is_evicted = self.is_away(id) || self.at(about.slot).is_evicting(id);
        let is_there = !is_evicted || self.returns(id);
        let bytes = if is_there { entry.bytes } else { 0 };
        let at = self.at(about.slot);
        if at.holder.is_some() || at.turn.is_some() {
            return;
        }
        let now = self.now;
        let at = self.at_mut(about.slot);
        (at.yielding, at.yielded_until) = (None, None);
        let models = at.leaving.len();
        at.leaving.retain(|(own, _)| *own != id);
        let was_to_leave = at.leaving.len() < models;
        at.holder = Some(Holder {
            is_parked,
            is_open: false,
            ..Holder::new(id, since)
        });
        if self.pool.held(about.function) >> about.slot.0 & 1 == 0 {
            let _there = self.pool.set_resident(about.function, about.slot, bytes);
        }
        let _resumed = self.pool.resume(now, about.function, about.slot);
        if was_to_leave {
            // It computes, and does not leave for the claims of others.
            self.give_up_claims(about.slot);
        }
    }

    /// Counts the queue of a holder as one that does not know of the lease.
    pub(super) fn forget_queue(&mut self, slot: SlotId, id: InstanceId) {
        if let Some(holder) = self.holder_mut(slot, id) {
            (holder.is_notified, holder.drains_since) = (false, None);
            holder.is_idle |= matches!(holder.stage, Stage::Recalled { .. });
        }
    }

    pub(super) fn slot_of(&self, id: InstanceId) -> Option<SlotId> {
        self.instances.get(&id).map(|entry| entry.about.slot)
    }

    pub(super) fn holder_mut(&mut self, slot: SlotId, id: InstanceId) -> Option<&mut Holder> {
        let holder = self.at_mut(slot).holder.as_mut();
        holder.filter(|holder| holder.instance == id)
    }

    /// Orders the model of an instance to return, and keeps its size for the measurement of the load: it may grow meanwhile.
    pub(super) fn order_return(&mut self, id: InstanceId, actions: &mut Vec<Action>) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.returning_bytes = entry.bytes;
        }
        actions.push(Action::Restore(id));
    }

    pub(super) fn set_location(&mut self, id: InstanceId, location: Location) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.location = location;
        }
    }

    pub(super) fn set_sealed(&mut self, id: InstanceId, is_sealed: bool) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.is_sealed = is_sealed;
        }
    }

    /// Returns whether a model is on its way to its slot while its instance computes already, or another does, so that it takes its memory.
    pub(super) fn returns(&self, id: InstanceId) -> bool {
        self.returns_under_lease(id) || self.moves_ahead(id).is_some()
    }

    /// Returns whether a model is on its way to its slot while its instance computes already.
    pub(super) fn returns_under_lease(&self, id: InstanceId) -> bool {
        let holder = self.slot_of(id).and_then(|slot| self.at(slot).holder);
        holder.is_some_and(|holder| holder.instance == id && holder.restores_since.is_some())
    }

    /// Ends the use of a slot by its holder, as the pool knows it, unless the slot has been assigned anew.
    pub(super) fn end_use(&mut self, slot: SlotId) {
        if self.at(slot).turn.is_none() {
            let mut evicted = std::mem::take(&mut self.evicted);
            self.pool.finished(self.now, slot, &mut evicted);
            self.evicted = evicted;
        }
    }

    /// Takes the lease from its holder.
    pub(super) fn take_lease(&mut self, slot: SlotId) {
        let Some(holder) = self.at_mut(slot).holder.take() else {
            return;
        };
        self.charge(slot, &holder);
        self.end_use(slot);
        self.forget_room(slot, holder.instance);
    }

    /// Gives up a turn that cannot be carried out. Its head waits again.
    pub(super) fn fail_turn(&mut self, slot: SlotId) {
        let now = self.now;
        let Some(turn) = self.take_turn(slot) else {
            return;
        };
        self.pool.abandon(now, slot);
        // Its own model may be there all the same.
        self.put_back(turn.instance);
        if let Some(entry) = self.instances.get(&turn.instance) {
            let (function, bytes) = (entry.about.function, entry.bytes);
            if self.moves_ahead(turn.instance).is_some() {
                self.pool.keep_ahead(function, slot, bytes);
            } else if entry.location == Location::Host && !self.returns(turn.instance) {
                // It was counted as there to be loaded ahead, and is not.
                let _gone = self.pool.unload(function, slot, &mut Vec::new());
            }
        }
        if let Cause::Head { from, head, demand } = turn.cause {
            self.put_head_back(from, &head, demand);
        }
    }

    /// Gives up what has been decided for a slot and is not being carried out: the next turn, and the models that were to leave or to come for it.
    pub(super) fn give_up_plans(&mut self, slot: SlotId) {
        let at = self.at_mut(slot);
        at.yielding = None;
        if let Some(holder) = &mut at.holder {
            holder.drains_since = None;
        }
        for (id, _) in std::mem::take(&mut self.at_mut(slot).leaving) {
            self.put_back(id);
        }
        self.give_up_claims(slot);
        self.cancel_ahead(slot);
        self.fail_turn(slot);
    }

    /// Gives up all leases and turns of a slot on which none are needed any more.
    pub fn release_slot(&mut self, now: Time, slot: SlotId) {
        self.now = self.now.max(now);
        if slot.0 as usize >= self.slots.len() {
            return;
        }
        self.give_up_plans(slot);
        self.take_lease(slot);
        // All may compute from now on.
        for entry in self.instances.on_slot_mut(slot) {
            entry.is_sealed = false;
        }
    }

    /// Ends what lasts for a time: reservations for forwarded requests, the stay of models that refused to leave, and the wait for a new process.
    pub(super) fn end_waits(&mut self) {
        let now = self.now;
        for slot in super::slots_of(self.unsettled()) {
            if let Some(holder) = self.at(slot).holder
                && holder.is_idle_later
            {
                if now < holder.reserved_until {
                    self.wake_at(holder.reserved_until);
                } else {
                    let id = holder.instance;
                    if let Some(holder) = self.holder_mut(slot, id) {
                        holder.is_idle_later = false;
                    }
                    self.idle(now, id, false);
                }
            }
        }
        for at in (0..self.retried.len()).rev() {
            let id = self.retried[at];
            let Some(entry) = self.instances.get_mut(&id) else {
                self.retried.swap_remove(at);
                continue;
            };
            let failed = Some(entry.failed_until).filter(|until| *until != Time::NEVER);
            let until = entry.retry_at.max(failed.unwrap_or(Time::ZERO));
            if until > now {
                self.wake_at(until);
                continue;
            }
            entry.retry_at = Time::ZERO;
            self.retried.swap_remove(at);
            let about = entry.about;
            self.pool
                .set_pinned(about.function, about.slot, !about.may_leave);
        }
    }
}

impl Holder {
    pub(super) const fn new(instance: InstanceId, since: Time) -> Self {
        Self {
            instance,
            stage: Stage::Leased,
            since,
            is_idle: false,
            is_parked: false,
            contested_since: None,
            is_notified: false,
            quiet_since: None,
            seal: Seal::Open,
            is_open: true,
            drains_since: None,
            restores_since: None,
            deadline: Time::ZERO,
            is_idle_later: false,
            reserved_until: Time::ZERO,
            reserved_for: None,
        }
    }
}
