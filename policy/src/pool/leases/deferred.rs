//! Leases that begin late: others compute on a slot while a model takes long to return there.
//!
//! The model returns as one that is loaded ahead of its lease ([`super::ahead`]), and its head stays in the queue. The head may have the slot once the rest
//! of the load takes no longer than one and a half executions: it then ends as soon as if it had had the lease from the first, since it computes with what
//! has arrived. Where nothing computes with part of a model, it may have it when the load is expected to end.
//!
//! Until then, loads of other models over the same path wait if they could make the head late: each may delay it by as long as it takes alone.

use super::ahead::{Ahead, Stage};
use super::{Cause, InstanceId, Leases, SlotId, Turn};
use crate::pool::FunctionId;
use crate::{Span, Time};

/// Shortest time by which a lease begins later: for less, the hand-over of the lease to another and back is not worth it.
const LATER_MIN: Span = Span::from_millis(5);

/// Model on its way to a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Return {
    slot: SlotId,
    function: FunctionId,
    /// Time from which its head may have the slot; [`Time::ZERO`] if it is not to wait.
    starts_at: Time,
    /// Expected end of the load.
    ends: Time,
    /// Deadline of the request for which it returns; [`Time::ZERO`] if there is none.
    deadline: Time,
}

impl Leases {
    /// Returns the models that are on their way, or will be with the next turn of a slot.
    pub(super) fn returns_now(&self) -> Vec<Return> {
        if !self.begins_late {
            return Vec::new();
        }
        let slots = (0..self.slots.len()).map(super::slot_id);
        slots.flat_map(|slot| self.returns_to(slot)).collect()
    }

    fn returns_to(&self, slot: SlotId) -> impl Iterator<Item = Return> {
        let at = self.at(slot);
        let to_return = |id: InstanceId, since: Time, starts_at: Time, deadline: Option<Time>| {
            let function = self.instances.get(&id)?.about.function;
            let load = self.functions.get(&function)?.load();
            Some(Return {
                slot,
                function,
                starts_at,
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
            let Stage::Moving { since } = ahead.stage else {
                return None;
            };
            let id = ahead.instance;
            let deadline = of_turn(id).or_else(|| self.earliest_deadline(id));
            // Unless its lease has begun.
            let holds = at.holder.is_some_and(|holder| holder.instance == id);
            let promised = ahead.promised.filter(|_| !holds);
            to_return(id, since, promised.unwrap_or(Time::ZERO), deadline)
        });
        let holder = at.holder.and_then(|holder| {
            let since = holder.restores_since?;
            to_return(holder.instance, since, Time::ZERO, Some(holder.deadline))
        });
        let turn = at.turn.and_then(|turn| {
            let id = turn.instance;
            let is_next = self.is_away(id) && self.moves_ahead(id).is_none();
            let since = turn.moves_since.unwrap_or(self.now);
            is_next.then(|| to_return(id, since, Time::ZERO, of_turn(id)))?
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
        let load = self.functions.get(&function)?.load();
        let execution = self.execution_of(function, demand.estimate).0;
        let beside = match self.streams {
            true => execution.saturating_add(execution / 2),
            false => 0,
        };
        let later = Span(load.0.saturating_sub(beside));
        let starts_at = since.after(later);
        (later >= LATER_MIN && starts_at > self.now).then_some(starts_at)
    }

    /// Lets models that have returned for heads leave for claims, since what runs, and the slot with it, may wait for these; and once no head is left that can
    /// run on the slot.
    pub(super) fn end_promises(&mut self) {
        for slot in (0..self.slots.len()).map(super::slot_id) {
            let promised = self.at(slot).ahead.filter(|ahead| ahead.promised.is_some());
            if let Some(ahead) = promised
                && (self.has_claim(slot) || !self.has_head_for(slot, ahead.instance))
            {
                self.end_promise(slot);
            }
        }
    }

    /// Returns whether a head waits that can run on a slot, on which an instance of its function is.
    fn has_head_for(&self, slot: SlotId, id: InstanceId) -> bool {
        let Some(function) = self.instances.get(&id).map(|entry| entry.about.function) else {
            return false;
        };
        let siblings = self.functions.get(&function);
        let mut siblings = siblings.map_or(&[][..], |about| &about.instances).iter();
        siblings.any(|from| {
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
        let is_other =
            |ahead: Ahead| ahead.stage != Stage::There && ahead.instance != turn.instance;
        self.starts_at(slot, turn, self.now).is_some()
            && !self.at(slot).ahead.is_some_and(is_other)
            && self.can_come_ahead(turn.instance, u64::MAX)
    }

    /// Returns those of the slots `among`, a bit set, that the head of an instance may take although these models return.
    pub(super) fn without_deferred(&self, from: InstanceId, among: u64, returns: &[Return]) -> u64 {
        let Some(entry) = self.instances.get(&from).filter(|_| !returns.is_empty()) else {
            return among;
        };
        let function = entry.about.function;
        let load = self
            .functions
            .get(&function)
            .map_or(Span::ZERO, super::Function::load);
        let held = self.pool.held(function);
        let (mut left, mut waits) = (among, false);
        for other in returns {
            if other.function == function {
                let is_early = among >> other.slot.0 & 1 == 1 && self.now < other.starts_at;
                left &= !(u64::from(is_early) << other.slot.0);
                waits |= is_early;
            } else if other.ends <= other.deadline && other.ends.after(load) > other.deadline {
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
        for slot in (0..self.slots.len()).map(super::slot_id) {
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
        let function = entry.map(|entry| entry.about.function);
        let mut own = returns
            .iter()
            .filter(|other| Some(other.function) == function);
        own.any(|other| self.now < other.starts_at)
    }

    /// Has the next decision be due once a head may have a slot.
    pub(super) fn wake_for_deferred(&mut self, returns: &[Return]) {
        for other in returns {
            if other.starts_at > self.now {
                self.wake_at(other.starts_at);
            }
            if other.deadline > self.now {
                // From then on nothing waits for it.
                self.wake_at(other.deadline);
            }
        }
    }
}
