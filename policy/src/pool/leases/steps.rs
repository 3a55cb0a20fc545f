//! The steps of a turn on a slot: recall, seal, room, return of the model, lease.

use super::{
    Action, Cause, Entry, FORWARDED, Holder, Leases, Location, RECALL_MAX, RECALL_QUIET_MAX,
    RECALLED_LOOK, SEAL_MAX, Seal, SlotId, Stage, Turn,
};
use crate::Time;

impl Leases {
    /// Carries out the next steps on a slot.
    pub(super) fn advance(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        self.note_streaming(slot);
        if self.usable >> slot.0 & 1 == 0 {
            return;
        }
        if self.is_lost(slot) {
            self.begin_recall(slot, actions);
            return self.step_recall(slot, actions);
        }
        self.give_up_failed(slot);
        let has_failed = self.has_failed_holder(slot);
        if has_failed {
            self.begin_recall(slot, actions);
        }
        self.notify(slot, actions);
        if !has_failed {
            self.restore_again(slot, actions);
        }
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
            if !(holder.is_leased() && self.defer(slot, &turn)) {
                self.begin_recall(slot, actions);
            }
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
            if self.moves_ahead(turn.instance).is_none() && self.would_defer(slot, &turn) {
                self.move_ahead(slot, turn.instance, actions);
            }
            if self.defer(slot, &turn) {
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
        let Some(holder) = &mut self.at_mut(slot).holder else {
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
        let may_seal = !self.is_lost(slot) && !self.has_failed_holder(slot);
        if holder.is_idle && may_seal && self.seal(slot, actions) {
            return;
        }
        if let Some(holder) = self.holder_mut(slot, holder.instance) {
            holder.stage = Stage::Closing { since: now };
        }
        actions.push(Action::Close(holder.instance));
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
                let can = self.instances.get(&id).is_some_and(Entry::can_be_sealed);
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

    /// Returns whether the models of a slot's instances have not all room there.
    fn is_short(&self, slot: SlotId) -> bool {
        let own = self.instances.values();
        let own = own.filter(|entry| entry.about.slot == slot);
        let bytes = own.fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
        bytes > self.at(slot).capacity
    }

    /// Has the pool count the holder's model as on its way while it returns beside the lease.
    fn note_streaming(&mut self, slot: SlotId) {
        let holder = self.at(slot).holder;
        let streams = holder.filter(|holder| holder.restores_since.is_some());
        let entry = streams.and_then(|holder| self.instances.get(&holder.instance));
        let function = entry.map(|entry| entry.about.function);
        self.pool.set_streaming(slot, function);
    }

    /// Grants the lease of a slot for whom its turn is.
    fn grant(&mut self, slot: SlotId, turn: Turn, actions: &mut Vec<Action>) {
        let now = self.now;
        let id = turn.instance;
        let mut evicted = std::mem::take(&mut self.evicted);
        self.pool.loaded(now, slot, &mut evicted);
        self.evicted = evicted;
        self.queue_evicted();
        let _over = self.take_turn(slot);
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
            Cause::Head { from, demand, .. } if from != id => {
                next.deadline = demand.deadline;
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
            Cause::Head { demand, .. } => next.deadline = demand.deadline,
            Cause::Parked | Cause::Gone => {}
        }
        if let Some(before) = holder {
            self.charge(slot, &before);
        }
        self.at_mut(slot).holder = Some(next);
    }
}

impl Entry {
    /// Returns whether its model is there, may leave and is not sealed.
    pub(super) fn can_be_sealed(&self) -> bool {
        let is_there = self.location == Location::Device && self.bytes > 0;
        is_there && self.about.may_leave && !self.is_sealed
    }
}
