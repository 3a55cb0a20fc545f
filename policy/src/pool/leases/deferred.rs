//! Leases that begin late: others compute on a slot while a model takes long to return there.
//!
//! The model returns as one that is loaded ahead of its lease ([`super::ahead`]), and its head stays in the queue. The head may have the slot once the rest
//! of the load takes no longer than one and a half executions: it then ends as soon as if it had had the lease from the first, since it computes with what
//! has arrived. Where nothing computes with part of a model, it may have it when the load is expected to end. In both cases it may once the model is there.
//!
//! Until then, loads of other models over the same path wait if they could make the head late: each may delay it by as long as it takes alone.

use super::ahead::{Ahead, Stage};
use super::{Cause, InstanceId, Leases, SlotId, Turn, slots_of};
use crate::pool::FunctionId;
use crate::{Span, Time};

/// Shortest time by which a lease begins later: for less, the hand-over of the lease to another and back is not worth it.
const LATER_MIN: Span = Span::from_millis(5);

/// Model on its way to a slot, or there for a head which was next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Return {
    slot: SlotId,
    function: FunctionId,
    /// Time from which its head may have the slot; [`Time::ZERO`] if it is not to wait.
    starts_at: Time,
    /// Time by which what others compute on the slot is to end; [`Time::NEVER`] if nothing is promised.
    free_by: Time,
    /// Expected time of the load, and its end; zero and [`Time::NEVER`] if it is over.
    load: Span,
    ends: Time,
    /// Deadline of the request for which it returns; [`Time::ZERO`] if there is none.
    deadline: Time,
}

impl Leases {
    /// Returns the models that are on their way, or will be with the next turn of a slot, and those that are there for a head which was next.
    pub(super) fn returns_now(&self) -> Vec<Return> {
        if !self.begins_late {
            return Vec::new();
        }
        let slots = slots_of(self.unsettled());
        slots.flat_map(|slot| self.returns_to(slot)).collect()
    }

    fn returns_to(&self, slot: SlotId) -> impl Iterator<Item = Return> {
        let at = self.at(slot);
        let to_return = |id: InstanceId, since: Time, deadline: Option<Time>| {
            let function = self.instances.get(&id)?.about.function;
            let load = self.functions.get(&function)?.load(self.load_rate);
            Some(Return {
                slot,
                function,
                starts_at: Time::ZERO,
                free_by: Time::NEVER,
                load,
                ends: since.after(load).max(self.now),
                deadline: deadline.unwrap_or(Time::ZERO),
            })
        };
        let of_turn = |id| {
            let turn = at.turn.filter(|turn| turn.instance == id)?;
            match turn.cause {
                Cause::Head { demand, .. } => Some(demand.deadline),
                Cause::Parked | Cause::Gone => None,
            }
        };
        let ahead = at.ahead.and_then(|ahead| {
            let id = ahead.instance;
            let deadline = of_turn(id).or_else(|| self.earliest_deadline(id));
            // Unless its lease has begun.
            let holds = at.holder.is_some_and(|holder| holder.instance == id);
            let promised = ahead.promised.filter(|_| !holds);
            let mut own = match ahead.stage {
                Stage::Moving { since } => to_return(id, since, deadline)?,
                Stage::There if promised.is_some() => Return {
                    load: Span::ZERO,
                    ends: Time::NEVER,
                    ..to_return(id, self.now, deadline)?
                },
                Stage::There | Stage::Leaving => return None,
            };
            if let Some(starts_at) = promised {
                let execution = self.execution_of(own.function, Span::ZERO);
                // A load may take less than expected.
                own.starts_at = if ahead.stage == Stage::There {
                    Time::ZERO
                } else {
                    starts_at
                };
                own.free_by = own.deadline.before(execution).max(own.starts_at);
            }
            Some(own)
        });
        let holder = at.holder.and_then(|holder| {
            let since = holder.restores_since?;
            to_return(holder.instance, since, Some(holder.deadline))
        });
        let turn = at.turn.and_then(|turn| {
            let id = turn.instance;
            let is_next = self.is_away(id) && self.moves_ahead(id).is_none();
            let since = turn.moves_since.unwrap_or(self.now);
            is_next.then(|| to_return(id, since, of_turn(id)))?
        });
        [ahead, holder, turn].into_iter().flatten()
    }

    /// Returns the earliest deadline of the heads of an instance's function.
    fn earliest_deadline(&self, id: InstanceId) -> Option<Time> {
        let function = self.instances.get(&id)?.about.function;
        let siblings = self.functions.get(&function)?.instances.iter();
        let heads = siblings.filter_map(|id| self.instances.get(id)?.head);
        heads.map(|(_, demand)| demand.deadline).min()
    }

    /// Returns the time from which the head for which a turn is may have the slot if its model has returned since `since`; `None` if it is not to wait.
    fn starts_at(&self, slot: SlotId, turn: &Turn, since: Time) -> Option<Time> {
        let Cause::Head { demand, .. } = turn.cause else {
            return None;
        };
        // A head to which another yields the slot has it until a time.
        if !self.begins_late || self.at(slot).yielded_until.is_some() || self.has_claim(slot) {
            return None;
        }
        let function = self.instances.get(&turn.instance)?.about.function;
        let load = self.functions.get(&function)?.load(self.load_rate);
        let execution = self.execution_of(function, demand.estimate).0;
        let beside = match self.streams {
            true => execution.saturating_add(execution / 2),
            false => 0,
        };
        let later = Span(load.0.saturating_sub(beside));
        let starts_at = since.after(later);
        (later >= LATER_MIN && starts_at > self.now).then_some(starts_at)
    }

    /// Lets models that have returned for heads leave for claims and for the model of the slot's holder, since what runs, and the slot with it, may wait for
    /// these; and once no head is left that can run on the slot.
    pub(super) fn end_promises(&mut self) {
        for slot in slots_of(self.unsettled()) {
            let promised = self.at(slot).ahead.filter(|ahead| ahead.promised.is_some());
            if let Some(ahead) = promised
                && (self.has_claim(slot)
                    || self.lacks_holders_model(slot)
                    || !self.has_head_for(slot, ahead.instance))
            {
                self.end_promise(slot);
            }
        }
    }

    /// Returns whether the model of a slot's holder is away, and is not on its way.
    fn lacks_holders_model(&self, slot: SlotId) -> bool {
        let holder = self.at(slot).holder.map(|holder| holder.instance);
        holder.is_some_and(|id| self.is_away(id) && !self.returns(id))
    }

    /// Returns whether a head waits that can run on a slot, on which an instance of its function is, or has the next turn there.
    fn has_head_for(&self, slot: SlotId, id: InstanceId) -> bool {
        let Some(function) = self.instances.get(&id).map(|entry| entry.about.function) else {
            return false;
        };
        let siblings = self.functions.get(&function);
        let mut siblings = siblings.map_or(&[][..], |about| &about.instances).iter();
        let has_turn = self.at(slot).turn.is_some_and(|turn| turn.instance == id);
        has_turn
            || siblings.any(|from| {
                let waits = self
                    .instances
                    .get(from)
                    .is_some_and(|entry| entry.head.is_some());
                waits && self.may_run_on(function, *from, slot)
            })
    }

    /// Gives up the next turn of a slot, whose model is on its way there, if the lease is to begin later. Returns whether it does. A turn that begins since
    /// the promised time has come is not given up again.
    pub(super) fn defer(&mut self, slot: SlotId, turn: &Turn) -> bool {
        let Some(since) = self.moves_ahead(turn.instance) else {
            return false;
        };
        let Some(starts_at) = self.starts_at(slot, turn, since) else {
            return false;
        };
        let Some(ahead) = &mut self.at_mut(slot).ahead else {
            return false;
        };
        if ahead.promised.is_some() {
            return false;
        }
        ahead.promised = Some(starts_at);
        self.fail_turn(slot);
        true
    }

    /// Returns whether the lease of a slot's next turn would begin later than the return of its model that begins now.
    pub(super) fn would_defer(&self, slot: SlotId, turn: &Turn) -> bool {
        let id = turn.instance;
        let is_kept = |ahead: Ahead| ahead.is_kept_from(id);
        self.starts_at(slot, turn, self.now).is_some()
            && !self.at(slot).ahead.is_some_and(is_kept)
            && self.can_come_ahead(id, u64::MAX)
            && self.has_company(id)
    }

    /// Returns whether another instance may compute on an instance's slot beside its data.
    fn has_company(&self, id: InstanceId) -> bool {
        let Some(own) = self.instances.get(&id) else {
            return false;
        };
        let mut others = self.instances.iter().filter(|(other, _)| **other != id);
        others.any(|(_, other)| {
            other.about.slot == own.about.slot && other.about.class.is_beside(own.about.class)
        })
    }

    /// Returns those of the slots `among`, a bit set, that the head of an instance may take although these models return. `is_aged`: it has waited so long that
    /// its load waits for no other's.
    pub(super) fn without_deferred(
        &self,
        from: InstanceId,
        among: u64,
        returns: &[Return],
        is_aged: bool,
    ) -> u64 {
        let Some(entry) = self.instances.get(&from).filter(|_| !returns.is_empty()) else {
            return among;
        };
        let function = entry.about.function;
        let load = self
            .functions
            .get(&function)
            .map_or(Span::ZERO, |about| about.load(self.load_rate));
        let ends = self.now.after(self.execution(entry));
        let held = self.pool.held(function);
        let (mut left, mut waits) = (among, false);
        for other in returns {
            let slot = 1 << other.slot.0;
            if other.function == function {
                let is_early = among & slot != 0 && self.now < other.starts_at;
                left &= !(u64::from(is_early) << other.slot.0);
                waits |= is_early;
                continue;
            }
            let is_there = held & slot != 0;
            let ends = if is_there { ends } else { ends.after(load) };
            if ends > other.free_by {
                left &= !slot;
            }
            let spoils = other.ends < other.deadline && other.ends.after(load) > other.deadline;
            if spoils && !is_aged {
                left &= held | !self.pool.on_path(other.slot);
            }
        }
        // It waits for the model rather than have it loaded to another slot too.
        if waits && left & held & self.pool.free_set() == 0 {
            return 0;
        }
        left
    }

    /// Assigns free slots to heads that were next there when their models began to return, and are late since: they do not wait for others again. Returns whether
    /// any was assigned.
    pub(super) fn assign_promised(&mut self) -> bool {
        let mut is_assigned = false;
        for slot in slots_of(self.unsettled()) {
            let Some(ahead) = self.at(slot).ahead else {
                continue;
            };
            let Some(starts_at) = ahead.promised else {
                continue;
            };
            let id = ahead.instance;
            let can_start = ahead.stage == Stage::There || starts_at <= self.now;
            let Some(function) = self.instances.get(&id).map(|entry| entry.about.function) else {
                continue;
            };
            let among = 1 << slot.0;
            let siblings = self
                .functions
                .get(&function)
                .map_or(&[][..], |about| &about.instances);
            let mut late = siblings.iter().filter_map(|from| {
                let entry = self.instances.get(from)?;
                let (_, demand) = entry.head?;
                let latest = demand.deadline.before(self.execution(entry));
                let may = latest < self.now && self.slots_for(*from) & among != 0;
                may.then_some((demand.deadline, *from))
            });
            let is_free = can_start && self.free_slots() & among != 0;
            let first = is_free.then(|| late.by_ref().min()).flatten();
            is_assigned |= first.is_some_and(|(_, from)| self.assign_head(from, function, among));
        }
        is_assigned
    }

    /// Returns whether the head of an instance waits for a model that returns to one of its function's slots.
    pub(super) fn is_deferred(&self, from: InstanceId, returns: &[Return]) -> bool {
        let entry = self.instances.get(&from);
        let Some(function) = entry.map(|entry| entry.about.function) else {
            return false;
        };
        returns.iter().any(|other| {
            other.function == function
                && self.now < other.starts_at
                && self.grants(other.slot)
                && self.may_run_on(function, from, other.slot)
        })
    }

    /// Returns whether a model returns to a slot, or is there, for a head which was next.
    pub(super) fn is_promised(&self, slot: SlotId) -> bool {
        let ahead = self.at(slot).ahead;
        ahead.is_some_and(|ahead| ahead.promised.is_some())
    }

    /// Has the next decision be due once a head may have a slot.
    pub(super) fn wake_for_deferred(&mut self, returns: &[Return]) {
        let now = self.now;
        for other in returns {
            // A load that waits for its own turn ends later and later; from the deadline on nothing waits for it.
            let times = [
                other.starts_at,
                other.deadline.before(other.load),
                other.deadline,
            ];
            for at in times.into_iter().filter(|at| *at > now) {
                self.wake_at(at);
            }
        }
    }
}
