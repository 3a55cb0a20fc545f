//! What queues and processes ask for, and what is measured of them.

use super::super::heaviness::Measurements;
use super::super::means::mean;
use super::{Cause, Claim, Demand, Entry, InstanceId, Leases, Location, is_part, slots_of};
use crate::pool::queue::{Head, Ticket};
use crate::pool::{FunctionId, SlotId};
use crate::{RequestId, Span, Time};

/// Number of executions from which their mean is believed rather than a queue's estimate.
pub(in crate::pool) const EXECUTIONS_MIN: u32 = 20;
/// Largest number of outcomes that one report is believed to add.
const NEWS_MAX: u64 = 10_000;

impl Leases {
    /// Connects the queue of an instance. `holds`: it states that requests run under a lease of an earlier agent, since this time; it becomes the
    /// holder if the slot has none.
    pub fn connect(&mut self, now: Time, id: InstanceId, holds: Option<Time>) {
        self.now = self.now.max(now);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let slot = entry.about.slot;
        if !std::mem::replace(&mut entry.has_queue, true) {
            self.at_mut(slot).queues += 1;
            self.queued |= 1 << slot.0;
        }
        let may_hold = |entry: &Entry| !self.is_lost(slot) && !self.has_failed(entry);
        let may_hold = self.instances.get(&id).is_some_and(may_hold);
        match holds {
            // On a lost device, or with failed processes, none becomes the holder; one that is goes on until what it runs has ended.
            Some(since) if may_hold || self.holder(slot) == Some(id) => {
                self.adopt_holder(id, since.min(self.now), false);
            }
            // What an earlier queue ran under the lease has ended with it, and this one answers no recall.
            Some(_) | None => self.forget_queue(slot, id),
        }
    }

    /// Sets whether an instance's queue forwards heads to siblings and can be forwarded to.
    pub fn set_reachable(&mut self, id: InstanceId, is_reachable: bool) {
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        entry.is_reachable = is_reachable;
        if !is_reachable {
            let slot = entry.about.slot;
            if self.at(slot).turn.is_some_and(|turn| turn.instance == id) {
                self.return_promised(slot);
            }
        }
    }

    /// Disconnects the queue of an instance: its head is withdrawn, and a lease ends as if it were recalled and idle.
    pub fn disconnect(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        self.withdraw(id);
        self.forget_promised(id);
        self.forget_own_turn(id);
        self.set_reachable(id, false);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let slot = entry.about.slot;
        if std::mem::replace(&mut entry.has_queue, false) {
            let at = self.at_mut(slot);
            at.queues -= 1;
            let has_queues = at.queues > 0;
            self.queued = self.queued & !(1 << slot.0) | u64::from(has_queues) << slot.0;
        }
    }

    /// Takes the head of an instance's queue, which replaces an earlier one. From the holder of the lease, whose queue dispatches by itself, it
    /// means that it has work again.
    pub fn head(&mut self, now: Time, id: InstanceId, demand: Demand) {
        self.now = self.now.max(now);
        self.withdraw(id);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        if demand.waiting == 0 {
            self.forget_promised(id);
            return self.forget_own_turn(id);
        }
        let (function, slot) = (entry.about.function, entry.about.slot);
        if demand.estimate > Span::ZERO {
            // Queues measure executions under leases, whose models are there.
            self.executed(id, demand.estimate);
        }
        let holder = self.at(slot).holder;
        if let Some(holder) = holder.filter(|holder| holder.instance == id && holder.is_leased()) {
            self.forget_promised(id);
            self.busy(now, id);
            if !holder.is_notified {
                // It waits until the queue knows of the lease, which may end before.
                self.enqueue(id, function, demand);
            }
            return;
        }
        if !demand.may_move {
            self.forget_promised(id);
        }
        if let Some(Cause::Head {
            head, demand: own, ..
        }) = self.promised(id)
        {
            // The sibling that has the turn takes this one instead.
            (head.deadline, *own) = (demand.deadline, demand);
            return;
        }
        self.enqueue(id, function, demand);
    }

    /// Returns the cause of the turn in which another instance is to take the head of `from`.
    fn promised(&mut self, from: InstanceId) -> Option<&mut Cause> {
        let slot = slots_of(self.turns).find(|slot| {
            self.at(*slot).turn.is_some_and(|turn| {
                let is_for = matches!(turn.cause, Cause::Head { from: own, .. } if own == from);
                is_for && turn.instance != from
            })
        })?;
        Some(&mut self.at_mut(slot).turn.as_mut()?.cause)
    }

    /// Gives the head which another instance has promised to the turn of a slot back to it: the slot, or its instance, cannot take it.
    pub(super) fn return_promised(&mut self, slot: SlotId) {
        if let Some(turn) = self.at(slot).turn
            && let Cause::Head { from, head, demand } = turn.cause
            && from != turn.instance
        {
            if let Some(turn) = &mut self.at_mut(slot).turn {
                turn.cause = Cause::Gone;
            }
            self.put_head_back(from, &head, demand);
        }
    }

    /// Lets a head that was taken wait again, unless its queue has another one or is gone.
    pub(super) fn put_head_back(&mut self, from: InstanceId, head: &Head, demand: Demand) {
        if let Some(entry) = self.instances.get(&from)
            && entry.head.is_none()
            && entry.has_queue
            && let Ok(ticket) = self.queue.put_back(self.now, head)
        {
            self.set_head(from, ticket, demand);
        }
    }

    /// Records that the head of an instance, which another was to take, is not there any more.
    pub(super) fn forget_promised(&mut self, from: InstanceId) {
        if let Some(cause) = self.promised(from) {
            *cause = Cause::Gone;
        }
    }

    /// Records that an instance's own head is gone, for which it has the next turn.
    fn forget_own_turn(&mut self, id: InstanceId) {
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        if let Some(turn) = &mut self.at_mut(slot).turn
            && turn.instance == id
            && matches!(turn.cause, Cause::Head { from, .. } if from == id)
        {
            turn.cause = Cause::Gone;
        }
    }

    fn enqueue(&mut self, id: InstanceId, function: FunctionId, demand: Demand) {
        let request = RequestId(u64::from(id.0));
        let Ok(ticket) = self
            .queue
            .arrive(self.now, function, request, demand.deadline)
        else {
            return;
        };
        self.set_head(id, ticket, demand);
    }

    pub(super) fn set_head(&mut self, id: InstanceId, ticket: Ticket, demand: Demand) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.head = Some((ticket, demand));
        }
        self.waits(id);
    }

    /// Withdraws the head of an instance, whose client is gone or which was answered otherwise.
    pub(super) fn withdraw(&mut self, id: InstanceId) {
        let now = self.now;
        if let Some(entry) = self.instances.get_mut(&id)
            && let Some((ticket, _)) = entry.head.take()
        {
            let _gone = self.queue.cancel(now, ticket);
        }
        self.settle_waiting(id);
    }

    /// Records that a process of an instance waits at its gate or for memory while no request of it is known. It is to have a lease by
    /// `deadline`.
    pub fn park(&mut self, now: Time, id: InstanceId, deadline: Time) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.parked.get_or_insert(deadline);
            self.waits(id);
        }
    }

    /// Records that no process of an instance waits any more.
    pub fn unpark(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.parked = None;
        }
        self.settle_waiting(id);
    }

    /// Takes the outcomes that an instance's queue has counted over its window: `in_time` of `requests`. Impossible counts are ignored.
    pub fn outcomes(&mut self, now: Time, id: InstanceId, requests: u64, in_time: u64) {
        self.now = self.now.max(now);
        if in_time > requests || requests > u64::from(u32::MAX) {
            return;
        }
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut entry.outcomes, (requests, in_time));
        let function = entry.about.function;
        let Some(about) = self.functions.get(&function) else {
            return;
        };
        let counts = about
            .instances
            .iter()
            .filter_map(|id| self.instances.get(id));
        let sums = counts.fold((0, 0), |sums: (u64, u64), entry| {
            (sums.0 + entry.outcomes.0, sums.1 + entry.outcomes.1)
        });
        self.queue
            .observe(self.now, function, sums, news(before, (requests, in_time)));
    }

    /// Records the time for which one request of an instance has computed.
    pub fn executed(&mut self, id: InstanceId, execution: Span) {
        let Some(entry) = self.instances.get(&id) else {
            return;
        };
        let function = entry.about.function;
        if let Some(about) = self.functions.get_mut(&function) {
            about.execution = mean(about.execution, execution, about.executions == 0);
            about.executions = about.executions.saturating_add(1);
        }
        self.describe(function);
    }

    /// Records how long the model of an instance took to return to its slot, with all that left for it.
    pub(super) fn was_loaded(&mut self, id: InstanceId, load: Span) {
        let Some(entry) = self.instances.get(&id) else {
            return;
        };
        let (function, bytes) = (entry.about.function, entry.returning_bytes);
        if let Some(about) = self.functions.get_mut(&function) {
            if !is_part(bytes, about.bytes) {
                self.load_rate.record(bytes, load);
            }
            let before = about.loaded_bytes;
            if about.load > Span::ZERO && is_part(bytes, before) && is_part(bytes, about.bytes) {
                // What is known of more of the model stands.
                return;
            }
            // The time of a part is none of the whole.
            let is_first = about.load == Span::ZERO || is_part(before, bytes);
            about.load = mean(about.load, load, is_first);
            about.loaded_bytes = bytes;
        }
        self.describe(function);
    }

    /// Passes what is known of a function's model to the pool.
    pub(super) fn describe(&mut self, function: FunctionId) {
        let Some(about) = self.functions.get_mut(&function) else {
            return;
        };
        let sizes = about.instances.iter().filter_map(|id| {
            let entry = self.instances.get(id)?;
            Some(entry.bytes.max(entry.claim.unwrap_or(0)))
        });
        about.bytes = sizes.max().unwrap_or(0);
        let load = about.measured_load();
        // While its processes begin anew, the class that it had stands.
        let is_whole = !is_part(about.bytes, about.loaded_bytes);
        if about.execution > Span::ZERO && load > Span::ZERO && is_whole {
            let _changed = about.heaviness.measured(Measurements {
                resident: about.execution,
                swapped: if self.streams {
                    about.execution.max(load)
                } else {
                    Span(about.execution.0.saturating_add(load.0))
                },
                bytes: about.bytes,
            });
            let own = about
                .instances
                .iter()
                .filter_map(|id| self.instances.get(id));
            let objective = own.map(|entry| entry.about.objective).max();
            about.set_tight(objective.unwrap_or(Span::ZERO), load);
        }
        let _unknown = self.pool.update(function, about.model(self.load_rate));
    }

    /// Returns how long requests of an instance's function usually compute; `None` until enough have ended.
    #[must_use]
    pub fn usual_execution(&self, id: InstanceId) -> Option<Span> {
        let function = self.instances.get(&id)?.about.function;
        let about = self.functions.get(&function)?;
        (about.executions >= EXECUTIONS_MIN).then_some(about.execution)
    }

    /// Returns the expected execution time of an instance's requests.
    pub(super) fn execution(&self, entry: &Entry) -> Span {
        let estimate = entry.head.map_or(Span::ZERO, |(_, demand)| demand.estimate);
        self.execution_of(entry.about.function, estimate)
    }

    /// Returns the expected execution time of a function's request for which a queue has stated an estimate, or zero.
    pub(super) fn execution_of(&self, function: FunctionId, estimate: Span) -> Span {
        match self.functions.get(&function) {
            Some(about) if about.executions >= EXECUTIONS_MIN => about.execution,
            // A queue which knows only requests that ran beside loads of their model states less than they take; others of the function may know.
            Some(about) => about.execution.max(estimate),
            None => estimate,
        }
    }

    /// Lists an instance as waiting.
    fn waits(&mut self, id: InstanceId) {
        if !self.waiting.contains(&id) {
            self.waiting.push(id);
        }
    }

    /// Removes an instance from the list of waiting ones if it waits for nothing.
    pub(super) fn settle_waiting(&mut self, id: InstanceId) {
        let entry = self.instances.get(&id);
        let is_waiting = entry.is_some_and(|entry| {
            entry.head.is_some() || entry.parked.is_some() || entry.claim.is_some()
        });
        if !is_waiting {
            self.waiting.retain(|own| *own != id);
        }
    }

    /// Claims `bytes` of slot memory in all for the processes of an instance: others leave for it, or it waits. A smaller claim gives memory back.
    pub fn claim(&mut self, now: Time, id: InstanceId, bytes: u64) -> Claim {
        self.now = self.now.max(now);
        let Some(entry) = self.instances.get_mut(&id) else {
            return Claim::Refused;
        };
        entry.claim = None;
        let claim = self.try_claim(id, bytes);
        if claim == Claim::Waits {
            if let Some(entry) = self.instances.get_mut(&id) {
                entry.claim = Some(bytes);
                let function = entry.about.function;
                self.describe(function);
            }
            self.waits(id);
        } else {
            self.settle_waiting(id);
        }
        claim
    }

    /// Returns whether an instance's model is on its slot or its location is unknown.
    pub(super) fn is_away(&self, id: InstanceId) -> bool {
        self.instances
            .get(&id)
            .is_some_and(|entry| entry.location == Location::Host)
    }
}

/// Returns the outcomes that a report adds to the one before, each as requests and those in time. What has left the window meanwhile is not known, so that this
/// is a lower bound.
pub(in crate::pool) fn news(before: (u64, u64), reported: (u64, u64)) -> (u32, u32) {
    let new = reported.0.saturating_sub(before.0);
    let in_time = reported.1.saturating_sub(before.1).min(new);
    let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    // A report that covers more than this states the past of another agent.
    if new > NEWS_MAX {
        return (0, 0);
    }
    (narrow(new), narrow(in_time))
}
