//! Turns: which waiting instance gets which slot.

use super::{Cause, Entry, Function, InstanceId, Leases, SlotId, Stage, Turn};
use crate::pool::slots::{Decision, Evicted};
use crate::pool::{FunctionId, queue};
use crate::{Span, Time};

/// Number of load times for which a head waits at most for a slot that has its model.
const LOADS_WAITED: u64 = 8;
/// Shortest time after which it is looked again whether a head still waits for a slot that has its model.
const LOOK: Span = Span::from_millis(1);

impl Leases {
    /// Assigns free slots to heads in their order, and to parked processes. Returns whether any was assigned.
    pub(super) fn assign(&mut self) -> bool {
        let mut is_assigned = self.assign_parked(true);
        if self.free_slots() != 0 {
            self.estimate();
        }
        loop {
            is_assigned |= self.assign_heads();
            // Heads that yield to none are next after all.
            if !self.end_yielding() {
                break;
            }
        }
        self.assign_parked(false) || is_assigned
    }

    /// Assigns free slots to heads in their order. Returns whether any was assigned.
    fn assign_heads(&mut self) -> bool {
        self.release_held();
        self.each_unsettled(|own, slot| own.at_mut(slot).awaited = Span::ZERO);
        self.look_at_yielded_again();
        let mut is_assigned = self.assign_promised();
        let mut returns = None;
        // Most events find no slot free, and most heads wait: without one none of them is looked at.
        while self.free_slots() != 0
            && let Some((head, turn)) = self.queue.next(self.now)
        {
            let Ok(number) = u32::try_from(head.request.0) else {
                break;
            };
            let from = InstanceId(number);
            let among = self.slots_for(from);
            let among = self.without_yielded(&head, from, among);
            let returns_now = returns.get_or_insert_with(|| self.returns_now());
            let is_aged = turn == queue::Turn::Aged;
            let among = self.without_deferred(from, among, returns_now, is_aged);
            let among = if !self.loads_at_once && self.waits_for_model(from, among) {
                0
            } else {
                among
            };
            let assigned = among != 0 && self.assign_head(from, head.function, among);
            if assigned {
                (is_assigned, returns) = (true, None);
            } else if let Some(head) = self.queue.cancel(self.now, head.ticket) {
                // Another of its function may have a slot.
                self.held.push((from, head));
                let left_out = self.instances.get(&from).map(|entry| &entry.left_out);
                let until = left_out.and_then(|all| all.iter().map(|(_, until)| *until).min());
                if let Some(until) = until.filter(|until| *until > self.now) {
                    self.wake_at(until);
                }
            }
        }
        is_assigned
    }

    /// Lets all heads be next again.
    pub(super) fn release_held(&mut self) {
        let now = self.now;
        for (from, head) in self.held.drain(..) {
            // It may have been withdrawn or replaced meanwhile.
            if let Some(entry) = self.instances.get_mut(&from)
                && let Some((ticket, _)) = &mut entry.head
                && *ticket == head.ticket
                && let Ok(again) = self.queue.put_back(now, &head)
            {
                *ticket = again;
            }
        }
    }

    pub(super) fn assign_head(
        &mut self,
        from: InstanceId,
        function: FunctionId,
        among: u64,
    ) -> bool {
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
        let Some(head) = self.queue.take(now, ticket) else {
            return false;
        };
        if let Some(entry) = self.instances.get_mut(&from) {
            entry.head = None;
        }
        self.settle_waiting(from);
        self.begin_turn(instance, Cause::Head { from, head, demand });
        true
    }

    /// Lets the pool choose one of the slots for a function, and takes it.
    fn schedule(&mut self, function: FunctionId, among: u64) -> Option<SlotId> {
        let among = among & !self.strange_ahead(function);
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
        let (functions, instances) = (&self.functions, &self.instances);
        let class = |function| {
            let own: &Function = functions.get(&function)?;
            let own = own.instances.iter().filter_map(|id| instances.get(id));
            let mut on_slot = own.filter(|entry| entry.about.slot == slot);
            Some(on_slot.next()?.about.class)
        };
        let Some(own) = class(function) else {
            return;
        };
        let is_stranger =
            |other| other != function && class(other).is_some_and(|other| !own.is_beside(other));
        self.pool.unload_where(slot, is_stranger, evicted);
    }

    fn begin_turn(&mut self, instance: InstanceId, cause: Cause) {
        let Some(slot) = self.slot_of(instance) else {
            return;
        };
        self.take_yielded(slot);
        self.turns |= 1 << slot.0;
        self.at_mut(slot).turn = Some(Turn {
            instance,
            cause,
            moves_since: None,
            is_restoring: false,
        });
    }

    /// Takes the next turn from a slot.
    pub(super) fn take_turn(&mut self, slot: SlotId) -> Option<Turn> {
        self.turns &= !(1 << slot.0);
        self.at_mut(slot).turn.take()
    }

    /// Returns the slots that may be assigned, as a bit set: the pool knows whether they are free.
    const fn assignable(&self) -> u64 {
        self.usable & !self.lost & self.queued & !self.turns
    }

    /// Returns whether a slot may be assigned.
    const fn is_assignable(&self, slot: SlotId) -> bool {
        self.assignable() >> slot.0 & 1 == 1
    }

    /// Returns the slots that may be assigned and are free, as a bit set.
    pub(super) const fn free_slots(&self) -> u64 {
        self.assignable() & self.pool.free_set()
    }

    /// Returns the slots on which the head of an instance may run, as a bit set: its own, and those of siblings if it can forward to them.
    pub(super) fn slots_for(&self, from: InstanceId) -> u64 {
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
            let may = *id == from || self.may_forward(entry, *id);
            if may && self.may_have_turn(sibling) && self.is_assignable(sibling.about.slot) {
                set |= 1 << sibling.about.slot.0;
            }
        }
        set
    }

    /// Returns whether a head waits for a slot that has its model, and is in use, rather than have the model loaded on one of the slots `among`: its
    /// turn there comes no later than after a load, or early enough, or a load would leave it little of its objective.
    fn waits_for_model(&mut self, from: InstanceId, among: u64) -> bool {
        let Some((entry, (_, demand))) = self
            .instances
            .get(&from)
            .and_then(|entry| Some((entry, entry.head?)))
        else {
            return false;
        };
        let function = entry.about.function;
        let held = self.pool.held(function);
        let free = among & self.pool.free_set();
        if held == 0 || free & held != 0 || free == 0 {
            return false;
        }
        let Some(about) = self.functions.get(&function) else {
            return false;
        };
        let (execution, load) = (self.execution(entry), about.load(self.load_rate));
        let in_use = about.instances.iter().filter_map(|id| {
            let sibling = self.instances.get(id)?;
            let slot = sibling.about.slot;
            let is_there = held >> slot.0 & 1 == 1;
            let may = *id == from || self.may_forward(entry, *id);
            let can = self.grants(slot) && self.may_have_turn(sibling);
            (is_there && may && can).then(|| (self.free_at(slot), slot))
        });
        let Some((free_at, slot)) = in_use.min() else {
            return false;
        };
        // Estimates err, and a late start costs more than a load: one more execution is left. For what computes much longer than a load takes it
        // does not wait. Beside a load that takes most of the objective, anything which delays it makes the request late, and the slot is taken for
        // all that time.
        let longest = Span(load.0.saturating_mul(LOADS_WAITED));
        let is_early = free_at.after(execution).after(execution) <= demand.deadline;
        let waited_for = if is_early || about.is_tight {
            longest.max(load)
        } else {
            load
        };
        if free_at > self.now.after(waited_for) {
            return false;
        }
        self.at_mut(slot).awaited.0 += execution.0;
        let latest = demand.deadline.before(execution).before(load);
        if latest > self.now {
            self.wake_at(latest);
        }
        // It is looked again when the slot is late by another load.
        self.wake_at(free_at.after(load.max(LOOK)));
        true
    }

    /// Returns when a slot is expected to be free for a head that begins to wait for it now.
    pub(super) fn free_at(&self, slot: SlotId) -> Time {
        let at = self.at(slot);
        let execution = |id| {
            let entry = self.instances.get(&id);
            entry.map_or(Span::ZERO, |entry| self.execution(entry))
        };
        let load = |id: InstanceId| {
            let entry = self.instances.get(&id);
            let function = entry.and_then(|entry| self.functions.get(&entry.about.function));
            function.map_or(Span::ZERO, |function| function.load(self.load_rate))
        };
        let mut free = self.now;
        if let Some(holder) = at.holder.filter(|holder| !holder.is_idle) {
            let needs = execution(holder.instance);
            free = free.after(match holder.stage {
                Stage::Leased => match self.now.since(holder.since) {
                    elapsed if elapsed < needs => Span(needs.0 - elapsed.0),
                    _ => needs,
                },
                // What takes longer than expected may take as long again.
                Stage::Recalled { since } => match self.now.since(since) {
                    elapsed if elapsed < needs => Span(needs.0 - elapsed.0),
                    elapsed => elapsed,
                },
                Stage::Closing { since } => self.now.since(since),
            });
        }
        if let Some(turn) = at.turn {
            let needs = match self.is_away(turn.instance) {
                true => load(turn.instance),
                false => Span::ZERO,
            };
            let moves = turn.moves_since.map(|since| self.now.since(since));
            free = free.after(match moves {
                Some(elapsed) if elapsed < needs => Span(needs.0 - elapsed.0),
                // As above.
                Some(elapsed) => elapsed,
                None => needs,
            });
            free = free.after(execution(turn.instance));
        }
        free.after(at.awaited)
    }

    /// Returns whether the head of an instance may be forwarded to another.
    pub(super) fn may_forward(&self, entry: &Entry, to: InstanceId) -> bool {
        let is_reachable = |id| {
            self.instances
                .get(&id)
                .is_some_and(|entry| entry.is_reachable)
        };
        entry.head.is_some_and(|(_, demand)| demand.may_move)
            && entry.is_reachable
            && is_reachable(to)
            && !entry
                .left_out
                .iter()
                .any(|(id, until)| *id == to && self.now < *until)
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
        // Elsewhere its model does not help a head that must not leave.
        let may_move = entry.is_reachable && entry.head.is_none_or(|(_, demand)| demand.may_move);
        let within = if may_move {
            u64::MAX
        } else {
            1 << entry.about.slot.0
        };
        let load = match self.pool.held(function) & within & !self.lost {
            0 => self
                .functions
                .get(&function)
                .map_or(Span::ZERO, |about| about.load(self.load_rate)),
            _ => Span::ZERO,
        };
        if self.streams {
            // It computes while its model arrives.
            return execution.max(load);
        }
        Span(execution.0.saturating_add(load.0))
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
                let may = self.may_have_turn(entry) && self.is_assignable(slot);
                let is_free = self.pool.free_set() >> slot.0 & 1 == 1;
                let is_due = match is_due {
                    true => deadline <= now && self.credit(slot) > 0,
                    // A head has the slot soon.
                    false => !self.is_promised(slot),
                };
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
