//! Turns: which waiting instance gets which slot.

use super::{Cause, Entry, InstanceId, Leases, PARKED_CREDIT_MAX, PARKED_SHARE, SlotId, Turn};
use crate::pool::FunctionId;
use crate::pool::slots::{Decision, Evicted};
use crate::{Span, Time};

impl Leases {
    /// Assigns free slots to heads in their order, and to parked processes. Returns whether any was assigned.
    pub(super) fn assign(&mut self) -> bool {
        self.accrue();
        self.release_held();
        let due = self.assign_parked(true);
        let mut is_assigned = due;
        self.estimate();
        while let Some((head, _)) = self.queue.next(self.now) {
            let Ok(number) = u32::try_from(head.request.0) else {
                break;
            };
            let from = InstanceId(number);
            let among = self.slots_for(from);
            let assigned = among != 0 && self.assign_head(from, head.function, among);
            if assigned {
                is_assigned = true;
            } else {
                self.queue.hold(self.now, head.function);
                self.held.push(head.function);
            }
        }
        self.assign_parked(false) || is_assigned
    }

    /// Lets all heads be next again.
    pub(super) fn release_held(&mut self) {
        let now = self.now;
        for function in self.held.drain(..) {
            self.queue.release(now, function);
        }
    }

    fn assign_head(&mut self, from: InstanceId, function: FunctionId, among: u64) -> bool {
        let Some((ticket, demand)) = self.instances.get(&from).and_then(|entry| entry.head) else {
            return false;
        };
        let Some(slot) = self.schedule(function, among) else {
            return false;
        };
        let Some(instance) = self.instance_on(function, slot) else {
            return false;
        };
        let now = self.now;
        let _head = self.queue.take(now, ticket);
        if let Some(entry) = self.instances.get_mut(&from) {
            entry.head = None;
        }
        self.settle_waiting(from);
        self.begin_turn(instance, Cause::Head { from, demand });
        true
    }

    /// Lets the pool choose one of the slots for a function, and takes it.
    fn schedule(&mut self, function: FunctionId, among: u64) -> Option<SlotId> {
        let mut evicted: Vec<Evicted> = std::mem::take(&mut self.evicted);
        let decision = self
            .pool
            .schedule_among(self.now, function, among, 0, &mut evicted);
        let slot = match decision {
            Decision::Run(run) => {
                self.leave_for(function, run.slot, &mut evicted);
                Some(run.slot)
            }
            Decision::Wait { until, .. } => {
                if let Some(until) = until {
                    self.wake_at(until);
                }
                None
            }
        };
        self.evicted = evicted;
        self.queue_evicted();
        slot
    }

    /// Evicts models whose data must not be beside that of the function.
    fn leave_for(&mut self, function: FunctionId, slot: SlotId, evicted: &mut Vec<Evicted>) {
        let class = |function| {
            let id = self.instance_on(function, slot)?;
            Some(self.instances.get(&id)?.about.class)
        };
        let Some(own) = class(function) else {
            return;
        };
        let strangers: Vec<FunctionId> = self
            .functions
            .keys()
            .copied()
            .filter(|other| *other != function)
            .filter(|other| class(*other).is_some_and(|other| !own.is_beside(other)))
            .collect();
        self.pool.unload_where(
            slot,
            |other| strangers.binary_search(&other).is_ok(),
            evicted,
        );
    }

    fn begin_turn(&mut self, instance: InstanceId, cause: Cause) {
        let Some(slot) = self.slot_of(instance) else {
            return;
        };
        self.at_mut(slot).turn = Some(Turn {
            instance,
            cause,
            moves_since: None,
            is_restoring: false,
        });
    }

    /// Returns whether a slot may be assigned: the pool knows whether it is free.
    fn is_assignable(&self, slot: SlotId) -> bool {
        let at = self.at(slot);
        at.is_usable && at.queues > 0 && at.turn.is_none()
    }

    /// Returns the slots on which the head of an instance may run, as a bit set: its own, and those of siblings if it can forward to them.
    fn slots_for(&self, from: InstanceId) -> u64 {
        let Some(entry) = self.instances.get(&from) else {
            return 0;
        };
        let siblings = self.functions.get(&entry.about.function);
        let siblings = siblings.map_or(&[][..], |about| &about.instances);
        let mut set = 0;
        for id in siblings {
            let Some(sibling) = self.instances.get(id) else {
                continue;
            };
            let is_own = *id == from;
            let may = is_own || (entry.is_reachable && sibling.is_reachable);
            if may && self.now >= sibling.retry_at && self.is_assignable(sibling.about.slot) {
                set |= 1 << sibling.about.slot.0;
            }
        }
        set
    }

    /// Passes the times that heads need to the queue.
    fn estimate(&mut self) {
        for at in 0..self.waiting.len() {
            let Some(entry) = self.instances.get(&self.waiting[at]) else {
                continue;
            };
            if entry.head.is_some() {
                let estimate = self.needed(entry);
                let function = entry.about.function;
                self.queue.set_estimate(self.now, function, estimate);
            }
        }
    }

    /// Returns the time that a request of an instance needs from its start: execution, and load unless the model is on a slot.
    pub(super) fn needed(&self, entry: &Entry) -> Span {
        let execution = self.execution(entry);
        let function = entry.about.function;
        let load = match self.pool.held(function) {
            0 => self
                .functions
                .get(&function)
                .map_or(Span::ZERO, super::Function::load),
            _ => Span::ZERO,
        };
        if self.streams {
            // It computes while its model arrives.
            return execution.max(load);
        }
        Span(execution.0.saturating_add(load.0))
    }

    /// Adds to the time that parked processes may have.
    fn accrue(&mut self) {
        let now = self.now;
        let most = i64::try_from(PARKED_CREDIT_MAX.0).unwrap_or(i64::MAX);
        for at in &mut self.slots {
            let passed = now.since(at.credited).0 / PARKED_SHARE;
            let passed = i64::try_from(passed).unwrap_or(i64::MAX);
            at.credit = at.credit.saturating_add(passed).min(most);
            // What is less than the unit is not lost.
            if passed > 0 {
                at.credited = now;
            }
        }
    }

    /// Assigns free slots to parked processes: with `is_due`, only to those whose time has come and for which there is credit.
    fn assign_parked(&mut self, is_due: bool) -> bool {
        let now = self.now;
        let mut candidates: Vec<(Time, InstanceId)> = self
            .waiting
            .iter()
            .filter_map(|id| {
                let entry = self.instances.get(id)?;
                let deadline = entry.parked?;
                let slot = entry.about.slot;
                let may = now >= entry.retry_at && self.is_assignable(slot);
                let is_free = self.pool.free_set() >> slot.0 & 1 == 1;
                let is_due = !is_due || (deadline <= now && self.at(slot).credit > 0);
                (may && is_free && is_due).then_some((deadline, *id))
            })
            .collect();
        candidates.sort_unstable();
        let mut is_assigned = false;
        for (_, id) in candidates {
            let Some(entry) = self.instances.get(&id) else {
                continue;
            };
            let (function, slot) = (entry.about.function, entry.about.slot);
            if self
                .at(slot)
                .holder
                .is_some_and(|own| own.instance == id && own.is_leased())
            {
                continue;
            }
            if self.is_assignable(slot) && self.schedule(function, 1 << slot.0).is_some() {
                self.begin_turn(id, Cause::Parked);
                is_assigned = true;
            }
        }
        is_assigned
    }
}
