//! How long a slot is used after the recall of its lease.

use super::{Holder, InstanceId, Leases, SlotId};
use crate::{Span, Time};

impl Leases {
    /// Begins to measure the drain of a lease that is recalled for a head, if its queue had work. `before`: its holder before the recall.
    pub(super) fn begin_drain(&mut self, slot: SlotId, before: &Holder) {
        let has_work = !before.is_idle && !before.is_idle_later && !before.is_parked;
        let since = has_work.then_some(self.now);
        if let Some(holder) = &mut self.at_mut(slot).holder {
            holder.drains_since = since;
        }
    }

    /// Records the drain of the lease that ends, if its queue has answered the recall.
    pub(super) fn end_drain(&mut self, slot: SlotId) {
        let Some(holder) = self.at(slot).holder else {
            return;
        };
        let Some(since) = holder.drains_since.filter(|_| holder.is_idle) else {
            return;
        };
        let drain = self.now.since(since);
        let Some(entry) = self.instances.get(&holder.instance) else {
            return;
        };
        let (function, execution) = (entry.about.function, self.execution(entry));
        if let Some(function) = self.functions.get_mut(&function) {
            function.drains.record(drain, execution);
        }
    }

    /// Returns the time from a recall of an instance's lease until its slot is free, as expected: that of a request, or what was measured if it is more. What is
    /// measured includes messages and the seal of its model, and, where requests run at the same time, the last of them.
    pub(super) fn expected_drain(&self, id: InstanceId) -> Span {
        let Some(entry) = self.instances.get(&id) else {
            return Span::ZERO;
        };
        let function = self.functions.get(&entry.about.function);
        let measured = function.map_or(Span::ZERO, |function| function.drains.expected());
        self.execution(entry).max(measured)
    }
}

impl Holder {
    /// Measures its drain from now on: its model has only now returned.
    pub(super) const fn restart_drain(&mut self, now: Time) {
        if self.drains_since.is_some() {
            self.drains_since = Some(now);
        }
    }
}
