//! After a recall, requests of the recalled function yield its slot to late ones where they can wait.
//!
//! Late requests come behind all others ([`crate::pool::queue::LateRule`]). A function whose queue is never empty would keep a slot from one whose head is
//! late, by little or since the last lease was handed on slowly, until that head has aged, although its own requests have time to spare, and its lease
//! would be recalled for that head again and again.

use super::{InstanceId, Leases, SlotId};
use crate::pool::FunctionId;
use crate::pool::queue::Head;
use crate::{Span, Time};

/// Slot that a function yields, from the recall of its lease there until the slot's next turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yielding {
    /// Function of the recalled holder.
    function: FunctionId,
    /// Time by which a late head must be over, once a head of the function has been passed over in the present decision.
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

    /// Begins a new look at all heads in their order.
    pub(super) fn look_at_yielded_again(&mut self) {
        self.each_unsettled(|own, slot| {
            if let Some(yielding) = &mut own.at_mut(slot).yielding {
                yielding.free_by = None;
            }
        });
    }

    /// Returns those of the slots `among`, a bit set, that the next head in order, of the instance `from`, may take, and notes which it passes over. A head of the
    /// function that yields a slot passes it over if it can wait. After it the slot is only for a late head which is over in time, and for none if another one waits
    /// for it that is not late.
    pub(super) fn without_yielded(&mut self, head: &Head, from: InstanceId, among: u64) -> u64 {
        let free = among & self.pool.free_set();
        let mut left = among;
        for slot in super::slots_of(self.unsettled()) {
            let Some(yielding) = self.at(slot).yielding else {
                continue;
            };
            if free >> slot.0 & 1 == 0 {
                continue;
            }
            let may = if head.function == yielding.function && !head.late {
                let free_by = self.latest_return(from);
                let may_wait = free_by > self.now;
                if may_wait {
                    self.pass_over(slot, free_by);
                }
                !may_wait
            } else if let Some(free_by) = yielding.free_by {
                if !head.late {
                    self.pass_over(slot, Time::ZERO);
                }
                head.late && self.now.after(self.use_of(head.function, slot)) <= free_by
            } else {
                true
            };
            left &= !(u64::from(!may) << slot.0);
        }
        left
    }

    fn pass_over(&mut self, slot: SlotId, free_by: Time) {
        if let Some(yielding) = &mut self.at_mut(slot).yielding {
            let before = yielding.free_by.unwrap_or(Time::NEVER);
            yielding.free_by = Some(before.min(free_by));
        }
    }

    /// Returns until when another may have the slot of an instance so that all that its queue has stated as waiting is in time, one after the other and after a
    /// load, if the head is the most urgent.
    fn latest_return(&self, id: InstanceId) -> Time {
        let Some((entry, (_, demand))) = self
            .instances
            .get(&id)
            .and_then(|entry| Some((entry, entry.head?)))
        else {
            return Time::ZERO;
        };
        let execution = self.execution(entry).0;
        let work = Span(execution.saturating_mul(u64::from(demand.waiting)));
        let function = self.functions.get(&entry.about.function);
        let load = function.map_or(Span::ZERO, |about| about.load(self.load_rate));
        demand.deadline.before(work).before(load)
    }

    /// Returns for how long a head of a function is expected to use a slot, with the load of its model and the end of its lease.
    fn use_of(&self, function: FunctionId, slot: SlotId) -> Span {
        let Some(id) = self.instance_on(function, slot) else {
            return Span::ZERO;
        };
        let is_there = self.pool.held(function) >> slot.0 & 1 == 1;
        let load = self.functions.get(&function).filter(|_| !is_there);
        let load = load.map_or(Span::ZERO, |about| about.load(self.load_rate));
        Span(load.0.saturating_add(self.expected_drain(id).0))
    }

    /// Ends the yielding of a slot, which a turn takes. If a head was passed over for it, the lease ends in time for that.
    pub(super) fn take_yielded(&mut self, slot: SlotId) {
        let at = self.at_mut(slot);
        at.yielded_until = at.yielding.take().and_then(|own| own.free_by);
    }

    /// Ends the yielding of free slots, which no other head has taken. Returns whether there were any.
    pub(super) fn end_yielding(&mut self) -> bool {
        let free = self.free_slots();
        let mut was_any = false;
        for slot in super::slots_of(self.unsettled()) {
            if free >> slot.0 & 1 == 1 {
                was_any |= self.at_mut(slot).yielding.take().is_some();
            }
        }
        was_any
    }
}
