//! After a recall, requests of the recalled function yield its slot to others where they can wait.
//!
//! Late requests come behind all others ([`crate::pool::queue::LateRule`]). A function whose queue is never empty would keep a slot from one whose head is
//! late, by little or since the last lease was handed on slowly, until that head has aged, although its own requests have time to spare, and its lease
//! would be recalled for that head again and again.

use super::{InstanceId, Leases, SlotId};
use crate::pool::FunctionId;
use crate::{Span, Time};

/// Slot that a function yields, from the recall of its lease there until the next turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yielding {
    /// Function of the recalled holder.
    function: FunctionId,
    /// Time at which the slot must be free again for what waits of the function, once that has been passed over in the present decision.
    free_by: Option<Time>,
}

impl Leases {
    /// Has the function of a holder that is recalled for a head yield the slot.
    pub(super) fn begin_yielding(&mut self, slot: SlotId, holder: InstanceId) {
        let entry = self.instances.get(&holder).filter(|_| self.yields);
        let yielding = entry.map(|entry| Yielding {
            function: entry.about.function,
            free_by: None,
        });
        self.at_mut(slot).yielding = yielding;
    }

    /// Returns those of the slots `among`, a bit set, that the head of an instance may take as far as a recalled function yields them: a head of that
    /// function none on which all that waits behind it could still be in time after another head, and another head none on which it would take longer than that.
    pub(super) fn without_yielded(&mut self, from: InstanceId, among: u64) -> u64 {
        let mut left = among;
        for slot in (0..self.slots.len()).map(super::slot_id) {
            let Some(yielding) = self.at(slot).yielding else {
                continue;
            };
            let Some(entry) = self.instances.get(&from) else {
                continue;
            };
            let is_own = entry.about.function == yielding.function;
            let may = if is_own {
                let free_by = self.latest_return(from);
                let may_wait = free_by.filter(|free_by| *free_by > self.now);
                if let Some(free_by) = may_wait {
                    let sooner = yielding.free_by.map_or(free_by, |own| own.min(free_by));
                    self.at_mut(slot).yielding = Some(Yielding {
                        free_by: Some(sooner),
                        ..yielding
                    });
                }
                may_wait.is_none()
            } else {
                let free_by = yielding.free_by.unwrap_or(Time::NEVER);
                self.now.after(self.use_of(from)) <= free_by
            };
            if !may {
                left &= !(1 << slot.0);
            }
        }
        left
    }

    /// Returns until when others may have the slot of an instance so that all that waits of its queue can be in time, one after the other and after a load, if the
    /// head is the most urgent.
    fn latest_return(&self, id: InstanceId) -> Option<Time> {
        let entry = self.instances.get(&id)?;
        let (_, demand) = entry.head?;
        let function = self.functions.get(&entry.about.function)?;
        let execution = self.execution(entry).0;
        let work = Span(execution.saturating_mul(u64::from(demand.waiting)));
        Some(demand.deadline.before(work).before(function.load()))
    }

    /// Returns for how long the head of an instance is expected to use a slot, with the end of its lease.
    fn use_of(&self, id: InstanceId) -> Span {
        let Some(entry) = self.instances.get(&id) else {
            return Span::ZERO;
        };
        self.needed(entry).max(self.expected_drain(id))
    }

    /// Ends the yielding of free slots, which no other head has taken. Returns whether there were any.
    pub(super) fn end_yielding(&mut self) -> bool {
        let free = self.free_slots();
        let mut was_any = false;
        for slot in (0..self.slots.len()).map(super::slot_id) {
            if free >> slot.0 & 1 == 1 {
                was_any |= self.at_mut(slot).yielding.take().is_some();
            }
        }
        was_any
    }
}
