//! On which slots a decision has something to do.
//!
//! A slot is *settled* if it is free or its holder computes, and nothing else goes on there: a decision passes it over unless something waits for it. What
//! is changed of a slot, or of an instance there, marks it as unsettled, and so it stays until a decision has found it settled. The cost of a decision
//! does not depend on the number of slots otherwise.

use std::collections::BTreeMap;
use std::ops::Index;

use super::{Entry, InstanceId, Leases, Location, Seal, SlotId, SlotLease, Stage};

/// Iterates over the slots of a bit set, in ascending order.
pub(super) fn slots_of(set: u64) -> impl Iterator<Item = SlotId> {
    super::slots::bits(set).map(SlotId)
}

/// Instances of a node, which note the slots of those that may have been changed.
#[derive(Debug, Clone, Default)]
pub(super) struct Instances {
    entries: BTreeMap<InstanceId, Entry>,
    changed: u64,
}

impl Instances {
    pub(super) fn get(&self, id: &InstanceId) -> Option<&Entry> {
        self.entries.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &InstanceId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id)?;
        self.changed |= 1 << entry.about.slot.0;
        Some(entry)
    }

    pub(super) fn insert(&mut self, id: InstanceId, entry: Entry) {
        self.changed |= 1 << entry.about.slot.0;
        self.entries.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: &InstanceId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.changed |= 1 << entry.about.slot.0;
        Some(entry)
    }

    pub(super) fn contains_key(&self, id: &InstanceId) -> bool {
        self.entries.contains_key(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&InstanceId, &Entry)> {
        self.entries.iter()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Iterates over the instances of a slot.
    pub(super) fn on_slot_mut(&mut self, slot: SlotId) -> impl Iterator<Item = &mut Entry> {
        self.changed |= 1 << slot.0;
        let entries = self.entries.values_mut();
        entries.filter(move |entry| entry.about.slot == slot)
    }
}

impl Index<&InstanceId> for Instances {
    type Output = Entry;

    fn index(&self, id: &InstanceId) -> &Entry {
        &self.entries[id]
    }
}

impl Leases {
    pub(super) fn at(&self, slot: SlotId) -> &SlotLease {
        &self.slots[slot.0 as usize]
    }

    pub(super) fn at_mut(&mut self, slot: SlotId) -> &mut SlotLease {
        self.changed |= 1 << slot.0;
        &mut self.slots[slot.0 as usize]
    }

    /// Returns the slots that are not known as settled, as a bit set.
    pub(super) const fn unsettled(&self) -> u64 {
        self.changed | self.instances.changed
    }

    /// Calls a function for each slot that is not known as settled, in ascending order, and for those that follow and come to be so meanwhile.
    pub(super) fn each_unsettled(&mut self, mut act: impl FnMut(&mut Self, SlotId)) {
        let mut passed = 0_u64;
        while let Some(slot) = slots_of(self.unsettled() & !passed).next() {
            passed |= u64::MAX >> (63 - slot.0);
            act(self, slot);
        }
    }

    /// Notes which slots are settled.
    pub(super) fn settle(&mut self) {
        let unsettled = slots_of(self.unsettled()).filter(|slot| !self.is_settled(*slot));
        let unsettled = unsettled.fold(0, |set, slot| set | 1 << slot.0);
        (self.changed, self.instances.changed) = (unsettled, 0);
    }

    /// Returns whether a decision has nothing to do on a slot unless something waits for it.
    pub(super) fn is_settled(&self, slot: SlotId) -> bool {
        let at = self.at(slot);
        at.turn.is_none()
            && at.leaves_nothing()
            && at.ahead.is_none()
            && at.yielding.is_none()
            && at.awaited.0 == 0
            && self.is_holder_settled(slot)
    }

    fn is_holder_settled(&self, slot: SlotId) -> bool {
        let Some(holder) = self.at(slot).holder else {
            return true;
        };
        let Some(entry) = self.instances.get(&holder.instance) else {
            return false;
        };
        let is_computing = holder.stage == Stage::Leased
            && holder.is_open
            && holder.is_notified == entry.has_queue
            && holder.restores_since.is_none()
            && entry.location != Location::Host
            && !self.has_failed(entry)
            && !self.is_lost(slot);
        let waits = holder.is_idle_later || holder.contested_since.is_some();
        let may_seal = holder.is_idle
            && match holder.seal {
                Seal::Open => entry.can_be_sealed(),
                Seal::Asked { .. } => true,
                Seal::Over => false,
            };
        is_computing && !waits && !may_seal
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Action, Class, Demand, Instance, Settings};
    use super::*;
    use crate::pool::{FunctionId, Percentile};
    use crate::{Span, Time};

    const SLOTS: u32 = 4;
    const INSTANCES: u32 = 14;

    fn leases(streams: bool) -> Leases {
        let settings = Settings {
            streams,
            ..Settings::default()
        };
        let mut leases = Leases::new(settings);
        for slot in (0..SLOTS).map(SlotId) {
            leases.set_slot(slot, 100);
            leases.set_host_path(slot, slot.0 / 2);
            leases.set_usable(slot, true);
        }
        for id in 0..INSTANCES {
            let instance = Instance {
                // Those of the first functions have two instances.
                function: FunctionId(id % 9),
                slot: SlotId((id + id / 9) % SLOTS),
                percentile: Percentile::default(),
                objective: Span::from_millis(80),
                class: if id == 3 {
                    Class::Strict
                } else {
                    Class::Tenant { namespace: 1 }
                },
                may_leave: id != 4,
            };
            let id = InstanceId(id);
            leases.add(Time::ZERO, id, &instance).unwrap();
            leases.connect(Time::ZERO, id, None);
            leases.set_reachable(id, true);
            let _claim = leases.claim(Time::ZERO, id, 40);
        }
        leases
    }

    /// Reports something of an instance, or answers one of the orders that are due.
    fn report(leases: &mut Leases, due: &mut Vec<Action>, now: Time, operation: (u8, u32, u8)) {
        let (kind, number, detail) = operation;
        let id = InstanceId(number % INSTANCES);
        let slot = SlotId(number % SLOTS);
        let is_likely = detail > 20;
        match kind {
            0..3 => leases.head(
                now,
                id,
                Demand {
                    deadline: now.after(Span::from_millis(u64::from(detail))),
                    estimate: Span::from_millis(u64::from(detail % 8)),
                    waiting: u32::from(detail % 4),
                    may_move: detail % 3 > 0,
                },
            ),
            3 => leases.idle(now, id, detail % 2 == 0),
            4 => leases.busy(now, id),
            5 => leases.park(now, id, now.after(Span::from_millis(u64::from(detail)))),
            6 => leases.unpark(now, id),
            7 => leases.quiet(now, id, (detail % 2 == 0).then_some(now)),
            8 => _ = leases.claim(now, id, u64::from(detail % 60)),
            9 => match detail % 8 {
                0 => leases.disconnect(now, id),
                1 => leases.lost(now, id),
                2 => leases.set_failed(now, id, true),
                3 => leases.set_lost(now, slot, detail % 16 == 3),
                4 => leases.set_usable(slot, detail % 16 == 4),
                5 => leases.returned(now, id, InstanceId(number / 2 % INSTANCES), is_likely),
                6 => leases.hasten(now, id),
                _ => {
                    leases.set_usable(slot, true);
                    leases.set_lost(now, slot, false);
                    leases.set_failed(now, id, false);
                    leases.connect(now, id, (detail % 16 == 7).then_some(now));
                }
            },
            _ if due.is_empty() => {}
            _ => match due.swap_remove(number as usize % due.len()) {
                Action::Recall(id) => leases.idle(now, id, true),
                Action::Close(id) => leases.closed(now, id),
                Action::Seal(id) => leases.sealed(now, id, is_likely),
                Action::Evict { instance, .. } => leases.evicted(now, instance, is_likely),
                Action::Restore(id) => leases.restored(now, id, is_likely),
                Action::Open(_)
                | Action::Lease(_)
                | Action::Sibling { .. }
                | Action::Claim { .. } => {}
            },
        }
    }

    proptest! {
        #[test]
        fn a_decision_that_passes_over_settled_slots_is_that_which_looks_at_all(
            streams: bool,
            operations in prop::collection::vec((0..20_u8, any::<u32>(), any::<u8>(), 0..5_000_000_u64), 1..300),
        ) {
            let mut leases = leases(streams);
            let (mut due, mut now) = (Vec::new(), 0);
            for (kind, number, detail, passed) in operations {
                now += passed;
                report(&mut leases, &mut due, Time(now), (kind, number, detail));
                let mut of_all = leases.clone();
                of_all.changed = (1 << SLOTS) - 1;
                let (mut actions, mut all_actions) = (Vec::new(), Vec::new());
                leases.decide(Time(now), &mut actions);
                of_all.decide(Time(now), &mut all_actions);
                prop_assert_eq!(&actions, &all_actions);
                prop_assert_eq!(leases.next_wake(), of_all.next_wake());
                prop_assert_eq!(leases.unsettled(), of_all.unsettled());
                due.append(&mut actions);
            }
        }
    }
}
