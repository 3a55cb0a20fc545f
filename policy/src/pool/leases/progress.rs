//! What queues and processes report, and the steps of a turn.

use super::{
    Action, Cause, Entry, FORWARDED, Holder, InstanceId, LEFT_OUT, Leases, Location, RECALL_MAX,
    RECALL_QUIET_MAX, RECALLED_LOOK, RETRY, SEAL_MAX, Seal, SlotId, Stage, Turn,
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
        }
        let now = self.now;
        self.end_ahead(slot, id, is_there);
        let streamed = self.holder_mut(slot, id).and_then(|holder| {
            let since = holder.restores_since?;
            holder.restores_since = None;
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
            if !self.retried.contains(&id) {
                self.retried.push(id);
            }
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
            let _there = self.pool.set_resident(about.function, slot, bytes);
            self.pool.set_pinned(about.function, slot, !about.may_leave);
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
        (entry.parked, entry.claim) = (None, None);
        let slot = entry.about.slot;
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
            holder.restores_since = None;
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
            holder.is_notified = false;
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

    /// Returns whether the models of a slot's instances have not all room there.
    fn is_short(&self, slot: SlotId) -> bool {
        let own = self.instances.values();
        let own = own.filter(|entry| entry.about.slot == slot);
        let bytes = own.fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
        bytes > self.at(slot).capacity
    }

    /// Has the model of a slot's holder sealed, unless that was done or would serve nothing. Returns whether it is being sealed.
    fn seal(&mut self, slot: SlotId, actions: &mut Vec<Action>) -> bool {
        let now = self.now;
        let Some(holder) = self.at(slot).holder else {
            return false;
        };
        let id = holder.instance;
        match holder.seal {
            Seal::Over => false,
            Seal::Asked { since } => {
                let until = since.after(SEAL_MAX);
                if now < until {
                    self.wake_at(until);
                }
                now < until
            }
            Seal::Open => {
                let can = self.instances.get(&id).is_some_and(|entry| {
                    let is_there = entry.location == Location::Device && entry.bytes > 0;
                    is_there && entry.about.may_leave && !entry.is_sealed
                });
                if !can || holder.restores_since.is_some() {
                    return false;
                }
                // It is looked again once a model has grown: with room for all, each event would add up all of them.
                let is_due = self.is_short(slot);
                if let Some(holder) = self.holder_mut(slot, id) {
                    holder.seal = match is_due {
                        true => Seal::Asked { since: now },
                        false => Seal::Over,
                    };
                }
                if is_due {
                    self.wake_at(now.after(SEAL_MAX));
                    actions.push(Action::Seal(id));
                }
                is_due
            }
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
        let now = self.now;
        let Some(holder) = self.at_mut(slot).holder.take() else {
            return;
        };
        if holder.is_parked {
            let had = i64::try_from(now.since(holder.since).0).unwrap_or(i64::MAX);
            let at = self.at_mut(slot);
            at.credit = at.credit.saturating_sub(had);
        }
        self.end_use(slot);
        self.forget_room(slot, holder.instance);
    }

    /// Gives up a turn that cannot be carried out. Its head waits again.
    pub(super) fn fail_turn(&mut self, slot: SlotId) {
        let now = self.now;
        let Some(turn) = self.at_mut(slot).turn.take() else {
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
        let own = self.instances.values_mut();
        for entry in own.filter(|entry| entry.about.slot == slot) {
            entry.is_sealed = false;
        }
    }

    /// Ends what lasts for a time: reservations for forwarded requests, and the stay of models that refused to leave.
    pub(super) fn end_waits(&mut self) {
        let now = self.now;
        for slot in (0..self.slots.len()).map(super::slot_id) {
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
            if entry.retry_at > now {
                let at = entry.retry_at;
                self.wake_at(at);
                continue;
            }
            entry.retry_at = Time::ZERO;
            self.retried.swap_remove(at);
            let about = entry.about;
            self.pool
                .set_pinned(about.function, about.slot, !about.may_leave);
        }
    }

    /// Has the pool count the holder's model as on its way while it returns beside the lease.
    fn note_streaming(&mut self, slot: SlotId) {
        let holder = self.at(slot).holder;
        let streams = holder.filter(|holder| holder.restores_since.is_some());
        let entry = streams.and_then(|holder| self.instances.get(&holder.instance));
        let function = entry.map(|entry| entry.about.function);
        self.pool.set_streaming(slot, function);
    }

    /// Carries out the next steps on a slot.
    pub(super) fn advance(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        self.note_streaming(slot);
        if !self.at(slot).is_usable {
            return;
        }
        if self.is_lost(slot) {
            self.begin_recall(slot, actions);
            return self.step_recall(slot, actions);
        }
        self.notify(slot, actions);
        self.restore_again(slot, actions);
        self.note_streaming(slot);
        if let Some(holder) = self.at(slot).holder
            && holder.is_idle
            && holder.is_leased()
            // Not just before a request which is forwarded to it.
            && self.at(slot).turn.is_none_or(|turn| turn.instance != holder.instance)
        {
            let _sealing = self.seal(slot, actions);
        }
        let Some(turn) = self.at(slot).turn else {
            let may_compute = self.at(slot).holder.is_some();
            if self.has_claim(slot) || !may_compute {
                let _leaves = self.evict_next(slot, None, actions);
            }
            return self.step_recall(slot, actions);
        };
        if let Some(holder) = self.at(slot).holder {
            if holder.instance == turn.instance && holder.is_leased() {
                // It has the lease, with nothing to do: a sibling's request is to be forwarded to it.
                return self.grant(slot, turn, actions);
            }
            if self.has_claim(slot) {
                // The holder's may be among them, which ends only then.
                let _leaves = self.evict_next(slot, Some(turn.instance), actions);
            } else {
                self.evict_sealed(slot, Some(turn.instance), actions);
            }
            self.restore_ahead_of_turn(slot, actions);
            self.begin_recall(slot, actions);
            return self.step_recall(slot, actions);
        }
        let now = self.now;
        if self
            .at(slot)
            .ahead
            .is_some_and(|ahead| ahead.instance == turn.instance)
        {
            // It is loaded for its turn from now on, unless it is on its way.
            self.cancel_ahead(slot);
        }
        if let Some(turn) = &mut self.at_mut(slot).turn {
            turn.moves_since.get_or_insert(now);
        }
        // What is to leave since leaves before the next turn.
        if !turn.is_restoring && self.evict_next(slot, Some(turn.instance), actions) {
            return;
        }
        if self.is_away(turn.instance) {
            if turn.is_restoring || !self.has_room_for_turn(slot, turn.instance, actions) {
                return;
            }
            let moves_since = self.moves_ahead(turn.instance);
            if moves_since.is_none() {
                self.order_return(turn.instance, actions);
            }
            if !self.streams {
                if let Some(turn) = &mut self.at_mut(slot).turn {
                    turn.is_restoring = true;
                    turn.moves_since = moves_since.or(turn.moves_since);
                }
                return;
            }
            self.grant(slot, turn, actions);
            if let Some(holder) = &mut self.at_mut(slot).holder {
                holder.restores_since = moves_since.or(Some(now));
            }
            self.note_streaming(slot);
            return;
        }
        self.grant(slot, turn, actions);
    }

    /// Lets an adopted holder compute, and notifies the queue of a holder which has connected since.
    fn notify(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        let Some(holder) = &mut self.at_mut(slot).holder else {
            return;
        };
        // One whose lease ends already, as of an adopted holder on a lost device, does not begin.
        let is_closing = matches!(holder.stage, Stage::Closing { .. });
        if !is_closing && !std::mem::replace(&mut holder.is_open, true) {
            actions.push(Action::Open(holder.instance));
        }
        let holder = *holder;
        let id = holder.instance;
        let has_queue = self.instances.get(&id).is_some_and(|entry| entry.has_queue);
        if holder.is_notified != has_queue
            && holder.is_leased()
            && let Some(holder) = self.holder_mut(slot, id)
        {
            holder.is_notified = has_queue;
            if has_queue {
                actions.push(Action::Lease(id));
                self.withdraw(id);
            } else {
                // What it ran for its queue has ended with it, as far as can be known.
                holder.is_parked = true;
            }
        }
    }

    /// Recalls the lease of a slot, unless that was done.
    pub(super) fn begin_recall(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        let now = self.now;
        let Some(holder) = &mut self.slots[slot.0 as usize].holder else {
            return;
        };
        if !holder.is_leased() || (holder.restores_since.is_some() && !holder.is_notified) {
            // A model leaves only once it is there.
            return;
        }
        if holder.is_notified {
            // What it reported as idle may have begun again meanwhile.
            holder.is_idle = false;
            holder.stage = Stage::Recalled { since: now };
            actions.push(Action::Recall(holder.instance));
        } else {
            holder.stage = Stage::Closing { since: now };
            actions.push(Action::Close(holder.instance));
        }
    }

    /// Closes the gate of a recalled holder once its queue is idle, or gone, or silent for too long.
    pub(super) fn step_recall(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        let now = self.now;
        let Some(holder) = self.at(slot).holder else {
            return;
        };
        let Stage::Recalled { since } = holder.stage else {
            return;
        };
        let has_queue = |entry: &Entry| entry.has_queue;
        let is_heard = self.instances.get(&holder.instance).is_some_and(has_queue);
        if holder.restores_since.is_some() {
            return;
        }
        // A queue that is stopped, or lies, holds up no other instance for long unless its processes compute; what still runs there waits for the next lease.
        let quiet = holder.quiet_since.map_or(Time::NEVER, |quiet| {
            quiet.max(since).after(RECALL_QUIET_MAX)
        });
        let until = since.after(RECALL_MAX).min(quiet);
        if is_heard && !holder.is_idle && now < until {
            // Nothing is reported of processes that do nothing.
            return self.wake_at(until.min(now.after(RECALLED_LOOK)));
        }
        if holder.is_idle && !self.is_lost(slot) && self.seal(slot, actions) {
            return;
        }
        if let Some(holder) = self.holder_mut(slot, holder.instance) {
            holder.stage = Stage::Closing { since: now };
        }
        actions.push(Action::Close(holder.instance));
    }

    /// Grants the lease of a slot for whom its turn is.
    fn grant(&mut self, slot: SlotId, turn: Turn, actions: &mut Vec<Action>) {
        let now = self.now;
        let id = turn.instance;
        let mut evicted = std::mem::take(&mut self.evicted);
        self.pool.loaded(now, slot, &mut evicted);
        self.evicted = evicted;
        self.queue_evicted();
        self.at_mut(slot).turn = None;
        // A head of its own is dispatched under the lease.
        let had_head = self
            .instances
            .get(&id)
            .is_some_and(|entry| entry.head.is_some());
        self.withdraw(id);
        self.forget_promised(id);
        if let Some(entry) = self.instances.get_mut(&id) {
            // What the turn has made room for is the claim's; a larger one waits for more.
            let made = self.pool.bytes(entry.about.function, slot);
            if let Some(claim) = entry.claim.filter(|claim| *claim <= made) {
                entry.bytes = entry.bytes.max(claim);
            }
            let (function, bytes, may_leave) =
                (entry.about.function, entry.bytes, entry.about.may_leave);
            (entry.parked, entry.is_sealed) = (None, false);
            let _there = self.pool.set_resident(function, slot, bytes);
            self.pool.set_pinned(function, slot, !may_leave);
        }
        self.settle_waiting(id);
        if turn.is_restoring
            && let Some(since) = turn.moves_since
        {
            self.was_loaded(id, now.since(since));
        }
        let has_queue = self.instances.get(&id).is_some_and(|entry| entry.has_queue);
        let holder = self.at(slot).holder;
        if holder.is_none() {
            actions.push(Action::Open(id));
            if has_queue {
                actions.push(Action::Lease(id));
            }
        }
        let mut next = Holder {
            is_parked: matches!(turn.cause, Cause::Parked) && !had_head,
            is_notified: has_queue,
            since: holder.map_or(now, |holder| holder.since),
            restores_since: holder.and_then(|holder| holder.restores_since),
            is_open: holder.is_none_or(|holder| holder.is_open),
            ..Holder::new(id, now)
        };
        match turn.cause {
            Cause::Head { from, .. } if from != id => {
                next.reserved_until = now.after(FORWARDED);
                next.reserved_for = Some(from);
                next.is_idle_later = true;
                self.wake_at(next.reserved_until);
                actions.push(Action::Sibling { from, to: id });
            }
            Cause::Gone if !had_head => {
                // Nothing comes.
                next.is_idle_later = true;
                self.wake_at(now);
            }
            Cause::Head { .. } | Cause::Parked | Cause::Gone => {}
        }
        self.at_mut(slot).holder = Some(next);
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
            is_notified: false,
            quiet_since: None,
            seal: Seal::Open,
            is_open: true,
            restores_since: None,
            is_idle_later: false,
            reserved_until: Time::ZERO,
            reserved_for: None,
        }
    }
}
