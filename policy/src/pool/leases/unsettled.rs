//! On which slots a decision has something to do.
//!
//! A slot is *settled* if it is free or its holder has the lease, computing or idle, and nothing else goes on there: a decision passes it over unless something waits for it. What
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
        let keeps_lease = holder.stage == Stage::Leased
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
        keeps_lease && !waits && !may_seal
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
    /// Number of the last slot that there can be.
    const LAST: u32 = u64::BITS - 1;

    fn slot(number: u32) -> SlotId {
        match number % SLOTS {
            0 => SlotId(LAST),
            slot => SlotId(slot),
        }
    }

    fn instance(id: u32) -> Instance {
        Instance {
            // Those of the first functions have two instances.
            function: FunctionId(id % 9),
            slot: slot(id + id / 9),
            percentile: Percentile::default(),
            objective: Span::from_millis(80),
            class: if id == 3 {
                Class::Strict
            } else {
                Class::Tenant { namespace: 1 }
            },
            may_leave: id != 4,
        }
    }

    fn add(leases: &mut Leases, now: Time, id: u32) {
        let number = InstanceId(id);
        if leases.add(now, number, &instance(id)).is_ok() {
            leases.connect(now, number, None);
            leases.set_reachable(number, true);
            let _claim = leases.claim(now, number, 40);
        }
    }

    fn leases(streams: bool) -> Leases {
        let settings = Settings {
            streams,
            ..Settings::default()
        };
        let mut leases = Leases::new(settings);
        for number in 0..SLOTS {
            leases.set_slot(slot(number), 100);
            leases.set_host_path(slot(number), number / 2);
            leases.set_usable(slot(number), true);
        }
        for id in 0..INSTANCES {
            add(&mut leases, Time::ZERO, id);
        }
        leases
    }

    /// Reports something of an instance, or answers the order `due`.
    fn report(leases: &mut Leases, due: Option<Action>, now: Time, operation: (u8, u32, u8)) {
        let (kind, number, detail) = operation;
        let number = number % INSTANCES;
        let (id, slot) = (InstanceId(number), slot(number));
        let is_likely = detail > 20;
        let deadline = now.after(Span::from_millis(u64::from(detail)));
        match kind {
            0..4 => {
                let demand = Demand {
                    deadline,
                    estimate: Span::from_millis(u64::from(detail % 8)),
                    waiting: u32::from(detail % 4),
                    may_move: detail % 3 > 0,
                };
                leases.head(now, id, demand);
            }
            4 => leases.idle(now, id, detail % 2 == 0),
            5 => leases.busy(now, id),
            6 => leases.park(now, id, deadline),
            7 => leases.unpark(now, id),
            8 => leases.quiet(now, id, (detail % 2 == 0).then_some(now)),
            9 => _ = leases.claim(now, id, u64::from(detail % 60)),
            10 => match detail % 16 {
                0 => leases.disconnect(now, id),
                1 => leases.lost(now, id),
                2 => leases.set_failed(now, id, true),
                3 => leases.set_lost(now, slot, true),
                4 => leases.set_usable(slot, false),
                5 => leases.returned(now, id, InstanceId((number + 9) % INSTANCES), detail > 99),
                6 => leases.hasten(now, id),
                7 => leases.located(now, id, Location::Host),
                8 => leases.located(now, id, Location::Device),
                9 => leases.holds(now, id, u64::from(detail / 4)),
                10 => leases.set_slot(slot, 100 + u64::from(detail)),
                11 => leases.set_reachable(id, detail > 99),
                12 => leases.remove(now, id),
                13 => leases.release_slot(now, slot),
                14 => leases.connect(now, id, Some(now)),
                _ => leases.adopt_holder(id, now, detail > 99),
            },
            11 => {
                // What has failed works again.
                leases.set_usable(slot, true);
                leases.set_lost(now, slot, false);
                leases.set_failed(now, id, false);
                leases.set_reachable(id, true);
                leases.connect(now, id, None);
                add(leases, now, number);
            }
            _ => match due {
                Some(Action::Recall(id)) => leases.idle(now, id, true),
                Some(Action::Close(id)) => leases.closed(now, id),
                Some(Action::Seal(id)) => leases.sealed(now, id, is_likely),
                Some(Action::Evict { instance, .. }) => leases.evicted(now, instance, is_likely),
                Some(Action::Restore(id)) => leases.restored(now, id, is_likely),
                _ => {}
            },
        }
    }

    fn operations() -> impl Strategy<Value = Vec<(u8, u32, u8, u64)>> {
        let passed = prop_oneof![
            9 => 0..5_000_000_u64,
            1 => 0..15_000_000_000_u64,
        ];
        prop::collection::vec((0..24_u8, any::<u32>(), any::<u8>(), passed), 1..400)
    }

    proptest! {
        #[test]
        fn a_decision_that_passes_over_settled_slots_is_that_which_looks_at_all(
            streams: bool,
            operations in operations(),
        ) {
            let mut leases = leases(streams);
            let mut of_all = leases.clone();
            let (mut due, mut now) = (Vec::new(), 0);
            for (kind, number, detail, passed) in operations {
                now += passed;
                let is_answer = kind > 11 && !due.is_empty();
                let answered = is_answer.then(|| due.swap_remove(number as usize % due.len()));
                for leases in [&mut leases, &mut of_all] {
                    report(leases, answered, Time(now), (kind, number, detail));
                }
                of_all.changed = (0..SLOTS).fold(0, |set, number| set | 1 << slot(number).0);
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
