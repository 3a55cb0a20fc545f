//! Loads ahead of leases: the model of a waiting head returns while another instance computes ([`ahead`]).

use super::{Action, Entry, InstanceId, Leases, Location, SlotId, slots_of};
use crate::Time;
use crate::pool::FunctionId;
use crate::pool::ahead::{self, Candidate};

/// Model that is loaded to a slot ahead of its lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    pub(super) instance: InstanceId,
    pub(super) stage: Stage,
    /// Time from which its head may have the slot if the model is not there before. The head was next there when the model began to return, which leaves for
    /// no other before that head is served. `None`: nothing is promised.
    pub(super) promised: Option<Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Others leave for it.
    Leaving,
    /// It is on its way.
    Moving { since: Time },
    /// It is there, for a head that waits.
    There,
}

impl Ahead {
    /// Returns whether no model of another instance may be loaded ahead to the slot instead: it is not there yet, or it is for a head which was next.
    pub(super) fn is_kept_from(&self, id: InstanceId) -> bool {
        self.stage != Stage::There || self.promised.is_some() && self.instance != id
    }
}

impl Leases {
    /// Carries out the loads ahead that have been decided on, and decides on new ones.
    pub(super) fn load_ahead(&mut self, actions: &mut Vec<Action>) {
        if !self.loads_ahead {
            return;
        }
        self.each_unsettled(|own, slot| own.step_ahead(slot, actions));
        // Under load most slots have a load on their path most of the time: no head is looked at for them.
        let open = slots_of(self.waited_for());
        let open = open.filter(|slot| self.is_open_ahead(*slot) && !self.pool.is_path_taken(*slot));
        let mut open = open.fold(0_u64, |set, slot| set | 1 << slot.0);
        if open == 0 || self.waiting.is_empty() {
            return;
        }
        let now = self.now;
        let mut waiting: Vec<(InstanceId, Candidate)> = self
            .waiting
            .iter()
            .filter_map(|id| Some((*id, self.waiting_ahead(*id, open)?)))
            .collect();
        waiting.sort_unstable_by_key(|(id, one)| (one.key(now), *id));
        for (_, one) in waiting {
            let slot = ahead::choose(
                &self.pool,
                &one,
                |slot| open >> slot.0 & 1 == 1,
                |slot| self.free_at(slot),
                |slot, function| self.may_leave_ahead(slot, function),
            );
            if let Some(slot) = slot {
                self.begin_ahead(slot, &one, actions);
                open &= !(1 << slot.0);
            }
            if open == 0 {
                return;
            }
        }
    }

    /// Returns whether a model may be loaded ahead on a slot.
    fn is_open_ahead(&self, slot: SlotId) -> bool {
        let at = self.at(slot);
        let is_in_use = at.holder.is_some() || at.turn.is_some();
        self.grants(slot)
            && at.queues > 0
            && is_in_use
            && at.ahead.is_none()
            && !self.has_claim(slot)
    }

    /// Returns the head of an instance as one whose model may be loaded ahead on one of the slots of a bit set; `None` if there is none.
    fn waiting_ahead(&self, from: InstanceId, open: u64) -> Option<Candidate> {
        let entry = self.instances.get(&from)?;
        let (_, demand) = entry.head?;
        let function = entry.about.function;
        let about = self.functions.get(&function)?;
        let slots_of = |can: &dyn Fn(InstanceId) -> bool| {
            let own = about.instances.iter().copied().filter(|id| can(*id));
            own.fold(0, |set, id| {
                set | self.slot_of(id).map_or(0, |slot| 1 << slot.0)
            })
        };
        let may = |id| {
            let has_failed = |own: &Entry| self.has_failed(own);
            let can = id == from || self.may_forward(entry, id);
            can && !self.instances.get(&id).is_some_and(has_failed)
        };
        if self.pool.held(function) & slots_of(&may) & !self.lost != 0 {
            return None;
        }
        let among = slots_of(&|id| may(id) && self.can_come_ahead(id, open));
        let latest = ahead::latest(
            demand.deadline,
            about.load(self.load_rate),
            self.execution(entry),
        );
        (among != 0).then_some(Candidate {
            function,
            bytes: about.bytes,
            is_slowed: !self.streams || about.is_heavy(),
            among,
            latest,
        })
    }

    /// Returns whether the model of an instance may be loaded ahead on its slot, which is to be in the bit set `open`: the data of all that are there may be
    /// beside its own.
    pub(super) fn can_come_ahead(&self, id: InstanceId, open: u64) -> bool {
        let Some(entry) = self.instances.get(&id) else {
            return false;
        };
        let slot = entry.about.slot;
        let is_own = |own: Option<InstanceId>| own == Some(id);
        let at = self.at(slot);
        let is_away = entry.location == Location::Host && entry.claim.is_none();
        if open >> slot.0 & 1 == 0
            || !is_away
            || !self.may_have_turn(entry)
            || is_own(at.holder.map(|holder| holder.instance))
        {
            return false;
        }
        let mut others = self
            .instances
            .iter()
            .filter(|(other, own)| own.about.slot == slot && **other != id);
        others.all(|(other, own)| {
            let uses = at.holder.is_some_and(|holder| holder.instance == *other)
                || at.turn.is_some_and(|turn| turn.instance == *other);
            let is_there = own.location == Location::Device || uses || self.returns(*other);
            !is_there || own.about.class.is_beside(entry.about.class)
        })
    }

    /// Returns whether a model may leave a slot for one that is loaded ahead: it is sealed, and no head waits for it.
    fn may_leave_ahead(&self, slot: SlotId, function: FunctionId) -> bool {
        let Some(id) = self.instance_on(function, slot) else {
            return false;
        };
        let Some(entry) = self.instances.get(&id) else {
            return false;
        };
        let waits = |id: &InstanceId| {
            let entry = self.instances.get(id);
            entry.is_some_and(|entry| entry.head.is_some())
        };
        let own = self.functions.get(&function);
        entry.is_sealed
            && entry.location == Location::Device
            && entry.parked.is_none()
            && entry.claim.is_none()
            && !self.at(slot).leaves(id)
            && own.is_none_or(|own| !own.instances.iter().any(waits))
    }

    fn begin_ahead(&mut self, slot: SlotId, one: &Candidate, actions: &mut Vec<Action>) {
        let Some(instance) = self.instance_on(one.function, slot) else {
            return;
        };
        let bytes = self.instances[&instance].bytes;
        let on_slot = self.instances.values();
        let on_slot = on_slot.filter(|entry| entry.about.slot == slot);
        let may_leave: Vec<FunctionId> = on_slot
            .map(|entry| entry.about.function)
            .filter(|function| self.may_leave_ahead(slot, *function))
            .collect();
        let mut evicted = std::mem::take(&mut self.evicted);
        let may_leave = |function| may_leave.contains(&function);
        let begins = self
            .pool
            .load_ahead(one.function, slot, bytes, may_leave, &mut evicted);
        self.evicted = evicted;
        self.queue_evicted();
        if !begins {
            return;
        }
        self.at_mut(slot).ahead = Some(Ahead {
            instance,
            stage: Stage::Leaving,
            promised: None,
        });
        let stays = self.at(slot).turn.map(|turn| turn.instance);
        self.evict_sealed(slot, stays, actions);
        self.step_ahead(slot, actions);
    }

    /// Carries out the next step of the load ahead on a slot.
    fn step_ahead(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        let Some(Ahead {
            instance, stage, ..
        }) = self.at(slot).ahead
        else {
            return;
        };
        let Some(entry) = self.instances.get(&instance) else {
            self.at_mut(slot).ahead = None;
            return;
        };
        let function = entry.about.function;
        let has_turn = |own: super::Turn| own.instance == instance;
        let has_turn = self.at(slot).turn.is_some_and(has_turn);
        let siblings = self.functions.get(&function);
        let siblings = siblings.map_or(&[][..], |about| &about.instances);
        let is_wanted = has_turn
            || siblings.iter().any(|id| {
                let entry = self.instances.get(id);
                entry.is_some_and(|entry| entry.head.is_some())
            });
        match stage {
            Stage::Leaving if !is_wanted || !self.can_come_ahead(instance, 1 << slot.0) => {
                self.cancel_ahead(slot);
            }
            Stage::Leaving => {
                let loads = self.at(slot).turn.is_some_and(|turn| turn.is_restoring);
                if self.at(slot).leaves_nothing() && !loads {
                    self.move_ahead(slot, instance, actions);
                }
            }
            Stage::Moving { .. } => {}
            Stage::There => {
                let is_there = entry.location == Location::Device;
                let holds = |own: super::Holder| own.instance == instance;
                let is_over = self.at(slot).holder.is_some_and(holds);
                if !is_wanted || !is_there || is_over || self.at(slot).leaves(instance) {
                    self.forget_ahead(slot);
                }
            }
        }
    }

    /// Forgets that a model was loaded ahead which is there.
    fn forget_ahead(&mut self, slot: SlotId) {
        self.end_promise(slot);
        self.at_mut(slot).ahead = None;
        self.pool.forget_ahead(slot);
    }

    /// Lets the model that was loaded ahead on a slot leave for others once it is there, whether its head is served or not.
    pub(super) fn end_promise(&mut self, slot: SlotId) {
        let Some(ahead) = &mut self.at_mut(slot).ahead else {
            return;
        };
        let was_promised = ahead.promised.take().is_some();
        let Ahead {
            instance, stage, ..
        } = *ahead;
        if was_promised
            && stage == Stage::There
            && let Some(entry) = self.instances.get(&instance)
        {
            let about = entry.about;
            self.pool.set_pinned(about.function, slot, !about.may_leave);
        }
    }

    /// Orders a model to return while another instance computes.
    pub(super) fn move_ahead(
        &mut self,
        slot: SlotId,
        instance: InstanceId,
        actions: &mut Vec<Action>,
    ) {
        self.forget_ahead(slot);
        let since = self.now;
        self.at_mut(slot).ahead = Some(Ahead {
            instance,
            stage: Stage::Moving { since },
            promised: None,
        });
        self.order_return(instance, actions);
    }

    /// Has the model of the instance with the next turn return while the holder's lease still ends, once there is room.
    pub(super) fn restore_ahead_of_turn(&mut self, slot: SlotId, actions: &mut Vec<Action>) {
        let at = self.at(slot);
        let (Some(turn), Some(holder)) = (at.turn, at.holder) else {
            return;
        };
        let id = turn.instance;
        if !self.loads_ahead
            || !at.leaves_nothing()
            || at.ahead.is_some_and(|ahead| ahead.is_kept_from(id))
            || holder.instance == id
            || self.pool.moves_ahead(slot).is_some()
            || !self.is_away(id)
            || !self.can_come_ahead(id, 1 << slot.0)
        {
            return;
        }
        self.move_ahead(slot, id, actions);
    }

    /// Returns since when the model of an instance returns ahead of its lease; `None` if it does not.
    pub(super) fn moves_ahead(&self, id: InstanceId) -> Option<Time> {
        match self.at(self.slot_of(id)?).ahead? {
            Ahead {
                instance,
                stage: Stage::Moving { since },
                ..
            } if instance == id => Some(since),
            _ => None,
        }
    }

    /// Returns the slots to which a model is on its way, or is there for a head that is served first, beside whose data a function's must not be, as a bit set.
    pub(super) fn strange_ahead(&self, function: FunctionId) -> u64 {
        let moving = slots_of(self.unsettled()).filter_map(|slot| self.at(slot).ahead);
        let moving = moving.filter(|ahead| {
            ahead.promised.is_some() || matches!(ahead.stage, Stage::Moving { .. })
        });
        moving.fold(0, |set, ahead| {
            let Some(other) = self.instances.get(&ahead.instance) else {
                return set;
            };
            let slot = other.about.slot;
            let own = self.instance_on(function, slot);
            let is_beside = own.is_none_or(|id| {
                id == ahead.instance || self.instances[&id].about.class.is_beside(other.about.class)
            });
            set | u64::from(!is_beside) << slot.0
        })
    }

    /// Gives up the load ahead on a slot, unless the model is on its way already, which then arrives.
    pub(super) fn cancel_ahead(&mut self, slot: SlotId) {
        let Some(ahead) = self.at(slot).ahead else {
            return;
        };
        if let Stage::Moving { .. } = ahead.stage {
            return;
        }
        self.forget_ahead(slot);
        if ahead.stage == Stage::Leaving {
            let is_there = self
                .instances
                .get(&ahead.instance)
                .is_some_and(|entry| entry.location == Location::Device);
            self.end_in_pool(slot, ahead.instance, is_there);
        }
    }

    /// Ends the load ahead of an instance's model, if it is one that was on its way.
    pub(super) fn end_ahead(&mut self, slot: SlotId, id: InstanceId, is_there: bool) {
        let Some(since) = self.moves_ahead(id) else {
            return;
        };
        let at = self.at(slot);
        let own_turn = at.turn.filter(|turn| turn.instance == id);
        // A lease that the end of the load decides on measures it.
        let is_awaited = own_turn.is_some_and(|turn| turn.is_restoring)
            || at.holder.is_some_and(|holder| holder.instance == id);
        if is_there && !is_awaited {
            self.was_loaded(id, self.now.since(since));
        } else if !is_there && !is_awaited {
            self.retry_later(id);
            if own_turn.is_some() {
                self.fail_turn(slot);
            }
        }
        let at = self.at_mut(slot);
        at.ahead = at.ahead.filter(|_| is_there);
        if let Some(ahead) = &mut at.ahead {
            ahead.stage = Stage::There;
        }
        self.set_sealed(id, false);
        self.end_in_pool(slot, id, is_there);
    }

    /// Returns whether the model of an instance has returned ahead of its lease.
    pub(super) fn is_there_ahead(&self, slot: SlotId, id: InstanceId) -> bool {
        let ahead = self.at(slot).ahead;
        ahead.is_some_and(|ahead| ahead.instance == id && ahead.stage == Stage::There)
    }

    /// Ends the load ahead of an instance's model as the pool counts it.
    pub(super) fn end_in_pool(&mut self, slot: SlotId, id: InstanceId, is_there: bool) {
        let Some(entry) = self.instances.get(&id) else {
            return;
        };
        let (about, bytes) = (entry.about, entry.bytes);
        if self.pool.moves_ahead(slot) != Some(about.function) {
            return;
        }
        if is_there {
            let _there = self.pool.set_resident(about.function, slot, bytes);
        }
        let stays = !about.may_leave || self.at(slot).is_promised(id);
        self.pool.loaded_ahead(slot, is_there, stays);
    }
}
