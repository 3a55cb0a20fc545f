//! After a recall, requests of the holder give way where they can wait.
//!
//! Late requests come behind all others ([`crate::pool::queue::LateRule`]). A function whose queue is never empty would keep a slot from one whose head is
//! late, by little or since the last lease was handed on slowly, until that head has aged, although its own requests have time to spare, and its lease
//! would be recalled for that head again and again.

use super::recall::Waiting;
use super::{InstanceId, Leases, SlotId};
use crate::Span;
use crate::pool::FunctionId;

/// Requests that give way on a slot, from the recall of its lease until the next turn there.
#[derive(Debug, Clone, Copy)]
pub(super) struct GiveWay {
    /// Function of the recalled holder.
    function: FunctionId,
    /// Time that the head for which the lease was recalled needs.
    needed: Span,
}

impl Leases {
    /// Has the requests of a holder that is recalled for a head give way to it.
    pub(super) fn begin_to_give_way(
        &mut self,
        slot: SlotId,
        waiting: &Waiting,
        holder: InstanceId,
    ) {
        let Some(needed) = waiting.needed.filter(|_| self.gives_way) else {
            return;
        };
        let function = self
            .instances
            .get(&holder)
            .map(|entry| entry.about.function);
        self.at_mut(slot).give_way = function.map(|function| GiveWay { function, needed });
    }

    /// Returns those of the slots `among`, a bit set, on which the head of an instance does not give way. Where it does, it can still be in time after the head
    /// for which the lease was recalled and the return of its own model.
    pub(super) fn without_given_way(&self, from: InstanceId, among: u64) -> u64 {
        let slots = (0..self.slots.len()).map(super::slot_id);
        let given = slots.filter_map(|slot| Some((slot, self.at(slot).give_way?)));
        let Some(entry) = self.instances.get(&from) else {
            return among;
        };
        let Some((_, demand)) = entry.head else {
            return among;
        };
        let function = entry.about.function;
        let load = self
            .functions
            .get(&function)
            .map_or(Span::ZERO, super::Function::load);
        let latest = demand.deadline.before(self.execution(entry)).before(load);
        given.fold(among, |set, (slot, own)| {
            let gives_way = own.function == function && self.now.after(own.needed) <= latest;
            set & !(u64::from(gives_way) << slot.0)
        })
    }

    /// Ends giving way on the free slots, which no other head has taken. Returns whether there were any.
    pub(super) fn end_giving_way(&mut self) -> bool {
        let free = self.free_slots();
        let mut was_any = false;
        for slot in (0..self.slots.len()).map(super::slot_id) {
            if free >> slot.0 & 1 == 1 {
                was_any |= self.at_mut(slot).give_way.take().is_some();
            }
        }
        was_any
    }
}
