//! The two policies of leases of a node: of its exclusive slots, whose leases are for computing ([`policy::pool::leases`]), and of its shared ones, whose
//! leases are for memory alone ([`policy::pool::shared`]). What concerns an instance or a slot goes to the one which has it.

use policy::pool::leases::{
    Action, Claim, Demand, Instance, InstanceId, Leases, Location, Rule, View,
};
use policy::pool::shared::SharedLeases;
use policy::pool::{Refusal, SlotId};
use policy::{Span, Time};

use crate::kind::SlotKind;

/// Policies of leases of a node; see the [module](self).
#[derive(Debug)]
pub(crate) struct LeasePolicy {
    exclusive: Leases,
    shared: SharedLeases,
}

/// Passes a call on to the policy which has the instance.
macro_rules! pass {
    ($self:ident, $id:ident, $call:ident($($argument:expr),*)) => {
        if $self.shared.has($id) {
            $self.shared.$call($($argument),*)
        } else {
            $self.exclusive.$call($($argument),*)
        }
    };
}

impl LeasePolicy {
    /// Creates policies without slots. `streams`: processes compute while their models return.
    pub(crate) fn new(rule: Rule, streams: bool) -> Self {
        let settings = rule.settings(streams);
        Self {
            shared: SharedLeases::new(settings.queue, settings.streams),
            exclusive: Leases::new(settings),
        }
    }

    /// Describes a slot: its memory for models in bytes, the number of its path to the host's memory, whether models may move there, and whether its
    /// device is lost.
    pub(crate) fn describe(
        &mut self,
        now: Time,
        slot: SlotId,
        kind: SlotKind,
        (bytes, host_path): (u64, u32),
        (is_usable, is_lost): (bool, bool),
    ) {
        match kind {
            SlotKind::Exclusive => {
                self.exclusive.set_slot(slot, bytes);
                self.exclusive.set_host_path(slot, host_path);
                self.exclusive.set_usable(slot, is_usable);
                self.exclusive.set_lost(now, slot, is_lost);
            }
            SlotKind::Mps => {
                self.shared.set_slot(slot, bytes);
                self.shared.set_host_path(slot, host_path);
                self.shared.set_usable(slot, is_usable);
                self.shared.set_lost(now, slot, is_lost);
            }
        }
    }

    pub(crate) fn add(
        &mut self,
        now: Time,
        id: InstanceId,
        instance: &Instance,
    ) -> Result<(), Refusal> {
        if self.shared.has_slot(instance.slot) {
            return self.shared.add(now, id, instance);
        }
        self.exclusive.add(now, id, instance)
    }

    pub(crate) fn remove(&mut self, now: Time, id: InstanceId) {
        pass!(self, id, remove(now, id));
    }

    /// Connects the queue of an instance. `holds`: it states a lease of an earlier agent.
    pub(crate) fn connect(&mut self, now: Time, id: InstanceId, holds: bool) {
        if self.shared.has(id) {
            return self.shared.connect(now, id, holds);
        }
        self.exclusive.connect(now, id, holds.then_some(now));
    }

    pub(crate) fn disconnect(&mut self, now: Time, id: InstanceId) {
        pass!(self, id, disconnect(now, id));
    }

    /// Sets whether an instance's queue forwards heads to siblings and can be forwarded to. Those of shared slots serve their own.
    pub(crate) fn set_reachable(&mut self, id: InstanceId, is_reachable: bool) {
        if !self.shared.has(id) {
            self.exclusive.set_reachable(id, is_reachable);
        }
    }

    pub(crate) fn head(&mut self, now: Time, id: InstanceId, demand: Demand) {
        pass!(self, id, head(now, id, demand));
    }

    pub(crate) fn outcomes(&mut self, now: Time, id: InstanceId, requests: u64, in_time: u64) {
        pass!(self, id, outcomes(now, id, requests, in_time));
    }

    pub(crate) fn returned(
        &mut self,
        now: Time,
        from: InstanceId,
        to: InstanceId,
        is_refused: bool,
    ) {
        if !self.shared.has(from) {
            self.exclusive.returned(now, from, to, is_refused);
        }
    }

    pub(crate) fn idle(&mut self, now: Time, id: InstanceId, ends: bool) {
        pass!(self, id, idle(now, id, ends));
    }

    pub(crate) fn quiet(&mut self, now: Time, id: InstanceId, since: Option<Time>) {
        pass!(self, id, quiet(now, id, since));
    }

    pub(crate) fn park(&mut self, now: Time, id: InstanceId, deadline: Time) {
        pass!(self, id, park(now, id, deadline));
    }

    pub(crate) fn unpark(&mut self, now: Time, id: InstanceId) {
        pass!(self, id, unpark(now, id));
    }

    pub(crate) fn claim(&mut self, now: Time, id: InstanceId, bytes: u64) -> Claim {
        pass!(self, id, claim(now, id, bytes))
    }

    pub(crate) fn holds(&mut self, now: Time, id: InstanceId, bytes: u64) {
        pass!(self, id, holds(now, id, bytes));
    }

    pub(crate) fn located(&mut self, now: Time, id: InstanceId, location: Location) {
        pass!(self, id, located(now, id, location));
    }

    pub(crate) fn lost(&mut self, now: Time, id: InstanceId) {
        pass!(self, id, lost(now, id));
    }

    pub(crate) fn set_failed(&mut self, now: Time, id: InstanceId, has_failed: bool) {
        pass!(self, id, set_failed(now, id, has_failed));
    }

    pub(crate) fn hasten(&mut self, now: Time, id: InstanceId) {
        pass!(self, id, hasten(now, id));
    }

    /// Records that the gate of an instance is closed. Leases of shared slots close none.
    pub(crate) fn closed(&mut self, now: Time, id: InstanceId) {
        if !self.shared.has(id) {
            self.exclusive.closed(now, id);
        }
    }

    pub(crate) fn evicted(&mut self, now: Time, id: InstanceId, has_left: bool) {
        pass!(self, id, evicted(now, id, has_left));
    }

    pub(crate) fn restored(&mut self, now: Time, id: InstanceId, is_there: bool) {
        pass!(self, id, restored(now, id, is_there));
    }

    /// Records that the model of an instance was sealed. On shared slots that makes no difference to which models leave.
    pub(crate) fn sealed(&mut self, now: Time, id: InstanceId, is_sealed: bool) {
        if !self.shared.has(id) {
            self.exclusive.sealed(now, id, is_sealed);
        }
    }

    /// Makes an instance of an exclusive slot its holder if there is none.
    pub(crate) fn adopt_holder(&mut self, id: InstanceId, since: Time, is_parked: bool) {
        self.exclusive.adopt_holder(id, since, is_parked);
    }

    /// Ends the lease of an exclusive slot on which none are needed any more.
    pub(crate) fn release_slot(&mut self, now: Time, slot: SlotId) {
        self.exclusive.release_slot(now, slot);
    }

    pub(crate) fn view(&self, id: InstanceId) -> Option<View> {
        pass!(self, id, view(id))
    }

    pub(crate) fn usual_execution(&self, id: InstanceId) -> Option<Span> {
        pass!(self, id, usual_execution(id))
    }

    /// Returns the instance which holds the lease of an exclusive slot, recalled or not.
    pub(crate) fn holder(&self, slot: SlotId) -> Option<InstanceId> {
        self.exclusive.holder(slot)
    }

    /// Returns whether leases to compute are needed on a slot.
    pub(crate) fn is_leased(&self, slot: SlotId) -> bool {
        self.exclusive.is_leased(slot)
    }

    /// Returns whether leases decide whose model is on a slot on which several compute.
    pub(crate) fn shares_memory(&self, slot: SlotId) -> bool {
        self.shared.is_leased(slot)
    }

    /// Returns the instances of shared slots of which it matters whether their processes compute.
    pub(crate) fn watched(&self) -> impl Iterator<Item = InstanceId> {
        self.shared.watched()
    }

    /// Returns whether claims of memory of shared slots wait.
    pub(crate) fn has_claims(&self) -> bool {
        self.shared.has_claims()
    }

    pub(crate) fn next_wake(&self) -> Option<Time> {
        let both = [self.exclusive.next_wake(), self.shared.next_wake()];
        both.into_iter().flatten().min()
    }

    pub(crate) fn decide(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.exclusive.decide(now, actions);
        self.shared.decide(now, actions);
    }
}
