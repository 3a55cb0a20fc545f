//! When a lease ends although its holder has work.

use super::deferred::Return;
use super::{
    Action, Holder, InstanceId, Leases, PARKED_CREDIT_MAX, PARKED_LOOK, PARKED_MAX, PARKED_SHARE,
    SlotId,
};
use crate::pool::FunctionId;
use crate::{Span, Time};

/// What waits for a slot that is in use.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Earliest latest start of the heads that are not late; [`Time::NEVER`] if there is none.
    latest_start: Time,
    has_head: bool,
    /// Earliest time by which a parked process is to have a lease.
    parked: Option<Time>,
}

impl Leases {
    /// Recalls the leases whose end has come, and computes when that of the others does. `returns`: the models that are on their way.
    pub(super) fn recall(&mut self, returns: &[Return], actions: &mut Vec<Action>) {
        let now = self.now;
        for slot in super::slots_of(self.unsettled() | self.waited_for()) {
            let at = self.at(slot);
            let Some(holder) = at.holder.filter(|holder| holder.is_leased()) else {
                continue;
            };
            if at.turn.is_some() || at.queues == 0 || !self.grants(slot) {
                continue;
            }
            let waiting = self.waiting_for(slot, holder.instance, returns);
            let is_contested = waiting.is_some_and(|waiting| waiting.has_head);
            let holder = self.contest(slot, holder, is_contested);
            let Some(waiting) = waiting else {
                continue;
            };
            let ends = if holder.is_parked {
                // Its end may be seen before.
                self.wake_at(now.after(PARKED_LOOK));
                self.end_of_parked(slot, &waiting, &holder)
            } else {
                self.end_of_lease(slot, &waiting, holder.instance, holder.since)
            };
            let ends = ends.max(holder.reserved_until);
            if ends <= now {
                self.begin_recall(slot, actions);
                if waiting.has_head && !self.at(slot).holder.is_some_and(|own| own.is_leased()) {
                    self.begin_drain(slot, &holder);
                    self.begin_yielding(slot, holder.instance);
                }
            } else {
                self.wake_at(ends);
            }
        }
    }

    /// Returns when the lease of a holder that computes for its queue ends.
    fn end_of_lease(&self, slot: SlotId, waiting: &Waiting, id: InstanceId, since: Time) -> Time {
        let Some(entry) = self.instances.get(&id) else {
            return self.now;
        };
        let (execution, drain) = (self.execution(entry), self.expected_drain(id));
        let function = self.functions.get(&entry.about.function);
        let load = function.map_or(Span::ZERO, |about| about.load(self.load_rate));
        let of_heads = match waiting.latest_start {
            Time::NEVER if waiting.has_head => {
                since.after(Span(load.0.saturating_mul(2).max(execution.0)))
            }
            Time::NEVER => Time::NEVER,
            latest => latest.before(drain),
        };
        let of_yielded = match self.at(slot).yielded_until {
            Some(until) if waiting.has_head => until.before(drain),
            _ => Time::NEVER,
        };
        let of_parked = match waiting.parked {
            Some(deadline) if self.credit(slot) > 0 || !waiting.has_head => deadline,
            _ => Time::NEVER,
        };
        of_heads.min(of_yielded).min(of_parked)
    }

    /// Returns when the lease of a parked process ends: with heads waiting once its credit is spent, and after some seconds anyway.
    fn end_of_parked(&self, slot: SlotId, waiting: &Waiting, holder: &Holder) -> Time {
        let until = holder.since.after(PARKED_MAX);
        if waiting.has_head {
            let credit = u64::try_from(self.credit(slot)).unwrap_or(0);
            let since = holder.contested_since.unwrap_or(self.now);
            return until.min(since.after(Span(credit)));
        }
        until
    }

    /// Records whether heads wait for the slot of a holder: only then a parked process uses its credit. Returns the holder.
    fn contest(&mut self, slot: SlotId, holder: Holder, is_contested: bool) -> Holder {
        let is_contested = is_contested && holder.is_parked;
        if is_contested == holder.contested_since.is_some() {
            return holder;
        }
        self.charge(slot, &holder);
        let contested_since = is_contested.then_some(self.now);
        let holder = Holder {
            contested_since,
            ..holder
        };
        self.at_mut(slot).holder = Some(holder);
        holder
    }

    /// Takes the time from the credit of a slot for which its holder has had it for a parked process while heads waited.
    pub(super) fn charge(&mut self, slot: SlotId, holder: &Holder) {
        let had = holder.contested_since.map(|since| self.now.since(since).0);
        let had = i64::try_from(had.unwrap_or(0)).unwrap_or(i64::MAX);
        let credit = self.credit(slot).saturating_sub(had);
        let now = self.now;
        let at = self.at_mut(slot);
        (at.credit, at.credited) = (credit, now);
    }

    /// Returns the time that parked processes may have on a slot while heads wait, in nanoseconds.
    pub(super) fn credit(&self, slot: SlotId) -> i64 {
        let at = self.at(slot);
        let narrow = |ns| i64::try_from(ns).unwrap_or(i64::MAX);
        let passed = self.now.since(at.credited).0 / PARKED_SHARE;
        let credit = at.credit.saturating_add(narrow(passed));
        credit.min(narrow(PARKED_CREDIT_MAX.0))
    }

    /// Returns the slots with an instance of a function of which something waits, as a bit set.
    pub(super) fn waited_for(&self) -> u64 {
        let waiting = self.waiting.iter().filter_map(|id| self.instances.get(id));
        let functions = waiting.filter_map(|entry| self.functions.get(&entry.about.function));
        let instances = functions.flat_map(|function| &function.instances);
        let slots = instances.filter_map(|id| self.slot_of(*id));
        slots.fold(0, |set, slot| set | 1 << slot.0)
    }

    /// Returns what waits for a slot, besides its holder; `None` if nothing does.
    fn waiting_for(&self, slot: SlotId, holder: InstanceId, returns: &[Return]) -> Option<Waiting> {
        let mut waiting = Waiting {
            latest_start: Time::NEVER,
            has_head: false,
            parked: None,
        };
        for id in &self.waiting {
            let Some(entry) = self.instances.get(id) else {
                continue;
            };
            if *id == holder {
                continue;
            }
            if let Some((_, demand)) = entry.head
                && self.may_run_on(entry.about.function, *id, slot)
            {
                let latest = demand.deadline.before(self.needed(entry));
                if latest >= self.now {
                    waiting.has_head = true;
                    waiting.latest_start = waiting.latest_start.min(latest);
                } else {
                    waiting.has_head |= !self.is_deferred(*id, returns);
                }
            }
            if let Some(deadline) = entry.parked
                && entry.about.slot == slot
                && self.may_have_turn(entry)
            {
                let earliest = waiting
                    .parked
                    .map_or(deadline, |before| before.min(deadline));
                waiting.parked = Some(earliest);
            }
        }
        (waiting.has_head || waiting.parked.is_some()).then_some(waiting)
    }

    /// Returns whether the head of an instance could run on a slot if it were free.
    pub(super) fn may_run_on(&self, function: FunctionId, from: InstanceId, slot: SlotId) -> bool {
        let Some(id) = self.instance_on(function, slot) else {
            return false;
        };
        let can_retry = self
            .instances
            .get(&id)
            .is_some_and(|entry| self.may_have_turn(entry));
        let may_forward = |entry| self.may_forward(entry, id);
        can_retry && (id == from || self.instances.get(&from).is_some_and(may_forward))
    }
}
